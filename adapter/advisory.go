package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// Groups are durables that any client may use. One that terminates a message of
// a group, or sets a limit of deliveries, loses it for the group without a word
// but an advisory of the server. The bus keeps these and makes dead letters of
// what they tell of; its own terminations carry termPrefix and are passed over.
const (
	advisoryStream  = "JETBUS_ADVISORIES"
	advisoryTopic   = "jetbus.advisories" // as deliveries of them name it; there is no such topic
	advisoryFilter  = "$JS.EVENT.ADVISORY.CONSUMER.*.*.*"
	advisoryMaxAge  = 7 * 24 * time.Hour
	advisoryMaxMsgs = 100_000
)

var advisorySubjects = []string{"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>", "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>"}

// advisory is what the server says of a message that a consumer has dropped.
type advisory struct {
	Stream     string `json:"stream"`
	Consumer   string `json:"consumer"`
	Seq        uint64 `json:"stream_seq"`
	Deliveries int    `json:"deliveries"`
	Reason     string `json:"reason"` // of a termination
	Type       string `json:"type"`
}

// parseAdvisory reads one; anything else is none.
func parseAdvisory(text []byte) (a advisory, ok bool) {
	err := json.Unmarshal(text, &a)
	return a, err == nil && a.Seq > 0
}

// watchAgain is how long the bus waits before it tries again to look after what other clients
// drop.
const watchAgain = 30 * time.Second

// watchAdvisories starts to look after what other clients drop, once a bus. It
// is a net beneath the bus's own promises: where it cannot be spread, for want of
// permissions say, the log tells, and everything else works.
func (b *Bus) watchAdvisories(ctx context.Context) {
	b.mu.Lock()
	begun := b.watching
	b.watching = true
	b.mu.Unlock()
	if begun {
		return
	}
	err := b.subscribeAdvisories(ctx)
	if err != nil {
		b.unwatched(err)
		return
	}
	b.mu.Lock()
	b.blind = false
	b.mu.Unlock()
}

// advisoriesEnded is called when the watch is over. Its stream may be lost, and so the bus's
// others.
func (b *Bus) advisoriesEnded(err error) {
	if err == nil {
		return // the bus is closed
	}
	if !errors.Is(err, jetbus.ErrDenied) { // each that joins would be refused anew
		b.lostKept()
	}
	b.unwatched(err)
}

// unwatched has the advisories watched again after a while, unless that is not allowed. The
// log tells once until they are.
func (b *Bus) unwatched(err error) {
	b.mu.Lock()
	b.watching = false
	over := b.closing || errors.Is(err, jetbus.ErrClosed)
	again := !over && !errors.Is(err, jetbus.ErrDenied)
	if again && !b.waiting {
		b.waiting = true
		b.later.Go(b.watchLater)
	}
	tell := !over && !b.blind && !errors.Is(err, context.Canceled) // by a member that is not to join any more
	b.blind = b.blind || tell
	b.mu.Unlock()
	if tell {
		b.cfg.Logger.Warn("what other clients terminate does not become dead letters", slog.Any("error", err), slog.Bool("again", again))
	}
}

func (b *Bus) watchLater() {
	select {
	case <-time.After(watchAgain):
	case <-b.life.Done():
		return
	}
	b.mu.Lock()
	b.waiting = false
	b.mu.Unlock()
	if b.enterNew(b.life) != nil {
		return
	}
	defer b.calls.end()
	b.watchAdvisories(b.life)
}

func (b *Bus) subscribeAdvisories(ctx context.Context) error {
	stream, err := b.findAdvisories(ctx)
	if err != nil {
		return err
	}
	// Nobody reads retries of advisories: all waits must be such as are held. They are
	// rare, and a request for them lives for a third of the ack timeout.
	o, err := jetbus.SubscribeOptions{MaxAttempts: -1, Backoff: jetbus.Backoff{Max: longDelay}, AckTimeout: 3 * maxPullExpiry}.Normalize()
	if err != nil {
		return err
	}
	t := &topic{config: jetbus.TopicConfig{Name: advisoryTopic}, stream: stream, filter: advisoryFilter, kept: true}
	s := newSubscription(context.WithoutCancel(ctx), b, "jetbus-"+b.cfg.Prefix, b.overlooked, o)
	s.topics, s.ended = 1, b.advisoriesEnded
	if _, err := s.attach(ctx, t, jetbus.Latest(), s.settings()); err != nil {
		s.abandon()
		return err
	}
	return s.start(context.WithoutCancel(ctx))
}

// findAdvisories returns the stream that has the advisories: ours, or one that
// somebody else keeps, since their subjects can be in one stream only.
func (st *streams) findAdvisories(ctx context.Context) (string, error) {
	name, err := st.js.StreamNameBySubject(ctx, advisorySubjects[1])
	if err == nil || !errors.Is(err, jetstream.ErrStreamNotFound) {
		return name, st.translate("find the advisories", st.api+"STREAM.NAMES", err)
	}
	config := st.keptConfig(deadStream, "JetBus: what the server says of dropped messages")
	config.Name, config.Subjects = advisoryStream, advisorySubjects
	config.MaxAge, config.MaxMsgs = advisoryMaxAge, advisoryMaxMsgs
	return advisoryStream, st.keepStream(ctx, config)
}

// overlooked handles one advisory.
func (b *Bus) overlooked(ctx context.Context, d *jetbus.Delivery) error {
	a, ok := parseAdvisory(d.Payload)
	if !ok || strings.HasPrefix(a.Reason, termPrefix) {
		return nil
	}
	l, err := b.droppedLease(ctx, a)
	if l == nil || err != nil {
		return err
	}
	reason, cause := jetbus.DeadMaxDeliver, fmt.Errorf("the server gave up after %d deliveries to other clients", a.Deliveries)
	if strings.HasSuffix(a.Type, ".terminated") {
		reason, cause = jetbus.DeadTerminated, errors.New("another client terminated it: "+a.Reason)
	}
	if err := b.storeDead(ctx, l, reason, cause, nil); err != nil {
		return err
	}
	l.h.noteCount(l, jetbus.DeadLettered, string(reason), cause, a.Deliveries)
	return nil
}

// droppedLease is what the lease on a dropped message was, if it was one of a
// group of this bus and the message is still there.
func (b *Bus) droppedLease(ctx context.Context, a advisory) (*lease, error) {
	info, err := b.js.Consumer(ctx, a.Stream, a.Consumer)
	switch code := apiCode(err); {
	case code == jetstream.JSErrCodeConsumerNotFound || code == jetstream.JSErrCodeStreamNotFound:
		return nil, nil //nolint:nilnil // the group is gone
	case err != nil:
		return nil, b.translate("look up a consumer", b.api+"CONSUMER.INFO."+a.Stream+"."+a.Consumer, err)
	}
	m := info.CachedInfo().Config.Metadata
	name, group := m[metaGroupTopic], m[metaGroup]
	if ours := jetbus.ValidTopic(name) == nil && jetbus.ValidGroup(group) == nil; !ours || jetbus.DeadLetterTopic(name) == "" {
		return nil, nil //nolint:nilnil // nobody's of this bus
	}
	t, err := b.lookup(ctx, name)
	if errors.Is(err, jetbus.ErrNoTopic) {
		return nil, nil //nolint:nilnil // of another prefix, or adopted elsewhere
	}
	if err != nil {
		return nil, ofTopic(name, err)
	}
	if rt := b.retryTopic(t, group); a.Stream == rt.stream {
		t = rt
	}
	if a.Stream != t.stream {
		return nil, nil //nolint:nilnil // of another prefix
	}
	dropped, err := b.leaderMessage(ctx, t.stream, map[string]any{"seq": a.Seq}) // a replica may not have it yet
	if err != nil || dropped.seq == 0 {
		return nil, b.translate("read "+name, b.api+"STREAM.MSG.GET."+t.stream, err)
	}
	l := newLease(t, &dropped.Msg, ackReply{consumer: a.Consumer, deliveries: a.Deliveries, seq: dropped.seq, storedNano: dropped.time.UnixNano()}, 0)
	l.h, l.record = &leaseSet{b: b, group: group}, &record{Failed: a.Deliveries}
	return l, nil
}
