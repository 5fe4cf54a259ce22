// Package contract runs the contract suite on a real cluster of three nodes. It has a
// package of its own because its time is real and most of it is spent waiting. What else
// of the bus a cluster makes harder is in e2e/cluster. With the build tag elections it
// is played while leaders step down and nodes die all the time; see make contract-elections.
package contract
