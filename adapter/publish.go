package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// Waits between tries of a publish that the server could not take for now.
const (
	publishRetry    = 50 * time.Millisecond
	publishRetryMax = time.Second
)

// Publish implements jetbus.Publisher.
func (b *Bus) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	began := time.Now()
	r, err := b.publish(ctx, &e, o, began)
	if _, named := errors.AsType[*jetbus.PublishError](err); err != nil && !named {
		err = fmt.Errorf("publish %s: %w", e.Topic, err)
	}
	if b.cfg.Observer != nil && !isDryRun(o) {
		what := jetbus.Observation{Kind: jetbus.Published, Topic: e.Topic, ID: e.ID, Seq: r.Event.Seq, Count: 1, Duration: time.Since(began), Err: err, Version: e.Headers[jetbus.HeaderSchemaVersion]}
		if err != nil {
			what.Kind = jetbus.PublishFail
		}
		b.cfg.Observer(what)
	}
	return r, err
}

func (b *Bus) publish(ctx context.Context, e *jetbus.Event, o []jetbus.PublishOptions, now time.Time) (jetbus.Receipt, error) {
	if err := b.enter(ctx); err != nil {
		return jetbus.Receipt{}, err
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	var options jetbus.PublishOptions
	switch len(o) {
	case 0:
	case 1:
		options = o[0]
	default:
		return jetbus.Receipt{}, fmt.Errorf("%w: %d PublishOptions given, pass one", jetbus.ErrInvalidOption, len(o))
	}
	named := e.ID != "" // it may be said again
	to, m, err := b.message(ctx, e, options, now)
	if b.lookAgain(ctx, err, *e) {
		to, m, err = b.message(ctx, e, options, now)
	}
	if err != nil {
		return jetbus.Receipt{}, err
	}
	if err := b.eventFits(m); err != nil {
		return jetbus.Receipt{}, err
	}
	if options.DryRun {
		if err := b.toProbe(&to, m); err != nil {
			return jetbus.Receipt{}, err
		}
	}
	ack, err := b.storeMoving(ctx, to.topic, m, options.DryRun, func(fresh *topic) error {
		if err := b.moveTo(fresh, e, &to); err != nil {
			return err
		}
		m.Subject, m.Header, m.Data = to.subject, ce.Encode(e), e.Payload
		if err := b.instruct(&to, m, e, options, now); err != nil || !options.DryRun {
			return err
		}
		return b.toProbe(&to, m)
	})
	if named && isWrongSequence(err) {
		short, cancel := context.WithTimeout(ctx, askTimeout) // who may not ask hears nothing
		defer cancel()
		if seq, found := b.storedBefore(short, to.topic, m); found { // by an earlier call
			ack, err = pubAck{seq: seq, duplicate: true}, nil
		}
	}
	if err != nil {
		failed := b.publishError(e, m.Subject, err)
		if want := options.ExpectLastSeq; want != nil && errors.Is(failed, jetbus.ErrWrongSequence) {
			failed.Err = fmt.Errorf("key %q: %w, not %d", e.Key, failed.Err, *want)
		}
		return jetbus.Receipt{}, failed
	}
	r := jetbus.Receipt{Event: *e, Duplicate: ack.duplicate, Scheduled: m.Header[headerSchedule] != nil}
	// A single server checks schedules before it looks for duplicates.
	if options.DryRun && r.Scheduled && named && !r.Duplicate && !to.topic.elects {
		_, r.Duplicate, err = b.dedupeLookup(ctx, to.topic, e.ID)
		if err != nil {
			return jetbus.Receipt{}, b.publishError(e, m.Subject, err)
		}
	}
	if !r.Scheduled {
		r.Event.Seq = ack.seq
	}
	return r, nil
}

// message completes an event and builds the message that stores it.
func (b *Bus) message(ctx context.Context, e *jetbus.Event, o jetbus.PublishOptions, now time.Time) (destination, *nats.Msg, error) {
	to, err := b.complete(ctx, e, now, destination{}, !o.DryRun)
	if err != nil {
		return to, nil, err
	}
	m := &nats.Msg{Subject: to.subject, Header: ce.Encode(e), Data: e.Payload}
	return to, m, b.instruct(&to, m, e, o, now)
}

// lookAgain is called after events were refused without a request. If that depends on settings of their topics, which
// may have changed since the bus looked the topics up, it asks the server for the topics. It reports whether to try
// once more.
func (st *streams) lookAgain(ctx context.Context, refused error, events ...jetbus.Event) bool {
	if !errors.Is(refused, jetbus.ErrUnsupported) && !errors.Is(refused, jetbus.ErrNeedsKeySubject) && !errors.Is(refused, jetbus.ErrConflict) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	asked := map[string]bool{}
	for i := range events {
		topic := events[i].Topic
		if asked[topic] {
			continue
		}
		asked[topic] = true
		if _, _, err := st.inspect(ctx, topic); err != nil && !errors.Is(err, jetbus.ErrNoTopic) {
			return false // the server did not answer, or the batch has an event that is not valid
		}
	}
	return true
}

// destination is where an event is stored.
type destination struct {
	topic     *topic
	subject   string
	tombstone bool // the event deletes its key
}

// complete checks an event, fills in what it does not say, and returns where it
// is stored. last is the destination of the event before, if there is one: what
// is the same is not made again. create is as in lookupAt.
func (b *Bus) complete(ctx context.Context, e *jetbus.Event, now time.Time, last destination, create bool) (destination, error) {
	if err := e.Validate(); err != nil {
		return destination{}, err
	}
	to := last
	if to.topic == nil || to.topic.name() != e.Topic {
		t, err := b.lookupAt(ctx, e.Topic, now, create)
		if err != nil {
			return destination{}, err
		}
		to = destination{topic: t}
	}
	partitioned := to.topic.generations != nil
	if !partitioned && (to.subject == "" || to.topic.config.KeyInSubject) {
		var err error
		if to.subject, err = to.topic.subject(b.cfg.Prefix, e.Key); err != nil {
			return destination{}, err
		}
	}
	to.tombstone = false
	if to.topic.tombstone != nil || e.Headers != nil {
		if err := b.checkTombstone(ctx, e, &to); err != nil {
			return destination{}, err
		}
	}
	if e.ID == "" {
		e.ID = jetbus.NewID()
	}
	if e.SID == "" {
		e.SID = b.cfg.SID
	}
	if e.Time.IsZero() {
		e.Time = now
	}
	e.Time = e.Time.Truncate(time.Millisecond).UTC()
	e.Partition, e.Seq, e.Stored = jetbus.NoPartition, 0, time.Time{}
	if partitioned { // an event without a key goes by its ID
		if err := b.route(e, &to); err != nil {
			return destination{}, err
		}
	}
	return to, nil
}

// instruct adds to a message what makes it a tombstone, if it is one, and what the options
// ask of the server.
func (srv *server) instruct(to *destination, m *nats.Msg, e *jetbus.Event, o jetbus.PublishOptions, now time.Time) error {
	if to.tombstone {
		if err := to.bury(m.Header, o, now); err != nil {
			return err
		}
	}
	if o == (jetbus.PublishOptions{}) {
		return nil
	}
	if err := o.Validate(); err != nil {
		return err
	}
	t := to.topic
	if o.ExpectLastSeq != nil {
		if !t.config.KeyInSubject {
			return fmt.Errorf("ExpectLastSeq: %w", jetbus.ErrNeedsKeySubject)
		}
		m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(*o.ExpectLastSeq, 10)}
		if err := srv.expectAcross(m.Header, t, e.Key); err != nil {
			return err
		}
	}
	ttl := "Nats-TTL"
	if o.DeliverAt.After(now) {
		switch {
		case o.ExpectLastSeq != nil:
			return fmt.Errorf("%w: DeliverAt and ExpectLastSeq are both set: what the key's last event will be then is not known now", jetbus.ErrInvalidOption)
		case !t.config.Delays:
			return &jetbus.RemedyError{Err: fmt.Errorf("%w: the topic takes no events for later", jetbus.ErrUnsupported), See: "TopicConfig.Delays"}
		}
		m.Header["Nats-Schedule-Target"] = []string{m.Subject}
		m.Header[headerSchedule] = []string{"@at " + o.DeliverAt.UTC().Format(time.RFC3339Nano)}
		m.Subject = delaySubject(srv.cfg.Prefix, e.Topic, e.ID)
		ttl = "Nats-Schedule-TTL"
		if !t.adopted() { // it waits however long the topic keeps events, and ages from then on
			m.Header["Nats-TTL"] = []string{"never"}
		}
	}
	if o.TTL > 0 {
		switch {
		case t.adopted():
			return fmt.Errorf("%w: TTL on an adopted topic", jetbus.ErrUnsupported)
		case t.config.History > 1:
			return fmt.Errorf("%w: TTL on a topic whose History is %d: when the event ends, the one before it would come back", jetbus.ErrUnsupported, t.config.History)
		case t.tombstone != nil && !t.config.Compact:
			return fmt.Errorf("%w: TTL on a topic that has a snapshot and is not compacted: when the event ends, the one before it would come back", jetbus.ErrUnsupported)
		}
		m.Header[ttl] = []string{o.TTL.String()}
	}
	return nil
}

// Bounds of headers, in bytes.
const (
	maxHeader = 1<<16 - 1 // what the server takes
	// What an event may have. The rest is for what the server adds when it feeds a
	// snapshot, which would not get beyond an event that is too large for it.
	maxEventHeader = maxHeader - 4<<10
)

// frameBytes is what a header has around its fields.
const frameBytes = len("NATS/1.0\r\n\r\n")

// fits refuses a message that the server would refuse, by closing the connection
// where it is larger than it takes.
func (srv *server) fits(m *nats.Msg) error { return srv.fitsIn(m, maxHeader) }

// eventFits is fits for an event that is published.
func (srv *server) eventFits(m *nats.Msg) error { return srv.fitsIn(m, maxEventHeader) }

func (srv *server) fitsIn(m *nats.Msg, most int) error {
	header := headerBytes(m.Header)
	if header > most {
		return fmt.Errorf("%w: %d bytes of headers, at most %d are allowed", jetbus.ErrPayloadTooLarge, header, most)
	}
	if size, limit := header+len(m.Data), srv.nc.MaxPayload(); limit > 0 && int64(size) > limit {
		return fmt.Errorf("%w: %d bytes with headers, the server takes %d", jetbus.ErrPayloadTooLarge, size, limit)
	}
	return nil
}

// headerBytes returns the size of a message's headers on the wire.
func headerBytes(h nats.Header) int {
	size := frameBytes
	for name, values := range h {
		for _, v := range values {
			size += len(name) + len(v) + len(": \r\n")
		}
	}
	return size
}

// surelyFits reports whether an event is so small that there is no need to make
// its message to see that it fits.
func surelyFits(e *jetbus.Event, limit int64) bool {
	const fields = 1 << 10 // the names of those of the bus, and the short values
	header := frameBytes + fields + 2*len(e.Topic) + 4*len(e.ID) + 9*len(e.SID) + 3*len(e.Key)
	for name, value := range e.Headers {
		header += 2*len(name) + 6*len(value) + 2*len(": \r\n")
	}
	for _, list := range [][]string{e.CausedBy, e.Tags} {
		for _, item := range list {
			header += 9*len(item) + 1
		}
	}
	return header <= maxEventHeader && (limit <= 0 || int64(header+len(e.Payload)) <= limit)
}

// store sends a message until it is answered, under one id: a copy that was
// stored before is found by the server's dedupe, as long as that remembers the id.
func (b *Bus) store(ctx context.Context, t *topic, m *nats.Msg) (pubAck, error) {
	return b.storeMoving(ctx, t, m, false, nil)
}

// storeMoving is store for an event whose topic may have changed. If the message's subject has no
// responders, or the subject of a delayed event is not one of the stream, move builds the message again for the
// topic's current configuration. If move is nil, the message stays as it is. dry says that the message is a probe.
func (b *Bus) storeMoving(ctx context.Context, t *topic, m *nats.Msg, dry bool, move func(fresh *topic) error) (pubAck, error) {
	s := triesOf(t, m)
	s.dry = dry
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		ack, err := b.storeOnce(ctx, m, &s)
		switch {
		case err == nil:
			t.setHeard()
			if ack.duplicate && s.unknown() { // its own first try is not a duplicate
				ack.duplicate = b.storedByAnother(ctx, t, m, ack.seq)
			}
			return ack, nil
		case errors.Is(err, errForgotten):
			return pubAck{}, unknownError{err}
		case ctx.Err() != nil || errors.Is(err, jetbus.ErrClosed):
			return pubAck{}, unsure(err, s.mayBeStored(err))
		case isWrongSequence(err) && s.unknown():
			if seq, found := b.storedBefore(ctx, t, m); found {
				return pubAck{seq: seq, duplicate: b.storedByAnother(ctx, t, m, seq)}, nil
			}
		case errors.Is(err, nats.ErrNoResponders), apiCode(err) == jetstream.JSErrCodeScheduleTargetInvalid:
			fresh, err := b.verify(ctx, t, !dry)
			if err == nil && move != nil && !fresh.samePlace(t) {
				if err = move(fresh); err == nil {
					t = fresh
					continue
				}
			}
			if err != nil {
				return pubAck{}, unsure(err, s.unknown())
			}
		}
		if !isTransient(err) {
			return pubAck{}, unsure(err, s.unknown())
		}
		s.failed(err)
		if errors.Is(err, errLost) {
			continue // wait for the connection, and no longer
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

func (srv *server) storeOnce(ctx context.Context, m *nats.Msg, s *tries) (pubAck, error) {
	lost, err := srv.link.Wait(ctx)
	if err != nil {
		return pubAck{}, unsentError{err}
	}
	if err := s.begin(); err != nil {
		return pubAck{}, err
	}
	a, err := srv.exchange(ctx, m, lost, tryTimeout)
	if err != nil {
		return pubAck{}, err
	}
	ack, err := parsePubAck(a.Data)
	if s.dry && probePassed(m, err) {
		return pubAck{}, nil
	}
	return ack, err
}

// verify asks the server for a topic that may have changed since the bus looked it up, for example because
// its subject has no responders. It returns the current topic, or the known one if the server does not
// answer soon. create is as in lookupAt.
func (st *streams) verify(ctx context.Context, t *topic, create bool) (*topic, error) {
	short, cancel := context.WithTimeout(ctx, askTimeout) // the next try may succeed sooner than a longer wait here
	defer cancel()
	fresh, err := st.asDeclared(short, t)
	switch {
	case err == nil:
		return fresh, nil
	case !errors.Is(err, jetbus.ErrNoTopic):
		return t, nil // the server did not answer: try again
	}
	st.forget(t)
	if t.adopted() {
		return nil, jetbus.ErrNoTopic
	}
	return st.lookupAt(ctx, t.name(), time.Now(), create) // in another stream
}

// moveTo sets where an event is stored in the current version of its topic.
func (srv *server) moveTo(fresh *topic, e *jetbus.Event, to *destination) error {
	to.topic, to.tombstone = fresh, fresh.deletes(e)
	return srv.route(e, to)
}

// storedBefore reports whether the last message of the subject, or of the subjects to which its condition
// applies, is m. A single server compares sequences before it looks for duplicates, so a conditional publish
// whose answer was lost fails when it is repeated. storedBefore asks the leader, because a replica may not
// have the message yet.
func (srv *server) storedBefore(ctx context.Context, t *topic, m *nats.Msg) (seq uint64, found bool) {
	subject := m.Subject
	if across := m.Header[jetstream.ExpectedLastSubjSeqSubjHeader]; len(across) > 0 {
		subject = across[0]
	}
	last, err := srv.leaderMessage(ctx, t.stream, map[string]any{"last_by_subj": subject})
	found = err == nil && last.seq > 0 && last.Header.Get(jetstream.MsgIDHeader) == m.Header.Get(jetstream.MsgIDHeader)
	return last.seq, found
}

// storedByAnother reports whether what the topic has at a sequence, under the id of a message
// of which a try was not answered, is an earlier message and not that try: it has another time
// or content. Where it cannot be read, or not soon, it counts as the try.
func (srv *server) storedByAnother(ctx context.Context, t *topic, m *nats.Msg, seq uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	stored, err := srv.leaderMessage(ctx, t.stream, map[string]any{"seq": seq})
	return err == nil && stored.seq == seq && stored.Header.Get(jetstream.MsgIDHeader) == m.Header.Get(jetstream.MsgIDHeader) &&
		(stored.Header.Get(ce.HeaderTime) != m.Header.Get(ce.HeaderTime) || !bytes.Equal(stored.Data, m.Data))
}

// unsentError marks a failure before anything was sent.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// unknownError marks a failure after which the event may be stored.
type unknownError struct{ error }

func (e unknownError) Unwrap() error { return e.error }

func unsure(err error, unknown bool) error {
	if unknown {
		return unknownError{err}
	}
	return err
}

// isUnsent reports whether a failed try has surely stored nothing.
func isUnsent(err error) bool {
	if _, ok := errors.AsType[unsentError](err); ok {
		return true
	}
	return apiCode(err) != 0 && apiCode(err) != codeDuplicatePending ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetbus.ErrDenied) || errors.Is(err, nats.ErrConnectionClosed)
}

// isTransient reports whether trying again can help.
func isTransient(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.ErrorCode == codeDuplicatePending || api.ErrorCode == codeTooManyRequests || api.ErrorCode == codeBatchIncomplete ||
			api.Code == 503 && api.ErrorCode != codeStreamStoreFailed
	}
	return errors.Is(err, errLost) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders)
}

func isWrongSequence(err error) bool {
	code := apiCode(err)
	return code == jetstream.JSErrCodeStreamWrongLastSequence || code == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}

// publishError makes the error of a publish that was valid.
func (srv *server) publishError(e *jetbus.Event, subject string, err error) *jetbus.PublishError {
	out := &jetbus.PublishError{Event: *e}
	if _, ok := errors.AsType[unknownError](err); ok {
		out.Stored = jetbus.StoredUnknown
	}
	out.Err = srv.refusal(subject, err)
	return out
}

// refusal names the condition behind a server's refusal.
func (srv *server) refusal(subject string, err error) error {
	api, ok := errors.AsType[*jetstream.APIError](err)
	switch {
	case errors.Is(err, jetbus.ErrNoTopic), errors.Is(err, jetbus.ErrClosed), errors.Is(err, jetbus.ErrDenied):
		return err
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, jetbus.ErrOvertaken):
		out := srv.translate("store", subject, err)
		if !errors.Is(out, jetbus.ErrOvertaken) { // it may say no more than that nobody answered
			out = fmt.Errorf("%w: %w", jetbus.ErrOvertaken, out)
		}
		return out
	case !ok:
		return srv.translate("store", subject, err)
	case isWrongSequence(err):
		if is, ok := strings.CutPrefix(api.Description, jetbus.ErrWrongSequence.Error()+": "); ok {
			return fmt.Errorf("%w: it is %s", jetbus.ErrWrongSequence, is)
		}
		return fmt.Errorf("%w: %s", jetbus.ErrWrongSequence, api.Description)
	case api.ErrorCode == codeWrongLastID:
		return fmt.Errorf("%w: %s", jetbus.ErrWrongSequence, api.Description)
	case isAtLimit(err):
		return fmt.Errorf("%w: %s", jetbus.ErrTopicFull, api.Description)
	case api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return fmt.Errorf("%w: %s", jetbus.ErrPayloadTooLarge, api.Description)
	case api.ErrorCode == codeTTLDisabled, api.ErrorCode == jetstream.JSErrCodeMessageSchedulesDisabled, api.ErrorCode == codeBatchDisabled:
		return fmt.Errorf("%w: %s", jetbus.ErrUnsupported, api.Description)
	case api.ErrorCode == codeBatchDuplicate:
		return fmt.Errorf("%w: an event of the batch is stored already, or is in it twice", jetbus.ErrConflict)
	}
	return srv.translate("store", subject, err)
}
