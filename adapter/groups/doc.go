// Package groups tests what the adapter promises of groups: leases, order, partitions,
// moves, and settings that members share. It stands apart from the adapter's other tests
// so that they run beside each other.
package groups
