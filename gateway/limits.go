package gateway

import (
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Limits bounds what clients may use. The zero value of each field selects its default. Negative values
// are errors, except in the fields that document one.
type Limits struct {
	FrameBytes    int64         // size of a decompressed frame, and of an event's payload over HTTP. Default 1 MiB
	TokenBytes    int           // size of a token. Default 8 KiB
	AuthTimeout   time.Duration // time until the first AUTH. Default 5 seconds
	PreAuth       int           // WebSockets that have not authenticated; one more evicts the oldest of the address with the most. Default 1,000
	Connections   int           // authenticated WebSockets; as many event streams, as many polls and pulls, as many snapshots, states and dead letters. Default 10,000
	PerPrincipal  int           // all of these together for one subject; as many concurrent publishes over HTTP. Default 1,000
	Subscriptions int           // per connection. Default 64
	Groups        int           // shared groups per topic beyond which clients create no more; as many groups of subjects (u.SUBJECT, u.SUBJECT.*). Default 1,000
	OwnGroups     int           // groups of one subject per topic: u.SUBJECT and u.SUBJECT.*. Default 50
	GroupIdle     time.Duration // time without requests until the broker deletes a subject's group and its position. Default 7 days, at least 1 minute; negative: never
	InFlight      int           // events per subscription. Default 1,000
	BatchEvents   int           // events per batch. Default 256
	QueueBytes    int           // bytes that wait to be written to a connection, and bytes per response page. Default 1 MiB
	WriteTimeout  time.Duration // time of one write. Default 10 seconds
	Ping          time.Duration // interval between PING frames. Default 25 seconds
	PongTimeout   time.Duration // time until the PONG. Default 8 seconds
	LeaseMax      time.Duration // longest lease or extension. Default 10 minutes
	LeaseTotal    time.Duration // all extensions of one delivery together. Default 1 hour
	ResumeGrace   time.Duration // longest grace period that a client may request. Default 30 seconds
	Rate          float64       // frames per second of a connection, requests per second of a subject; frames of all connections of a subject: 10 times that. Default 2,000; -1: no limit
	Burst         int           // frames or requests beyond Rate; for all connections of a subject 10 times that. Default 4,000
	Wait          time.Duration // longest long poll. Default 60 seconds
	PageEvents    int           // events or keys per response. Default 1,000

	// The budget limits the memory and the concurrent work of clients, for example bodies, queued events and
	// response pages. A request without room waits up to 2 seconds. Then it is refused with the code
	// rate_limited (429) if its subject has used up its share, or overloaded (503) if the process has. Frames of
	// a WebSocket wait for memory without a timeout. SUBSCRIBE, CURSOR, the offset of a SEEK and the parsing of a
	// large frame wait up to 2 seconds like requests. A subscription to a group is refused immediately if there is
	// no memory for it. With the defaults, jetbus serve grew to 880 MiB when clients attacked it.
	Bytes              int // bytes held for all clients. Default 256 MiB
	BytesPerPrincipal  int // bytes held for one subject; less than 16 times FrameBytes refuses the largest batches. Default 32 MiB
	BytesPerConnection int // bytes held for one connection, at least 16 times FrameBytes. Default 16 MiB
	Calls              int // concurrent requests to the broker, SUBSCRIBE among them, but no publishes. Default 512
	CallsPerPrincipal  int // concurrent requests to the broker, per subject. Default 64
	Scans              int // concurrent reads through a topic: snapshots, states, dead letters, /openapi.json, schema requests with a body. Default half of GOMAXPROCS
	ScansPerPrincipal  int // concurrent reads through a topic, per subject. Default a quarter of GOMAXPROCS
}

// normalize returns the limits with defaults filled in, or an error that wraps
// [jetbus.ErrInvalidOption] and names the field.
func (l Limits) normalize() (Limits, error) {
	busy := processors()
	counts := []struct {
		name       string
		field      *int
		value, min int
	}{
		{"TokenBytes", &l.TokenBytes, maxTokenBytes, 16},
		{"PreAuth", &l.PreAuth, 1_000, 1},
		{"Connections", &l.Connections, 10_000, 1},
		{"PerPrincipal", &l.PerPrincipal, 1_000, 1},
		{"Subscriptions", &l.Subscriptions, 64, 1},
		{"Groups", &l.Groups, 1_000, 1},
		{"OwnGroups", &l.OwnGroups, 50, 1},
		{"InFlight", &l.InFlight, 1_000, 1},
		{"BatchEvents", &l.BatchEvents, 256, 1},
		{"QueueBytes", &l.QueueBytes, 1 << 20, 4 << 10},
		{"Burst", &l.Burst, 4_000, 1},
		{"PageEvents", &l.PageEvents, 1_000, 1},
		{"Bytes", &l.Bytes, 256 << 20, 1 << 20},
		{"BytesPerPrincipal", &l.BytesPerPrincipal, 32 << 20, 64 << 10},
		{"BytesPerConnection", &l.BytesPerConnection, 16 << 20, 64 << 10},
		{"Calls", &l.Calls, 512, 1},
		{"CallsPerPrincipal", &l.CallsPerPrincipal, 64, 1},
		{"Scans", &l.Scans, busy, 1},
		{"ScansPerPrincipal", &l.ScansPerPrincipal, max(1, busy/2), 1},
	}
	for _, c := range counts {
		if err := setLimit(c.name, c.field, c.value, c.min); err != nil {
			return l, err
		}
	}
	times := []struct {
		name       string
		field      *time.Duration
		value, min time.Duration
	}{
		{"AuthTimeout", &l.AuthTimeout, 5 * time.Second, time.Millisecond},
		{"WriteTimeout", &l.WriteTimeout, 10 * time.Second, time.Millisecond},
		{"Ping", &l.Ping, 25 * time.Second, time.Millisecond},
		{"PongTimeout", &l.PongTimeout, 8 * time.Second, time.Millisecond},
		{"LeaseMax", &l.LeaseMax, 10 * time.Minute, time.Second},
		{"LeaseTotal", &l.LeaseTotal, time.Hour, time.Second},
		{"ResumeGrace", &l.ResumeGrace, 30 * time.Second, time.Millisecond},
		{"Wait", &l.Wait, time.Minute, time.Millisecond},
	}
	for _, c := range times {
		if err := setLimit(c.name, c.field, c.value, c.min); err != nil {
			return l, err
		}
	}
	if err := setLimit("FrameBytes", &l.FrameBytes, 1<<20, 1<<10); err != nil {
		return l, err
	}
	if l.GroupIdle < 0 {
		l.GroupIdle = -1
	} else if err := setLimit("GroupIdle", &l.GroupIdle, 7*24*time.Hour, time.Minute); err != nil {
		return l, err
	}
	switch {
	case l.Rate == 0:
		l.Rate = 2_000
	case l.Rate < 0 && l.Rate != -1:
		return l, fmt.Errorf("%w: Limits.Rate is %v, use more than 0, or -1 for none", jetbus.ErrInvalidOption, l.Rate)
	}
	if l.LeaseTotal < l.LeaseMax {
		return l, fmt.Errorf("%w: Limits.LeaseTotal is %v, use at least LeaseMax (%v)", jetbus.ErrInvalidOption, l.LeaseTotal, l.LeaseMax)
	}
	return l, nil
}

func setLimit[T int | int64 | time.Duration](name string, field *T, value, least T) error {
	if *field == 0 {
		*field = value
	}
	if *field < least {
		return fmt.Errorf("%w: Limits.%s is %v, use at least %v", jetbus.ErrInvalidOption, name, *field, least)
	}
	return nil
}
