// Package partitions holds groups of topics with partitions to their promises while
// the processes they consist of are killed, frozen, cut off and deployed, and their
// broker is restarted or loses a node. Members are child processes, which keep a journal
// of what they handled; from that the tests tell what was lost, what came twice, what
// came out of order and who had a partition while another one had it.
package partitions
