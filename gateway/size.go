package gateway

import "github.com/seed-63e9a637/jetbus"

// What an event, each of its headers, and each item of its lists take in memory besides their text.
const (
	eventOverhead  = 512
	headerOverhead = 96
	itemOverhead   = 32
)

// sizeOf returns how many bytes an event takes in memory. Everything that holds events counts them with it.
func sizeOf(e *jetbus.Event) int {
	n := eventOverhead + len(e.ID) + len(e.SID) + len(e.Topic) + len(e.Key) + len(e.Payload)
	for name, v := range e.Headers {
		n += headerOverhead + len(name) + len(v)
	}
	for _, list := range [][]string{e.CausedBy, e.Tags} {
		for _, item := range list {
			n += itemOverhead + len(item)
		}
	}
	return n
}

// sizeWithJSON returns how many bytes an event and its JSON take in memory.
func sizeWithJSON(e *jetbus.Event) int { return 2 * sizeOf(e) }
