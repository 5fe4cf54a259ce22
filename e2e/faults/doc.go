// Package faults holds the bus to its promises while real things break: processes
// are ended by SIGKILL, connections are cut or fall silent, brokers come back
// with what was on their disk. Its tests run themselves again as child processes,
// see TestMain, and put a proxy between these and the broker.
package faults
