package bustest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// Subject is the bus under test as one behavior sees it: two processes on one
// broker that nobody else uses, or whose topics under [Options].Prefix nobody
// else uses. Who makes it ends it, with t.Cleanup.
type Subject struct {
	// A and B are two instances of the bus under test, each with resources of its
	// own, as two processes have. Topics are not created by use: AutoCreate is off.
	A, B jetbus.Bus
	// Admin is a plain bus on the same broker. It declares topics, and it is how
	// the suite looks at the server's state. It is not tested.
	Admin jetbus.Backend
	// Open makes a further instance on a connection, which it borrows. Needed by
	// [NeedOpen].
	Open func(ctx context.Context, nc *nats.Conn) (ClosingBus, error)
	// Broker is what A, B and Admin are connected to. Needed by [NeedOpen],
	// [NeedPipe] and [NeedRestart].
	Broker Broker
	// MaxPayload is the broker's limit of a message with its headers. Default 1 MiB.
	MaxPayload int
}

// ClosingBus is a bus that its opener closes.
type ClosingBus interface {
	jetbus.Bus
	Close(ctx context.Context) error
}

// Broker is what behaviors do to a broker. An embedded.Broker is one.
type Broker interface {
	nats.InProcessConnProvider
	// Connect opens a connection that comes back after Restart and Kill.
	Connect(o ...nats.Option) (*nats.Conn, error)
	// Restart stops the broker cleanly if it runs, and starts it.
	Restart(ctx context.Context) error
	// Kill ends the broker like a SIGKILL.
	Kill(ctx context.Context) error
}

// Needs are what a behavior needs beyond a [jetbus.Bus], as a set of bits.
type Needs uint

// What a behavior can need.
const (
	NeedBatch      Needs = 1 << iota // A and B are jetbus.Batchers
	NeedReceive                      // A and B are jetbus.Receivers
	NeedStore                        // A and B are jetbus.Stores and jetbus.Readers
	NeedTopics                       // A and B are jetbus.Topics
	NeedFakeTime                     // it lets minutes pass
	NeedOpen                         // Subject.Open, and Subject.Broker for connections
	NeedPipe                         // Subject.Broker gives connections that can be held up
	NeedRestart                      // Subject.Broker can be ended, and its file store outlives it
	NeedMany                         // a broker that bears hundreds of topics, or many changes at once
	NeedAging                        // events age by the test's clock; not so with files in a bubble
	NeedRetry                        // A and B are jetbus.Retriers and jetbus.Removers
	NeedPartitions                   // A and B are jetbus.Partitions
	NeedPower                        // a second of a processor, or more, under the race detector
)

// Options say how the contract is run.
type Options struct {
	// Prefix is in front of the names of all topics. Default "contract".
	Prefix string
	// RealTime runs behaviors outside of bubbles, for subjects with a network.
	// Those with NeedFakeTime are then left out. Default: each behavior runs in
	// a bubble of its own; see [Run].
	RealTime bool
	// Repeats: an event may come again although its handler returned nil, as at-least-once
	// allows where servers elect leaders all the time. Handlers are idempotent then, as
	// those of services are. Default: what was settled does not come again.
	Repeats bool
	// Parallel plays behaviors at once, as many as go test's -parallel says, for subjects
	// that wait most of the time; those that need Subject.Open or do something to the broker
	// are played before, one by one. RealTime only. Default: all are, in their order.
	Parallel bool
	// Without is what the subject does not have: behaviors that need it are left
	// out. What is not named here and missing is a failure. Default: it has all.
	Without Needs
	// Long plays behaviors whose size is not what they promise with more of it: more
	// topics, more events, longer silences. Default: with as much as shows the promise.
	Long bool
	// Only selects behaviors further. Default nil: all.
	Only func(b Behavior) bool
}

// Behavior is one promise of the bus.
type Behavior struct {
	// Name says what is promised.
	Name string
	// Cases are the numbers of the edge cases it covers, in the project's list of
	// those that buses get wrong.
	Cases []int
	// Needs is what it needs beyond a jetbus.Bus.
	Needs Needs

	play func(r *run)
}

// Behaviors returns all behaviors, in the order in which they are tested.
func Behaviors() []Behavior {
	var all []Behavior
	for _, theme := range [][]Behavior{
		startBehaviors, deliveryBehaviors, bytesBehaviors, leaseBehaviors, publishBehaviors, batchBehaviors, faultBehaviors, lifecycleBehaviors, endBehaviors, cursorBehaviors, readBehaviors, tableBehaviors, stateBehaviors, nameBehaviors, settingsBehaviors, limitedBehaviors, deadBehaviors, attemptBehaviors, retryBehaviors, orderBehaviors, partitionBehaviors, partitionGroupBehaviors, modelBehaviors,
	} {
		all = append(all, theme...)
	}
	return all
}

// Contract tests that a bus keeps the promises of package jetbus, each in a
// subtest named after it. open makes the subject of one behavior; in a bubble,
// unless o says otherwise. Behaviors look at the server's state, by
// [Subject].Admin, and not only at what calls return.
func Contract(t *testing.T, o Options, open func(t *testing.T) Subject) {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = "contract"
	}
	if o.RealTime {
		o.Without |= NeedFakeTime
	}
	for i, b := range Behaviors() {
		if b.Needs&o.Without != 0 || o.Only != nil && !o.Only(b) {
			continue
		}
		test := func(t *testing.T) {
			r := &run{T: t, Subject: open(t), ctx: t.Context(), prefix: fmt.Sprintf("%s.b%02d", o.Prefix, i), fake: !o.RealTime, long: o.Long}
			if r.MaxPayload == 0 {
				r.MaxPayload = 1 << 20
			}
			if o.Repeats {
				r.inbox = newInbox()
			}
			if o.RealTime { // the broker lives on
				defer r.tidy()
			}
			b.play(r)
		}
		t.Run(b.Name, func(t *testing.T) {
			if o.RealTime {
				if o.Parallel && b.Needs&(NeedOpen|NeedPipe|NeedRestart) == 0 {
					t.Parallel()
				}
				test(t)
				return
			}
			Run(t, test)
		})
	}
}

// How long the suite waits for what must happen soon: in a bubble, where waiting
// costs nothing, and in real time, where a busy machine takes its time.
const (
	patience     = 20 * time.Second
	realPatience = 3 * time.Minute
)

// awhile is that time. The clock tells: that of a bubble starts in 2000.
func awhile() time.Duration {
	if time.Now().Year() < 2010 {
		return patience
	}
	return realPatience
}

// run is one behavior under test.
type run struct {
	*testing.T
	Subject
	ctx    context.Context // the test's
	prefix string
	fake   bool
	long   bool

	inbox *inbox // see Options.Repeats; nil: what was settled does not come again

	replicated bool // whether it has a topic with replicas, which elect a leader now and then
}

// sized is how many there are of what a behavior has many of: see [Options].Long.
func (r *run) sized(short, long int) int {
	if r.long {
		return long
	}
	return short
}

// tidy deletes the topics of this behavior.
func (r *run) tidy() {
	r.Helper()
	r.eventually("topics are removed", func() error { // a cluster in an election may take longer than a call
		all, err := r.Admin.ListTopics(r.ctx)
		for _, info := range all {
			if strings.HasPrefix(info.Config.Name, r.prefix+".") {
				if derr := r.Admin.DeleteTopic(r.ctx, info.Config.Name); !errors.Is(derr, jetbus.ErrNoTopic) {
					err = errors.Join(err, derr)
				}
			}
		}
		return err
	})
}

// must ends the test if err is one.
func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// pause lets time pass.
func (r *run) pause(d time.Duration) {
	r.Helper()
	linger(r.ctx, d)
	r.must(r.ctx.Err())
}

// lease is an AckTimeout, the given one in fake time. In real time it is longer: a
// busy machine stands still for a second now and then, and no lease may be lost by it.
func (r *run) lease(fake time.Duration) time.Duration {
	if r.fake {
		return fake
	}
	return 4 * fake
}

// linger lets time pass, for handlers.
func linger(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// eventually waits until wrong finds nothing wrong any more. It looks less and less often:
// after 5 ms, and later than that by a twentieth of the time at most.
func (r *run) eventually(what string, wrong func() error) {
	r.Helper()
	for start := time.Now(); ; r.pause(max(5*time.Millisecond, time.Since(start)/20)) {
		err := wrong()
		if err == nil {
			return
		}
		if time.Since(start) > awhile() {
			r.Fatalf("%s: %v", what, err)
		}
	}
}

// topic declares a topic of this behavior and returns its name.
func (r *run) topic(name string) string {
	r.Helper()
	return r.declare(name, jetbus.TopicConfig{})
}

// declare declares a topic of this behavior and returns its name.
func (r *run) declare(name string, c jetbus.TopicConfig) string {
	r.Helper()
	c.Name = r.prefix + "." + name
	info, err := r.Admin.EnsureTopic(r.ctx, c)
	r.must(err)
	r.replicated = r.replicated || info.Config.Replicas > 1
	return c.Name
}

// publish stores an event of each key in a topic, by A, and returns them as stored.
func (r *run) publish(topic string, keys ...string) []jetbus.Event {
	r.Helper()
	out := make([]jetbus.Event, len(keys))
	for i, key := range keys {
		receipt, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: key, Payload: []byte(`{"key":"` + key + `"}`)})
		r.must(err)
		if receipt.Event.Seq == 0 || receipt.Duplicate {
			r.Fatalf("receipt of a new event: %+v", receipt)
		}
		out[i] = receipt.Event
	}
	return out
}

// keys are n keys: 0, 1, 2 and so on.
func keys(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(i)
	}
	return out
}

// subscribe joins a group until the end of the test.
func (r *run) subscribe(bus jetbus.Subscriber, topic, group string, h jetbus.Handler, o jetbus.SubscribeOptions) jetbus.Subscription {
	r.Helper()
	s, err := bus.Subscribe(r.ctx, topic, group, h, o)
	r.must(err)
	return s
}

// stop stops a subscription.
func (r *run) stop(s jetbus.Subscription) {
	r.Helper()
	r.must(s.Stop(r.ctx))
}

// stored returns what the topic holds at the server.
func (r *run) stored(topic string) []jetbus.Event {
	r.Helper()
	var out []jetbus.Event
	for e, err := range r.Admin.Scan(r.ctx, topic, jetbus.ScanQuery{}) {
		r.must(err)
		out = append(out, e)
	}
	return out
}

// group returns the group as it is at the server.
func (r *run) group(topic, group string) jetbus.GroupInfo {
	r.Helper()
	g, err := r.findGroup(topic, group)
	r.must(err)
	return g
}

func (r *run) findGroup(topic, group string) (jetbus.GroupInfo, error) {
	all, err := r.Admin.Groups(r.ctx, topic)
	if err != nil {
		return jetbus.GroupInfo{}, err
	}
	for _, g := range all {
		if g.Group == group {
			return g, nil
		}
	}
	return jetbus.GroupInfo{}, fmt.Errorf("the server has no group %s of topic %s", group, topic)
}

// settled waits until the server says that everything up to seq is settled, and
// nothing is held or left to deliver.
func (r *run) settled(topic, group string, seq uint64) {
	r.Helper()
	r.reaches(topic, group, func(g jetbus.GroupInfo) bool { return g.Held == 0 && g.Pending == 0 && g.AckedSeq >= seq },
		fmt.Sprintf("settled up to %d", seq))
}

// has checks group g at the server as it is when all is quiet. In real time it waits:
// in a cluster the group's leader hears of an event a moment after its publisher does.
func (r *run) has(topic string, ok func(jetbus.GroupInfo) bool, what string) {
	r.Helper()
	const group = "g"
	if !r.fake {
		r.reaches(topic, group, ok, what)
		return
	}
	synctest.Wait()
	if g := r.group(topic, group); !ok(g) {
		r.Errorf("group %s is to have %s: the server has %+v", group, what, g)
	}
}

// reaches waits until the group at the server is as it should be.
func (r *run) reaches(topic, group string, ok func(jetbus.GroupInfo) bool, what string) {
	r.Helper()
	r.eventually("group "+group+" is to have "+what, func() error {
		g, err := r.findGroup(topic, group)
		if err == nil && !ok(g) {
			err = fmt.Errorf("the server has %+v", g)
		}
		return err
	})
}
