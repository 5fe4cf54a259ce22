package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// Read implements jetbus.Reader. A message that is no event is skipped, and the
// observer told.
func (b *Bus) Read(ctx context.Context, topics []string, o jetbus.ReadOptions) iter.Seq2[jetbus.Event, error] {
	return sequence(ctx, b, strings.TrimSpace("read "+strings.Join(topics, ", ")), func(ctx context.Context, yield func(jetbus.Event, error) bool) error {
		return b.read(ctx, topics, o, yield)
	})
}

// sequence makes the iterator of a call that hands out what it finds. Close does
// not wait for the caller's loop, it ends it. An error of run is the last pair.
func sequence[T any](ctx context.Context, b *Bus, op string, run func(context.Context, func(T, error) bool) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err := b.enter(ctx)
		if err == nil {
			b.calls.end()
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
	from jetbus.Start

	created time.Time         // when the stream was created
	last    jetbus.Checkpoint // the message that must still be there when reading resumes; zero: none
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
		err := b.toEnd(ctx, p, func(e *jetbus.Event) bool {
			stopped = !p.from.Excludes(e) && o.Filter.Match(e) && !yield(*e, nil)
			return !stopped
		})
		if err != nil || stopped {
			if ctx.Err() == nil { // else it is no topic's
				err = ofOne(len(places), p.t.name(), err)
			}
			return err
		}
	}
	return nil
}

// longRead is how many events, or gaps between them, are worth a consumer of
// their own: the server sends three times as many by one as by direct gets, and
// takes a few requests more to begin.
const longRead = 4 * scanStep

// toEnd reads a topic up to the last event that was present. Where a consumer
// does not work, which direct gets do not need, it goes on without.
func (b *Bus) toEnd(ctx context.Context, p place, f func(*jetbus.Event) bool) error {
	for p.end >= p.next && p.end-p.next >= longRead {
		r := &tail{b: b, t: p.t, next: p.next, end: p.end, created: p.created, last: p.last}
		stopped := false
		err := r.once(ctx, func(e jetbus.Event) bool {
			stopped = !f(&e)
			return !stopped
		})
		if err == nil || stopped {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, jetbus.ErrPositionUnknown) {
			return err
		}
		if r.next == p.next {
			break
		}
		p.next, p.last = r.next, r.last
	}
	return b.eachEvent(ctx, p.t, p.next, p.end, scanStep, f)
}

// places finds where reading begins and, without Follow, ends.
func (b *Bus) places(ctx context.Context, topics []string, o jetbus.ReadOptions) ([]place, error) {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	for _, name := range slices.Concat(slices.Collect(maps.Keys(o.After)), slices.Collect(maps.Keys(o.Last)), slices.Collect(maps.Keys(o.Created))) {
		if !slices.Contains(topics, name) {
			return nil, fmt.Errorf("%w: After, Last or Created names topic %s, which is not read", jetbus.ErrInvalidOption, name)
		}
	}
	out := make([]place, len(topics))
	for i, name := range topics {
		if slices.Contains(topics[:i], name) {
			return nil, fmt.Errorf("%w: topic %s is named twice", jetbus.ErrInvalidOption, name)
		}
		t, err := b.lookup(ctx, name)
		if err == nil {
			err = o.Last[name].Verify(ctx, b, name)
		}
		if err == nil {
			out[i], err = b.place(ctx, t, o)
		}
		if err != nil {
			return nil, ofOne(len(topics), name, err)
		}
	}
	return out, nil
}

// place finds where the reading of a topic begins and, without Follow, where it ends.
func (dur *durables) place(ctx context.Context, t *topic, o jetbus.ReadOptions) (place, error) {
	p := place{t: t, last: o.Last[t.name()]}
	from := o.From
	if p.last.Seq > 0 {
		from = jetbus.AfterSeq(p.last.Seq)
	}
	if seq, ok := o.After[t.name()]; ok {
		from = jetbus.AfterSeq(seq)
	}
	p.from = from
	var err error
	if p.next, err = dur.startSequence(ctx, t, from); err != nil {
		return p, err
	}
	info, err := dur.streamInfo(ctx, t.stream)
	if err != nil {
		return p, dur.translate("", dur.api+"STREAM.INFO."+t.stream, err)
	}
	// This comes after the position was looked up, so it detects a stream that was
	// re-created before that.
	if at, ok := o.Created[t.name()]; ok && at.UnixMilli() != info.Created.UnixMilli() {
		return p, madeAnew(info)
	}
	p.end, p.created = info.State.LastSeq, info.Created
	if o.Follow {
		p.last, err = dur.identify(ctx, &p, info.State.LastTime)
	}
	return p, err
}

// identify returns a checkpoint of the position after which a reader begins to follow a topic. The newest event that
// was read may be older, for example in a shared stream. Then a restore could keep this event and lose later messages
// unnoticed. So identify takes the message at the position, of any topic of the stream. If it was removed, the
// checkpoint has the time of the next one, which is not earlier.
func (dur *durables) identify(ctx context.Context, p *place, lastTime time.Time) (jetbus.Checkpoint, error) {
	at := p.next - 1
	known := p.last.Seq > at || p.last.Seq == at && !p.last.Stored.IsZero()
	if at == 0 || known || p.t.config.SnapshotOf != "" {
		return p.last, nil
	}
	end := jetbus.Checkpoint{Seq: p.end, Stored: lastTime}
	if at >= p.end {
		return end, nil
	}
	m, err := dur.leaderMessage(ctx, p.t.stream, map[string]any{"seq": at, "next_by_subj": ">"})
	if err != nil || m.seq == 0 { // everything from there on was removed
		return end, dur.translate("", dur.api+"STREAM.MSG.GET."+p.t.stream, err)
	}
	return jetbus.Checkpoint{Seq: at, Stored: m.time}, nil
}

func madeAnew(info *jetstream.StreamInfo) error {
	return fmt.Errorf("%w: the topic was made anew at %s", jetbus.ErrPositionUnknown, info.Created.Format(time.RFC3339Nano))
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
			err := (&tail{b: b, t: p.t, next: p.next, created: p.created, last: p.last}).run(ctx, func(e jetbus.Event) bool {
				if p.from.Excludes(&e) || !f.Match(&e) {
					return true
				}
				select {
				case items <- item{event: e}:
					return true
				case <-ctx.Done():
					return false
				}
			})
			if ctx.Err() == nil { // else it is no topic's
				err = ofOne(len(places), p.t.name(), err)
			}
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

// tail reads one topic in order, with its own server-side consumer that needs no
// acknowledgements and expires when it is not used. If a message is missing, the server
// is silent or the consumer is gone, a new consumer starts after the last event that was
// read, provided that the stream is still the stream to which the position belongs.
type tail struct {
	b       *Bus
	t       *topic
	next    uint64
	end     uint64            // the last sequence to read; 0: no end
	created time.Time         // when the stream was created; zero: not known yet
	last    jetbus.Checkpoint // the message that must still be there when reading resumes; zero: none
	scan    *latestScan       // at each start, begin with the last event of each key; nil: begin with next
	bytes   int64             // that a request may return; 0: as many as its window allows
}

const (
	tailBatch     = 500 // events that are requested and not read yet, at most
	pullExpiry    = 30 * time.Second
	pullHeartbeat = 5 * time.Second
	tailInactive  = 2 * time.Minute // the server removes a consumer without pull requests
)

// errTailBroken makes a tail start anew.
var errTailBroken = errors.New("the reader's consumer broke off")

func (r *tail) run(ctx context.Context, emit func(jetbus.Event) bool) error {
	sub, messages, err := r.subscribe()
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // closed with the connection
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		lost, err := r.b.link.Wait(ctx)
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
		case errors.Is(err, jetbus.ErrNoTopic), errors.Is(err, jetbus.ErrDenied), errors.Is(err, jetbus.ErrClosed), errors.Is(err, jetbus.ErrPositionUnknown):
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

// once is run that ends when its consumer breaks off.
func (r *tail) once(ctx context.Context, emit func(jetbus.Event) bool) error {
	sub, messages, err := r.subscribe()
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // closed with the connection
	bounded, cancel := r.b.bound(ctx)
	lost, err := r.b.link.Wait(bounded)
	cancel()
	if err != nil {
		return err
	}
	return r.attach(ctx, sub.Subject, messages, lost, emit)
}

// subscribe makes the inbox that events come to, with room for all that are asked
// for and for what the server says of the requests.
func (r *tail) subscribe() (*nats.Subscription, chan *nats.Msg, error) {
	messages := make(chan *nats.Msg, tailBatch+32)
	sub, err := r.b.nc.ChanSubscribe(r.b.nc.NewInbox()+".*", messages)
	if err != nil {
		return nil, nil, r.b.translate("", "", err)
	}
	return sub, messages, nil
}

// attach reads with one consumer until the consumer breaks off, emit returns false, or
// everything is read.
func (r *tail) attach(ctx context.Context, inbox string, messages chan *nats.Msg, lost <-chan struct{}, emit func(jetbus.Event) bool) error {
	c, err := r.create(ctx, lost)
	if err != nil {
		return err
	}
	name := c.CachedInfo().Name
	defer r.remove(name)
	if err := r.same(ctx, lost); err != nil {
		return err
	}
	if done, err := r.begins(ctx, c.CachedInfo().NumPending); done || err != nil {
		return err
	}
	at, reply := r.b.pullPoint(r.t.stream, name), strings.TrimSuffix(inbox, "*")+name
	silence := time.NewTimer(denialCheck)
	defer silence.Stop()
	checked := false // whether the request was refused
	window := tailWindow{used: &r.b.readAhead}
	defer window.close()
	pulls := tailPulls{bytes: cmp.Or(r.bytes, window.bytes())}
	if r.scan != nil { // in a scan of last events, the server would drop an event that does not fit into the request
		pulls.bytes, pulls.most = 0, scanFirst
	}
	for {
		if o := pulls.request(); o.events > 0 {
			if err := at.ask(reply, o); err != nil {
				return errTailBroken
			}
		}
		select {
		case m := <-messages:
			silence.Reset(2 * pullHeartbeat)
			checked = true
			a, ok := parseAckReply(m.Reply)
			switch {
			case !ok && m.Subject != reply: // the end of a request to the consumer before
				continue
			case !ok:
				word := readPullWord(m)
				idle, err := pulls.status(word)
				if err != nil {
					return err
				}
				if word.kind == pullFull && r.bytes == 0 && len(messages) == 0 { // the reader waits for the server
					window.grow()
					pulls.bytes = window.bytes()
				}
				if idle {
					if done, err := r.waits(ctx); done || err != nil {
						return err
					}
				}
				continue
			case a.consumer != name: // of the previous consumer
				continue
			case a.consumed != pulls.seen+1:
				return errTailBroken
			case r.end > 0 && a.seq > r.end:
				return nil
			}
			pulls.event()
			if r.scan != nil {
				pulls.fit(m.Size())
			}
			r.next = a.seq + 1
			e, ok := r.b.readEvent(r.t, m, a.seq, time.Unix(0, a.storedNano))
			r.note(&e, a)
			if ok && !emit(e) {
				return nil
			}
			if done, err := r.passed(ctx, a); done || err != nil {
				return err
			}
			silence.Reset(2 * pullHeartbeat) // the server was not silent while the event was looked at
		case <-silence.C:
			switch {
			case r.b.link.Refused(at.subject, time.Time{}): // of this consumer alone
				return noPermission(at.subject)
			case checked:
				return errTailBroken
			}
			checked = true
			silence.Reset(2*pullHeartbeat - denialCheck)
		case <-lost:
			return errTailBroken
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// begins reports whether there is nothing to read, where a consumer begins that
// has so many messages for now.
func (r *tail) begins(ctx context.Context, pending uint64) (done bool, err error) {
	switch {
	case r.scan != nil:
		return r.scan.begin(ctx, pending)
	case pending == 0:
		return r.waits(ctx)
	}
	return false, nil
}

// passed reports whether the message that was just read is the last one.
func (r *tail) passed(ctx context.Context, a ackReply) (done bool, err error) {
	switch {
	case r.scan != nil:
		return r.scan.passed(ctx, a)
	case a.pending == 0:
		return r.waits(ctx)
	}
	return r.end > 0 && a.seq >= r.end, nil
}

// waits reports whether there is nothing more to read where nothing comes for
// now: the rest may have been removed. A replica that lags has it later, so it is
// the stream's leader that is asked.
func (r *tail) waits(ctx context.Context) (done bool, err error) {
	switch {
	case r.scan != nil:
		return r.scan.rest(ctx)
	case r.end == 0:
		return false, nil
	case r.next > r.end:
		return true, nil
	}
	ctx, cancel := r.b.bound(ctx)
	defer cancel()
	first, err := r.b.firstFrom(ctx, r.t, r.next)
	return first == 0 || first > r.end, err
}

// create makes a consumer. A request that is on its way when the connection
// breaks, or that the server refuses, is not answered, and not waited for.
func (r *tail) create(ctx context.Context, lost <-chan struct{}) (jetstream.Consumer, error) {
	config := jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(r.next, 1), FilterSubject: r.t.filter,
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: tailInactive, MemoryStorage: true, Replicas: 1,
	}
	if r.scan != nil {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverLastPerSubjectPolicy, 0
	}
	subject := r.b.api + "CONSUMER.CREATE." + r.t.stream + "." // the consumer's name follows
	ctx, cancel := r.b.bound(ctx)
	defer cancel()
	ctx, release := untilLost(ctx, lost)
	defer release()
	ctx, done := r.b.guard(ctx, subject)
	defer done()
	c, err := r.b.js.CreateConsumer(ctx, r.t.stream, config)
	return c, r.b.translate("", subject, err)
}

// same checks that the stream is still the one that was read before, with the same
// history. If the stream is created again or restored after this check, the consumer is
// lost.
func (r *tail) same(ctx context.Context, lost <-chan struct{}) error {
	ctx, cancel := r.b.bound(ctx)
	defer cancel()
	ctx, release := untilLost(ctx, lost)
	defer release()
	info, err := r.b.streamInfo(ctx, r.t.stream)
	if err != nil {
		return r.b.translate("", r.b.api+"STREAM.INFO."+r.t.stream, err)
	}
	if r.created.IsZero() {
		r.created = info.Created
	}
	switch {
	case !r.created.Equal(info.Created):
		return madeAnew(info)
	case r.next > info.State.LastSeq+1:
		return &jetbus.RestoredError{
			Topic: r.t.name(), Checkpoint: jetbus.Checkpoint{Seq: r.next - 1}, Why: fmt.Sprintf("the topic ends at %d", info.State.LastSeq),
		}
	}
	if info.State.LastSeq == r.last.Seq && info.State.LastTime.Equal(r.last.Stored) {
		return nil
	}
	return r.last.Verify(ctx, r.b, r.t.name())
}

// note records the newest message that was read; e is zero if the message is no event. Positions in a snapshot belong
// to another topic and are not recorded.
func (r *tail) note(e *jetbus.Event, a ackReply) {
	if a.seq > r.last.Seq && r.t.config.SnapshotOf == "" {
		r.last = jetbus.Checkpoint{Seq: a.seq, ID: e.ID, Stored: time.Unix(0, a.storedNano)}
	}
}

// remove deletes the consumer immediately, without waiting for an answer; otherwise the
// server removes it after a while.
func (r *tail) remove(name string) {
	if r.b.link.IsUp() {
		_ = r.b.nc.Publish(r.b.api+"CONSUMER.DELETE."+r.t.stream+"."+name, nil) // when the connection closes, the server removes it later
	}
}
