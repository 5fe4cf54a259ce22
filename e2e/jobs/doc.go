// Package jobs holds what works for long - groups in order, handlers that kill their own
// process, projections and their rebuilds, backfills, registrations - to the result that it
// has when it is left alone, while its processes and its broker are ended by SIGKILL at
// random moments. Its tests run themselves again as child processes, see TestMain.
package jobs
