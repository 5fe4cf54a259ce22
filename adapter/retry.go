package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// headerRetry is the header of a stored retry that says where it comes from.
const headerRetry = "Jetbus-Retry"

// retryOrigin is what a retry carries beside the event: where the original is,
// and what is known of the attempts at it.
type retryOrigin struct {
	Stream   string    `json:"stream"`
	Created  time.Time `json:"created,omitzero"` // the stream; set on replays
	Seq      uint64    `json:"seq"`
	Stored   int64     `json:"stored,omitempty"` // nanoseconds since the epoch
	Token    string    `json:"token,omitempty"`  // key token of its subject
	Failed   int       `json:"failed,omitempty"`
	First    time.Time `json:"first,omitzero"`
	Last     time.Time `json:"last,omitzero"`
	Error    string    `json:"error,omitempty"`
	ReplayOf uint64    `json:"replayOf,omitempty"`
	Replays  int       `json:"replays,omitempty"`
	Name     string    `json:"name,omitempty"` // of the retry, where somebody asked for it
}

// parseRetry reads the header; a message without it, or with a broken one, is one
// that somebody else put there: it stands for itself.
func parseRetry(h nats.Header, t *topic, seq uint64, storedNano int64) *retryOrigin {
	var o retryOrigin
	values := h[headerRetry]
	if len(values) == 0 || json.Unmarshal([]byte(values[0]), &o) != nil || o.Failed < 0 || o.Replays < 0 || o.Stream == "" || strings.ContainsAny(o.Stream, ".*> \t\r\n/\\") {
		return &retryOrigin{Stream: t.stream, Seq: seq, Stored: storedNano}
	}
	return &o
}

// Retry implements jetbus.Retrier.
func (b *Bus) Retry(ctx context.Context, group string, e jetbus.Event, o jetbus.RetryOptions) (jetbus.Receipt, error) {
	origin := retryOrigin{Stream: o.Stream, Created: o.StreamCreated, Seq: e.Seq, ReplayOf: o.ReplayOf, Replays: o.Replays, Name: o.Name}
	r := jetbus.Receipt{}
	err := o.Validate()
	if err == nil && e.Seq == 0 {
		err = fmt.Errorf("retry %s: %w: the event has no Seq, which says where it stands in the topic", e.Topic, jetbus.ErrInvalidOption)
	}
	if err == nil {
		err = b.onGroup(ctx, "retry", e.Topic, group, func(ctx context.Context, t *topicGroup) error {
			if origin.Stream == "" {
				origin.Stream = t.stream
			}
			if t.parts != nil {
				var stored bool
				if t, stored, err = b.partForRetry(ctx, t, &e, origin.Name); err != nil || stored {
					r = jetbus.Receipt{Event: e, Duplicate: true}
					return err
				}
			}
			if err := b.awaitRetries(ctx, t); err != nil {
				return err
			}
			r, err = b.storeRetry(ctx, t, e, origin)
			return err
		})
	}
	if err == nil && !r.Duplicate && o.ReplayOf > 0 {
		b.cfg.Observer.Observe(jetbus.Observation{Kind: jetbus.Replayed, Topic: e.Topic, Group: group, ID: e.ID, Seq: e.Seq, Count: o.Replays})
	}
	return r, err
}

// awaitRetries makes sure that somebody will read the retries of a group.
func (b *Bus) awaitRetries(ctx context.Context, t *topicGroup) error {
	rt := b.retryTopic(t.topic, t.group)
	_, err := b.findGroup(ctx, rt, t.group)
	if errors.Is(err, jetbus.ErrNoGroup) || errors.Is(err, jetbus.ErrNoTopic) {
		_, err = b.joinRetries(ctx, rt, t.group, settingsOfGroup(t.info))
	}
	return err
}

// storeRetry stores an event among the retries of a group, once.
func (b *Bus) storeRetry(ctx context.Context, t *topicGroup, e jetbus.Event, origin retryOrigin) (jetbus.Receipt, error) {
	seq := e.Seq
	if _, err := b.complete(ctx, &e, time.Now(), destination{topic: t.topic, subject: t.filter}, true); err != nil {
		return jetbus.Receipt{}, err
	}
	e.Seq = seq
	if t.isPart() {
		e.Partition = t.part.Number
	}
	header, err := json.Marshal(origin)
	if err != nil {
		return jetbus.Receipt{}, err
	}
	m := &nats.Msg{Subject: b.retrySubject(t.name(), t.group, t.inPart(origin.Name)), Header: ce.Encode(&e), Data: e.Payload}
	m.Header[headerRetry] = []string{string(header)}
	m.Header[ce.HeaderMsgID] = []string{jetbus.NewID()} // the condition is what keeps it from being stored twice
	m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{"0"}
	if err := b.fits(m); err != nil {
		return jetbus.Receipt{}, err
	}
	_, err = b.store(ctx, b.retryTopic(t.topic, t.group), m)
	if err != nil && !isWrongSequence(err) {
		return jetbus.Receipt{}, b.publishError(&e, m.Subject, err)
	}
	return jetbus.Receipt{Event: e, Duplicate: err != nil}, nil
}

// Retried implements jetbus.Retrier. What was acknowledged is known to it, also where a
// replica lags: a dead letter may be left out by what it says.
func (b *Bus) Retried(ctx context.Context, topic, group string, names ...string) (map[string]time.Time, error) {
	op := fmt.Sprintf("retried %s/%s", topic, group)
	if err := b.enter(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	if err := errors.Join(jetbus.ValidTopic(topic), jetbus.ValidGroup(group)); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	out := make(map[string]time.Time)
	for part := range slices.Chunk(names, latestStep/4) { // each has three subjects: waiting, due, and in whichever partition
		subjects := make([]string, 0, 3*len(part))
		for _, name := range part {
			if err := (jetbus.RetryOptions{Name: name}).Validate(); err != nil {
				return nil, fmt.Errorf("%s: %w", op, err)
			}
			subjects = append(subjects, b.retrySubject(topic, group, name), b.retrySubject(topic, group, delayToken+"."+name), b.retrySubject(topic, group, "*.*."+name))
		}
		slices.Sort(subjects)
		stream := ownStream(b.cfg.Prefix, retryStream)
		err := b.lastMessages(ctx, stream, slices.Compact(subjects), func(m *nats.Msg, _ uint64, at time.Time) bool {
			out[m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]] = at
			return true
		})
		if err != nil && apiCode(err) != jetstream.JSErrCodeStreamNotFound { // no group has joined yet
			return nil, b.translate(op, b.api+"DIRECT.GET."+stream, err)
		}
	}
	return out, nil
}

// schedule stores what a lease holds among the retries of its group, to come
// back after a while. The name is that of the event, so that there is one retry of
// it, which takes the place of the one before.
func (b *Bus) schedule(ctx context.Context, l *lease, delay time.Duration) error {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	origin, err := b.fullOrigin(ctx, l)
	if err != nil {
		return err
	}
	origin.Failed, origin.First, origin.Last, origin.Error = l.record.Failed, l.record.First, l.record.Last, l.record.Error
	header, err := json.Marshal(origin)
	if err != nil {
		return err
	}
	name := origin.name()
	m := &nats.Msg{Subject: b.retrySubject(l.t.name(), l.h.group, delayToken+"."+name), Header: withoutServers(l.msg.Header), Data: l.msg.Data}
	m.Header[headerSchedule] = []string{"@at " + time.Now().Add(delay).UTC().Format(time.RFC3339Nano)}
	m.Header["Nats-Schedule-Target"] = []string{b.retrySubject(l.t.name(), l.h.group, name)}
	m.Header[headerRetry] = []string{string(header)}
	m.Header[ce.HeaderMsgID] = []string{jetbus.NewID()} // a group made anew may have the same name
	if err := b.fits(m); err != nil {
		return err
	}
	_, err = b.store(ctx, b.retryTopic(l.t, l.h.group), m)
	return err
}

// name is that under which an event waits for its next attempt: it names the
// original, and the retry that it is. No name of RetryOptions has upper case.
func (o *retryOrigin) name() string {
	name := "T" + ce.ShortHash(o.Stream+"\x00"+o.Created.UTC().Format(time.RFC3339Nano)) + "-" + strconv.FormatUint(o.Seq, 10)
	if o.Name != "" {
		name += "-" + o.Name
	}
	return name
}

// fullOrigin is the origin of what a lease holds, with the time its stream was
// made. A stream that is gone has none.
func (srv *server) fullOrigin(ctx context.Context, l *lease) (retryOrigin, error) {
	o := l.origin()
	if !o.Created.IsZero() {
		return o, nil
	}
	info, err := srv.streamInfo(ctx, o.Stream)
	switch {
	case err == nil:
		o.Created = info.Created.UTC()
	case apiCode(err) != jetstream.JSErrCodeStreamNotFound:
		return o, srv.translate("look up stream "+o.Stream, srv.api+"STREAM.INFO."+o.Stream, err)
	}
	return o, nil
}

// done forgets what was kept about an event that the group is done with.
func (rec *records) done(l *lease) {
	rec.dropRecord(l)
	rec.dropRetry(l)
}

// dropRetry removes a retry that the group is done with, unless it is one that
// tells of a replay. It does not wait: what stays ends after 30 days.
func (srv *server) dropRetry(l *lease) {
	if l.retry == nil || l.msg.Subject[strings.LastIndexByte(l.msg.Subject, '.')+1] != 'T' {
		return
	}
	request := `{"no_erase":true,"seq":` + strconv.FormatUint(l.seq, 10) + `}`
	_ = srv.nc.Publish(srv.api+"STREAM.MSG.DELETE."+l.t.stream, []byte(request))
}

// withoutServers copies a message's headers without those that instruct the
// server or that it wrote.
func withoutServers(h nats.Header) nats.Header {
	out := make(nats.Header, len(h)+5)
	maps.Copy(out, h)
	maps.DeleteFunc(out, func(name string, _ []string) bool {
		return strings.HasPrefix(name, "Nats-") && name != ce.HeaderMarker // which makes it a tombstone
	})
	return out
}

// origin is where the event of a lease comes from.
func (l *lease) origin() retryOrigin {
	if l.retry != nil {
		return *l.retry
	}
	o := retryOrigin{Stream: l.t.stream, Seq: l.seq, Stored: l.stored}
	if l.t.config.KeyInSubject {
		o.Token = l.msg.Subject[strings.LastIndexByte(l.msg.Subject, '.')+1:]
	}
	return o
}

// removeRetries removes the retries of a group, or of all groups of a topic.
func (srv *server) removeRetries(ctx context.Context, topic, group string) error {
	name := ownStream(srv.cfg.Prefix, retryStream)
	const op = "remove its retries"
	s, err := srv.js.Stream(ctx, name)
	if apiCode(err) == jetstream.JSErrCodeStreamNotFound {
		return nil
	}
	if err != nil {
		return srv.translate(op, srv.api+"STREAM.INFO."+name, err)
	}
	subjects := srv.retrySubject(topic, group, ">")
	if group == "" {
		subjects = srv.cfg.Prefix + "." + retryToken + "." + ce.KeyToken(topic) + ".>"
	}
	all, err := srv.consumersOf(ctx, name)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	for _, info := range all {
		m := info.Config.Metadata
		if m[metaGroupTopic] != topic || group != "" && m[metaGroup] != group {
			continue
		}
		if err := srv.js.DeleteConsumer(ctx, name, info.Name); err != nil && apiCode(err) != jetstream.JSErrCodeConsumerNotFound {
			return srv.translate(op, srv.api+"CONSUMER.DELETE."+name+"."+info.Name, err)
		}
	}
	return srv.translate(op, srv.api+"STREAM.PURGE."+name, srv.js.purge(ctx, s, subjects))
}

// RemoveEvents implements jetbus.Remover. The stream's leader is asked what is there: of
// what a replica that lags does not have yet, nothing would be removed.
func (b *Bus) RemoveEvents(ctx context.Context, topic string, seqs ...uint64) (int, error) {
	op := "remove events of " + topic
	if err := b.enter(ctx); err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	t, err := b.known(ctx, topic)
	if err == nil && t.adopted() {
		err = fmt.Errorf("%w: the stream of an adopted topic is not changed", jetbus.ErrUnsupported)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	s, err := b.js.Stream(ctx, t.stream)
	if err != nil {
		return 0, b.translate(op, b.api+"STREAM.INFO."+t.stream, err)
	}
	removed := 0
	for _, seq := range seqs {
		did, err := b.removeEvent(ctx, s, t, seq)
		if err != nil {
			return removed, fmt.Errorf("%s: %w", op, err)
		}
		if did {
			removed++
		}
	}
	return removed, nil
}

// removeEvent removes the event at a position, if there is one. The server refuses to
// remove what is gone, and somebody else may have removed it since it was looked for.
func (srv *server) removeEvent(ctx context.Context, s jetstream.Stream, t *topic, seq uint64) (bool, error) {
	op := fmt.Sprintf("event %d", seq)
	there, err := srv.messageAt(ctx, t, seq)
	if err != nil || there.seq == 0 {
		return false, srv.translate(op, srv.api+"STREAM.MSG.GET."+t.stream, err)
	}
	_, refused := repeated(ctx, srv.js, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.DeleteMsg(ctx, seq) })
	if errors.Is(refused, jetstream.ErrMsgDeleteUnsuccessful) {
		if there, err = srv.messageAt(ctx, t, seq); err == nil && there.seq == 0 {
			return false, nil
		}
	}
	return refused == nil, srv.translate(op, srv.api+"STREAM.MSG.DELETE."+t.stream, refused)
}

// partForRetry is the part of a group whose members get a retry of an event: that of
// the event's partition, or, where the topic has grown, that of its key now. stored
// says that there is one of that name, put there before the topic grew.
func (b *Bus) partForRetry(ctx context.Context, t *topicGroup, e *jetbus.Event, name string) (p *topicGroup, stored bool, err error) {
	first, last := t.parts[0].part.Generation, t.parts[len(t.parts)-1].part.Generation
	want := jetbus.Partition{Generation: last, Number: e.Partition}
	if first != last {
		there, err := b.Retried(ctx, t.name(), t.group, name)
		if err != nil || !there[name].IsZero() {
			return nil, err == nil, err
		}
	}
	if first != last || !t.hasPart(want) {
		by, err := b.partitionKey(e, t.topic)
		if err != nil {
			return nil, false, err
		}
		for _, g := range t.generations {
			if g.Generation == last {
				want.Number, err = jetbus.PartitionOf(by, g.Partitions)
			}
		}
		if err != nil {
			return nil, false, err
		}
	}
	for _, p := range t.parts {
		if p.part == want {
			return p, false, nil
		}
	}
	return nil, false, fmt.Errorf("%w: it has not joined partition %s", jetbus.ErrNoGroup, want)
}
