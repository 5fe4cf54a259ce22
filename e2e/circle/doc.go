// Package circle holds the parts to what they promise together: heartbeats become
// states of processes, states become documents of a MongoDB, and what changes in the
// documents becomes events again, with a schema on each topic. Its test runs itself
// again as the process that does the work and is ended by SIGKILL, see TestMain.
package circle
