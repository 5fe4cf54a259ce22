// Package restore restores a broker to random earlier moments while projections, a compactor,
// a reader and a table run on it. Whatever they derived from the topic must be equal to the fold of
// the topic in the end, or they must have reported that the topic was restored. Likewise it restores
// the broker under change feeds of each mode: every write to their collection must be in their topics,
// or a gap event must report the loss.
package restore
