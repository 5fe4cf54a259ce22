// Package reads tests what the adapter promises of reading: events in their order, the
// last one of each key, snapshots, the state as of a time. It stands apart from the
// adapter's other tests so that they run beside each other.
package reads
