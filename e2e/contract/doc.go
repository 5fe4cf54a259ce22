// Package contract runs the contract suite on a real cluster of three nodes, and what
// else of the bus a cluster makes harder. It has a package of its own because its time
// is real and most of it is spent waiting.
package contract
