// Package brokers holds embedded brokers to what only a real clock and real processes
// can show: clusters that elect, nodes and processes that are killed, and a bubble of
// fake time that notices what is left in it. Its tests run themselves again as child
// processes, see TestMain.
package brokers
