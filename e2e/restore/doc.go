// Package restore restores a broker to random earlier moments while projections, a compactor,
// a reader and a table run on it. Whatever they derived from the topic must be equal to the fold of
// the topic in the end, or they must have reported that the topic was restored.
package restore
