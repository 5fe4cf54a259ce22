// Package projections holds projections into MongoDB, and their rebuilds, to the fold of their
// topic, while their processes are ended by SIGKILL at random moments. Its tests run themselves
// again as child processes, see TestMain.
package projections
