package adapter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// Read implements jetbus.Reader. A message that is no event is skipped, and the
// observer told.
func (b *Bus) Read(ctx context.Context, topics []string, o jetbus.ReadOptions) iter.Seq2[jetbus.Event, error] {
	return sequence(ctx, b, fmt.Sprintf("read %v", topics), func(ctx context.Context, yield func(jetbus.Event, error) bool) error {
		return b.read(ctx, topics, o, yield)
	})
}

// sequence makes the iterator of a call that hands out what it finds. Close does
// not wait for the caller's loop, it ends it. An error of run is the last pair.
func sequence[T any](ctx context.Context, b *Bus, op string, run func(context.Context, func(T, error) bool) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err := b.enter(ctx)
		if err == nil {
			b.calls.Done()
			tied, untie := b.tie(ctx)
			defer untie()
			err = run(tied, yield)
		}
		if err != nil {
			var none T
			yield(none, fmt.Errorf("%s: %w", op, err))
		}
	}
}

// place is where reading of a topic begins.
type place struct {
	t    *topic
	next uint64
	end  uint64 // the last one present now
}

func (b *Bus) read(ctx context.Context, topics []string, o jetbus.ReadOptions, yield func(jetbus.Event, error) bool) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if len(topics) == 0 {
		return fmt.Errorf("%w: no topics", jetbus.ErrInvalidOption)
	}
	if o.From.Kind == "" && !o.Follow {
		o.From = jetbus.Earliest()
	}
	places, err := b.places(ctx, topics, o)
	if err != nil {
		return err
	}
	if o.Follow {
		return b.follow(ctx, places, o.Filter, yield)
	}
	for _, p := range places {
		stopped := false
		err := b.eachEvent(ctx, p.t, p.next, p.end, func(e *jetbus.Event) bool {
			stopped = o.Filter.Match(e) && !yield(*e, nil)
			return !stopped
		})
		if err != nil || stopped {
			return err
		}
	}
	return nil
}

// places finds where reading begins and, without Follow, ends.
func (b *Bus) places(ctx context.Context, topics []string, o jetbus.ReadOptions) ([]place, error) {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	for name := range o.After {
		if !slices.Contains(topics, name) {
			return nil, fmt.Errorf("%w: After names topic %s, which is not read", jetbus.ErrInvalidOption, name)
		}
	}
	out := make([]place, len(topics))
	for i, name := range topics {
		if slices.Contains(topics[:i], name) {
			return nil, fmt.Errorf("%w: topic %s is named twice", jetbus.ErrInvalidOption, name)
		}
		t, err := b.lookup(ctx, name)
		if err != nil {
			return nil, err
		}
		from := o.From
		if seq, ok := o.After[name]; ok {
			from = jetbus.AfterSeq(seq)
		}
		if out[i].next, err = b.startSequence(ctx, t, from); err != nil {
			return nil, err
		}
		if out[i].end, err = b.endSequence(ctx, t); err != nil {
			return nil, err
		}
		out[i].t = t
	}
	return out, nil
}

// item is what a tail hands over.
type item struct {
	event jetbus.Event
	err   error
}

// follow reads all places at once until ctx ends or the caller stops.
func (b *Bus) follow(ctx context.Context, places []place, f jetbus.Filter, yield func(jetbus.Event, error) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	items := make(chan item)
	var tails sync.WaitGroup
	defer tails.Wait()
	defer cancel()
	for _, p := range places {
		tails.Go(func() {
			err := (&tail{b: b, t: p.t, next: p.next}).run(ctx, func(e jetbus.Event) bool {
				if !f.Match(&e) {
					return true
				}
				select {
				case items <- item{event: e}:
					return true
				case <-ctx.Done():
					return false
				}
			})
			select {
			case items <- item{err: err}:
			case <-ctx.Done():
			}
		})
	}
	for {
		select {
		case it := <-items:
			if it.err != nil {
				return it.err
			}
			if !yield(it.event, nil) {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tail follows one topic in order, with a consumer of its own at the server that
// acknowledges nothing and goes away by itself. When a message is missing, the
// server is silent or the consumer is gone, a new one takes over behind the last
// event that was read.
type tail struct {
	b    *Bus
	t    *topic
	next uint64
}

const (
	tailBatch     = 500
	pullExpiry    = 30 * time.Second
	pullHeartbeat = 5 * time.Second
	tailInactive  = 2 * time.Minute // the server removes a consumer nobody pulls from
)

// errTailBroken makes a tail start anew.
var errTailBroken = errors.New("the reader's consumer broke off")

func (r *tail) run(ctx context.Context, emit func(jetbus.Event) bool) error {
	messages := make(chan *nats.Msg, tailBatch+16)
	sub, err := r.b.nc.ChanSubscribe(r.b.nc.NewInbox(), messages)
	if err != nil {
		return r.b.translate("read "+r.t.name(), "", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // closed with the connection
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		lost, err := r.b.link.wait(ctx)
		if err != nil {
			return err
		}
		before := r.next
		if err = r.attach(ctx, sub.Subject, messages, lost, emit); err == nil {
			return nil
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, jetbus.ErrNoTopic), errors.Is(err, jetbus.ErrDenied), errors.Is(err, jetbus.ErrClosed):
			return err
		}
		if r.next > before {
			wait = publishRetry
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// attach reads by one consumer until it breaks off, or emit returns false.
func (r *tail) attach(ctx context.Context, inbox string, messages chan *nats.Msg, lost <-chan struct{}, emit func(jetbus.Event) bool) error {
	bounded, cancel := r.b.bound(ctx)
	defer cancel()
	c, err := r.b.js.CreateConsumer(bounded, r.t.stream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(r.next, 1), FilterSubject: r.t.filter,
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: tailInactive, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return r.b.translate("read "+r.t.name(), r.b.api+"CONSUMER.CREATE."+r.t.stream, err)
	}
	name := c.CachedInfo().Name
	defer r.remove(name)
	silence := time.NewTimer(2 * pullHeartbeat)
	defer silence.Stop()
	var asked int
	var seen uint64 // deliveries of this consumer
	for {
		if asked == 0 {
			asked = tailBatch
			if err := r.b.nc.PublishRequest(r.b.api+"CONSUMER.MSG.NEXT."+r.t.stream+"."+name, inbox, pullBody(asked, pullExpiry, pullHeartbeat)); err != nil {
				return errTailBroken
			}
		}
		select {
		case m := <-messages:
			silence.Reset(2 * pullHeartbeat)
			a, ok := parseAckReply(m.Reply)
			switch {
			case !ok:
				if asked, err = tailStatus(m, asked); err != nil {
					return err
				}
				continue
			case a.consumer != name: // of the one before
				continue
			case a.consumed != seen+1:
				return errTailBroken
			}
			asked, seen, r.next = asked-1, seen+1, a.seq+1
			if e, ok := r.b.decodeOrSkip(r.t, m, r.t.storedAt(m.Subject, a.seq, time.Unix(0, a.storedNano))); ok && !emit(e) {
				return nil
			}
			silence.Reset(2 * pullHeartbeat) // the server was not silent while the event was looked at
		case <-silence.C:
			return errTailBroken
		case <-lost:
			return errTailBroken
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tailStatus handles what the server says instead of an event: it returns how
// many events are still asked for, or that the consumer is of no more use.
func tailStatus(m *nats.Msg, asked int) (int, error) {
	switch m.Header.Get("Status") {
	case "100":
		return asked, nil
	case "408", "404":
		if n, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages")); err == nil {
			return max(asked-n, 0), nil
		}
		return 0, nil
	}
	return 0, errTailBroken
}

// remove takes the consumer away at once, without an answer; otherwise the server does
// so after a while.
func (r *tail) remove(name string) {
	if r.b.link.isUp() {
		_ = r.b.nc.Publish(r.b.api+"CONSUMER.DELETE."+r.t.stream+"."+name, nil) // a connection that is closing removes it too, later
	}
}

// pullBody is the body of a pull request for n messages.
func pullBody(n int, expires, heartbeat time.Duration) []byte {
	b := make([]byte, 0, 96)
	b = strconv.AppendInt(append(b, `{"batch":`...), int64(n), 10)
	b = strconv.AppendInt(append(b, `,"expires":`...), int64(expires), 10)
	if heartbeat > 0 {
		b = strconv.AppendInt(append(b, `,"idle_heartbeat":`...), int64(heartbeat), 10)
	}
	return append(b, '}')
}
