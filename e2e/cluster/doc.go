// Package cluster tests what a bus does where servers elect leaders and replicas lag, on a
// cluster of its own for each test. The contract on a cluster is in package contract.
package cluster
