// Package jobs holds groups that work for long - in order, or beside events that kill their own
// process - to what each event was promised, while their members are ended by SIGKILL at random
// moments. Its tests run themselves again as child processes, see TestMain.
package jobs
