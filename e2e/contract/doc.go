// Package contract runs the contract suite on a real cluster of three nodes. It has a
// package of its own because its time is real and most of it is spent waiting. What else
// of the bus a cluster makes harder is in package cluster.
package contract
