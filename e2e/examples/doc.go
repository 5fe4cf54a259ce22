// Package examples runs the programs in examples/ as processes, and compares what they leave
// at a broker and in a MongoDB with what they promise.
package examples
