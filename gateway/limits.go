package gateway

import (
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Limits bound what one client may use. The zero value of each field is its default;
// -1 means none where that is said.
type Limits struct {
	FrameBytes    int64         // of a frame after inflation, and of an event's payload over HTTP. Defaults to 1 MiB
	TokenBytes    int           // of a token. Defaults to 8 KiB
	AuthTimeout   time.Duration // until the first AUTH. Defaults to 5 seconds
	PreAuth       int           // WebSockets that have not authenticated, at once; one more evicts the oldest of the address that has most. Defaults to 1,000
	Connections   int           // WebSockets that have, and as many event streams, polls with pulls, and snapshots with states and dead letters. Defaults to 10,000
	PerPrincipal  int           // of all these by one subject, and of its publishes over HTTP at once. Defaults to 1,000
	Subscriptions int           // of a connection. Defaults to 64
	Groups        int           // of a topic, beyond which clients make no more: as many that services share, and as many of subjects (u.SUBJECT, u.SUBJECT.*). Defaults to 1,000
	OwnGroups     int           // of a topic by one subject: u.SUBJECT and u.SUBJECT.*. Defaults to 50
	GroupIdle     time.Duration // until the broker deletes such a group, which nobody has asked for events, with its position. Defaults to 7 days, at least 1 minute; negative: never
	InFlight      int           // events of a subscription. Defaults to 1,000
	BatchEvents   int           // events of a batch. Defaults to 256
	QueueBytes    int           // that wait to be written to a connection. Defaults to 1 MiB
	WriteTimeout  time.Duration // of one write. Defaults to 10 seconds
	Ping          time.Duration // between PING frames. Defaults to 25 seconds
	PongTimeout   time.Duration // until the answer. Defaults to 8 seconds
	LeaseMax      time.Duration // of one lease or extension. Defaults to 10 minutes
	LeaseTotal    time.Duration // of all extensions of one delivery. Defaults to 1 hour
	ResumeGrace   time.Duration // that a client may ask for. Defaults to 30 seconds
	Rate          float64       // frames or requests a second of a connection or subject. Defaults to 2,000; -1: none
	Burst         int           // beyond Rate at once. Defaults to 4,000
	Wait          time.Duration // of a long poll. Defaults to 60 seconds
	PageEvents    int           // events or keys of one answer. Defaults to 1,000

	// The budget bounds what clients make the gateway hold in memory and have under way, whatever
	// it is: bodies, events that wait to be read, pages of answers. A request that finds no room waits for
	// 2 seconds, and is then refused with the code rate_limited (429) where its subject has its share, and
	// overloaded (503) where the process has. Connections wait. With the defaults, clients that attacked a jetbus serve made it grow to 770 MiB.
	Bytes              int // held for all clients. Defaults to 256 MiB
	BytesPerPrincipal  int // held for one subject. Defaults to 32 MiB
	BytesPerConnection int // held for one connection. Defaults to 8 MiB
	Calls              int // requests to the broker at once, other than publishes. Defaults to 512
	CallsPerPrincipal  int // of them for one subject. Defaults to 64
	Scans              int // reads through a topic at once: snapshots, states, dead letters, /openapi.json. Defaults to 4
	ScansPerPrincipal  int // of them for one subject. Defaults to 2
}

// normalize returns the limits with defaults filled in, or an error that wraps
// [jetbus.ErrInvalidOption] and names the field.
func (l Limits) normalize() (Limits, error) {
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
		{"BytesPerConnection", &l.BytesPerConnection, 8 << 20, 64 << 10},
		{"Calls", &l.Calls, 512, 1},
		{"CallsPerPrincipal", &l.CallsPerPrincipal, 64, 1},
		{"Scans", &l.Scans, 4, 1},
		{"ScansPerPrincipal", &l.ScansPerPrincipal, 2, 1},
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
