package registry_test

import (
	"context"
	"errors"
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

// decoration puts decorators around a bus.
type decoration func(b jetbus.Backend, r *registry.Registry) jetbus.Backend

func validatedOnly(b jetbus.Backend, r *registry.Registry) jetbus.Backend {
	return registry.Validated(b, r, registry.ValidatedOptions{})
}

func dualOnly(b jetbus.Backend, r *registry.Registry) jetbus.Backend {
	return registry.DualWrite(b, r, registry.DualWriteOptions{})
}

func dualAtomic(b jetbus.Backend, r *registry.Registry) jetbus.Backend {
	return registry.DualWrite(b, r, registry.DualWriteOptions{Atomic: true})
}

func normalizedOnly(b jetbus.Backend, r *registry.Registry) jetbus.Backend {
	return registry.Normalized(b, r, registry.NormalizedOptions{})
}

func stacked(b jetbus.Backend, r *registry.Registry) jetbus.Backend {
	return normalizedOnly(validatedOnly(dualOnly(b, r), r), r)
}

// admin declares what the suite declares, with a schema that accepts everything,
// and the topics of that version.
type admin struct {
	jetbus.Backend

	reg   *registry.Registry
	users []*registry.Registry // that must have heard of it
	twins bool                 // declare <topic>.v1, too
	share bool                 // in the same stream
}

func (a *admin) EnsureTopic(ctx context.Context, c jetbus.TopicConfig) (jetbus.TopicInfo, error) {
	if a.share && c.Stream == "" && c.SnapshotOf == "" {
		c.Stream = "CONTRACT"
	}
	info, err := a.Backend.EnsureTopic(ctx, c)
	twin := c
	twin.Name += ".v1"
	if err != nil || c.Subject != "" || a.twins && jetbus.ValidTopic(twin.Name) != nil {
		return info, err
	}
	if a.twins {
		if c.SnapshotOf != "" {
			twin.SnapshotOf += ".v1"
		}
		if _, err := a.Backend.EnsureTopic(ctx, twin); err != nil {
			return info, err
		}
	}
	if c.SnapshotOf != "" {
		return info, nil
	}
	if _, err := a.reg.Register(ctx, c.Name, "true", registry.RegisterOptions{}); err != nil {
		return info, err
	}
	for _, r := range a.users {
		for _, err := r.Current(c.Name); err != nil; _, err = r.Current(c.Name) {
			time.Sleep(time.Millisecond)
		}
	}
	return info, nil
}

// closing is a decorated bus that its opener closes.
type closing struct {
	jetbus.Backend

	bus bustest.ClosingBus
	reg *registry.Registry
	nc  *nats.Conn // of reg
}

func (c closing) Close(ctx context.Context) error {
	err := errors.Join(c.bus.Close(ctx), c.reg.Close(ctx))
	c.nc.Close()
	return err
}

// decorated makes subjects whose A, B and Open are decorated, on topics that are stored so;
// with schemas or without.
func decorated(decorate decoration, storage jetbus.Storage, schemas func(*admin)) func(t *testing.T) bustest.Subject {
	return func(t *testing.T) bustest.Subject {
		t.Helper()
		broker := bustest.Start(t, embedded.Config{})
		s := bustest.SubjectOn(t, broker, adapter.Config{Storage: storage})
		a := &admin{Backend: s.Admin, reg: openOn(t, bustest.Connect(t, broker), registry.Config{})}
		outside := func(b jetbus.Backend) jetbus.Backend { return b }
		if schemas != nil {
			schemas(a)
			outside = func(b jetbus.Backend) jetbus.Backend { return opaque{b} }
		}
		dress := func(b jetbus.Bus) (jetbus.Backend, *registry.Registry, *nats.Conn) {
			nc := bustest.Connect(t, broker) // that of the bus may be cut, or have few rights
			r := openOn(t, nc, registry.Config{})
			a.users = append(a.users, r)
			return outside(decorate(b.(jetbus.Backend), r)), r, nc
		}
		s.A, _, _ = dress(s.A)
		s.B, _, _ = dress(s.B)
		open := s.Open
		s.Open = func(ctx context.Context, nc *nats.Conn) (bustest.ClosingBus, error) {
			b, err := open(ctx, nc)
			if err != nil {
				return nil, err
			}
			c := closing{bus: b}
			c.Backend, c.reg, c.nc = dress(b)
			return c, nil
		}
		if schemas != nil {
			s.Admin = outside(a)
		}
		return s
	}
}

// What cannot hold, by the behavior's name.
const (
	atLimit     = "an event above the broker's limit is refused before it is sent, and one at the limit is stored"
	tooLarge    = "an event too large for a dead letter has one without its payload, and is replayed whole"
	expectation = "of writers that expect the same sequence exactly one wins each round"
	dryRuns     = "a dry run returns what a publish would, and stores nothing"
	expectEach  = "the events of a batch have options of their own"
	atomicLimit = "an atomic batch over its limits is refused before it is sent"
	chained     = "a chained batch is stored behind the event it names, once, and nobody else's is"
	grown       = "a topic that gets more partitions under load loses nothing, stores nothing twice and keeps every publisher's order"
	acrossGrown = "what a key's last event is, and a condition on it, hold across partitions that came later"
	noAnswer    = "a publish without an answer says that the event may be stored, and publishing it again is safe"
)

// larger: the suite fills events to the last byte, and here their payloads become
// JSON, which is larger.
var larger = []string{atLimit, tooLarge}

// contract runs the suite, but for some behaviors. Those that need hundreds of topics are
// tested around the stack of all decorators on topics without schemas, and those that take
// a processor long by make contract.
func contract(t *testing.T, open func(t *testing.T) bustest.Subject, but ...string) {
	t.Helper()
	without := bustest.NeedRestart // topics are in memory
	if len(but) > 0 {
		without |= bustest.NeedMany
	}
	if !*each {
		without |= bustest.NeedPower
	}
	known := map[string]bool{}
	for _, b := range bustest.Behaviors() {
		known[b.Name] = true
	}
	for _, name := range but {
		if !known[name] {
			t.Errorf("there is no behavior %q", name)
		}
	}
	bustest.Contract(t, bustest.Options{
		Without: without,
		Long:    *each,
		Only:    func(b bustest.Behavior) bool { return !slices.Contains(but, b.Name) },
	}, open)
}

// contractOfRestarts runs what contract leaves out since topics are in memory there.
func contractOfRestarts(t *testing.T, open func(t *testing.T) bustest.Subject, but ...string) {
	t.Helper()
	bustest.Contract(t, bustest.Options{
		Without: bustest.NeedAging | bustest.NeedMany,
		Only: func(b bustest.Behavior) bool {
			return b.Needs&bustest.NeedRestart != 0 && !slices.Contains(but, b.Name)
		},
	}, open)
}

// notTwice is what cannot hold of two events: that the last sequence is the same in
// two topics, also in a dry run, or holds across partitions, that an atomic batch is of one topic, that a
// batch is as large as it may be, that each event of it follows the
// one before directly, and that it is the event's own write whose answer is lost.
var notTwice = append([]string{expectation, dryRuns, expectEach, atomicLimit, chained, noAnswer, grown, acrossGrown}, larger...)

// notAtomic is what cannot hold of an atomic dual write besides. It needs topics that
// share a stream: positions have gaps then, and go on where a topic is made anew, limits count twice, settings are the same
// for all, a batch is stored in runs of which none stores a part, and there are no
// snapshots. It takes no time to be delivered at. And the server says of a batch whose
// stream is gone only that it is incomplete.
var notAtomic = append([]string{
	atomicLimit,
	expectEach,
	chained,
	"a start at a time goes by the time of storage and begins exactly there",
	"a full topic refuses new events or drops its oldest, as declared",
	"an event for later enters its topic at its time",
	dryRuns,
	"a batch that fills its topic stores a prefix and names the rest",
	"a topic deleted under its members ends them with the reason, and publishing fails",
	"the cursor is where everything before is settled, not what was settled last",
	"a position is one of the topic as it was made, not of one that is made anew",
	"a compacted topic has the last event of each key, and of a deleted one nothing",
	"a tombstone that would delete nothing is refused, however it is published",
	"an event that ends by its TTL leaves a tombstone",
	"a snapshot has the state of its topic, and the positions",
	"the state at a time is exact, or says that it is not",
	"options that contradict each other are refused at the call",
}, larger...)

// partitioned are the behaviors of topics with partitions, each of which has a stream
// of its own.
func partitioned() []string {
	var names []string
	for _, b := range bustest.Behaviors() {
		if b.Needs&bustest.NeedPartitions != 0 {
			names = append(names, b.Name)
		}
	}
	return names
}

// each says that all decorators are to be tested one by one as well, which takes some
// minutes: make contract.
var each = flag.Bool("each", false, "run the contract around each decorator, not only around their stack")

func TestContract(t *testing.T) {
	twins := func(a *admin) { a.twins = true }
	shared := func(a *admin) { a.twins, a.share = true, true }
	plain := func(*admin) {}
	for _, c := range []struct {
		name     string
		each     bool // only with the flag
		decorate decoration
		schemas  func(*admin)
		but      []string
	}{
		{"stacked", false, stacked, twins, notTwice},
		{"stacked, without schemas", true, stacked, nil, nil},
		{"Validated", true, validatedOnly, plain, larger},
		{"Normalized", true, normalizedOnly, plain, larger},
		{"DualWrite", true, dualOnly, twins, notTwice},
		{"DualWrite, atomic", true, dualAtomic, shared, append(partitioned(), notAtomic...)},
	} {
		if !c.each || *each {
			t.Run(c.name, func(t *testing.T) { contract(t, decorated(c.decorate, jetbus.MemoryStorage, c.schemas), c.but...) })
		}
		if *each {
			t.Run(c.name+", in files", func(t *testing.T) {
				contractOfRestarts(t, decorated(c.decorate, jetbus.FileStorage, c.schemas), c.but...)
			})
		}
	}
}
