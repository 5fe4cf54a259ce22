package gateway

import "github.com/seed-63e9a637/jetbus"

// Estimated memory of an event, of each header and of each item of a list, in bytes in addition to their text.
const (
	eventOverhead  = 512
	headerOverhead = 96
	itemOverhead   = 32
)

// sizeOf estimates the memory of an event in bytes. Queues, pages and the events that clients hold are counted with it.
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

// sizeWithJSON estimates the memory of an event and its JSON in bytes.
func sizeWithJSON(e *jetbus.Event) int { return 2 * sizeOf(e) }
