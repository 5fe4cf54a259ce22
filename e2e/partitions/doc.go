// Package partitions tests the promises of groups of topics with partitions while their
// processes are killed, frozen, cut off and deployed, and while their broker restarts or loses a
// node. Members are child processes that keep a journal of the events they handled. From the
// journals the tests determine which events were lost, redelivered or out of order, and which
// partitions had two members at the same time. TestBucketChaos purges, deletes and fills the
// buckets of locks and groups, and checks that no lock or partition has two holders.
package partitions
