package adapter

import (
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

// How many events and bytes a request is for, by what is held, what is asked for and what had
// no room.
func TestBytesOfARequest(t *testing.T) {
	for name, c := range map[string]struct {
		most        int64
		topics      int
		retries     bool
		held        int64
		asked       int // events of the open requests, and their bytes
		askedBytes  int64
		refused     int64
		n, room     int
		wantEvents  int
		wantedBytes int64
	}{
		"its part of the room":                          {most: 8000, n: 100, room: 1000, wantEvents: 100, wantedBytes: 700},
		"fewer bytes than events":                       {most: 800, n: 100, room: 1000, wantEvents: 100, wantedBytes: 70},
		"one byte at least":                             {most: 8, n: 100, room: 1000, wantEvents: 100, wantedBytes: 1},
		"fewer bytes than topics":                       {most: 2, topics: 3, n: 10, room: 10, wantEvents: 10, wantedBytes: 1},
		"all of it":                                     {most: 8000, n: 10, room: 10, wantEvents: 10, wantedBytes: 7000},
		"beside what is held":                           {most: 8000, held: 6000, n: 10, room: 10, wantEvents: 10, wantedBytes: 1000},
		"beside what is asked for":                      {most: 8000, asked: 5, askedBytes: 3000, n: 10, room: 20, wantEvents: 10, wantedBytes: 2000},
		"too little to be worth a request":              {most: 8000, asked: 5, askedBytes: 6000, n: 10, room: 10},
		"the same, with none open":                      {most: 8000, held: 6999, n: 10, room: 10, wantEvents: 10, wantedBytes: 1},
		"no room":                                       {most: 8000, held: 7000, n: 10, room: 10},
		"an event larger than all is held":              {most: 8000, held: 70_000, n: 10, room: 10},
		"of the topic's part":                           {most: 8000, topics: 2, n: 10, room: 10, wantEvents: 10, wantedBytes: 3500},
		"of the retries' part":                          {most: 8000, topics: 2, retries: true, n: 10, room: 10, wantEvents: 10, wantedBytes: 500},
		"a part was refused":                            {most: 8000, refused: 700, n: 100, room: 1000, wantEvents: 100, wantedBytes: 7000},
		"a part was refused beside what is held":        {most: 8000, held: 1000, refused: 700, n: 100, room: 1000, wantEvents: 100, wantedBytes: 6000},
		"all that is left was refused":                  {most: 8000, held: 1000, refused: 6000, n: 100, room: 1000},
		"all was refused":                               {most: 8000, refused: 7000, n: 100, room: 1000, wantEvents: 1, wantedBytes: anySize},
		"all was refused, and something is held by now": {most: 8000, held: 1, refused: 7000, n: 100, room: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			p := &puller{s: &subscription{o: jetbus.SubscribeOptions{MaxInFlightBytes: c.most}, topics: max(c.topics, 1)}, t: &topic{retries: c.retries}}
			p.heldBytes, p.refused, p.pulls.asked, p.pulls.bytes = c.held, c.refused, c.asked, c.askedBytes
			if events, bytes := p.bytesLocked(c.n, c.room); events != c.wantEvents || bytes != c.wantedBytes {
				t.Errorf("asks for %d events of %d bytes, want %d of %d", events, bytes, c.wantEvents, c.wantedBytes)
			}
		})
	}
}
