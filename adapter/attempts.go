package adapter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// The server counts deliveries; what counts here are attempts: handlers that
// failed, and handlers that were started alone and never ended because their
// process died. Most events have none, so that nothing is written for them. The
// first failure writes a record, and so does giving an event back: a delivery
// that no record accounts for belongs to a process that died, and perhaps killed
// it. Such a suspect runs with no other suspect beside it, its start recorded
// first, so that an event that kills its process is found and its neighbors are
// not blamed. Where attempts have no end (MaxAttempts -1) nobody needs to be blamed:
// what comes back after a crash runs as it comes, and only failures are counted.

const (
	attemptsBucket = "JETBUS_ATTEMPTS"
	attemptsTTL    = 24 * time.Hour // of a record, beyond the wait for the next attempt
)

// record is what is known of the attempts at an event of a group.
type record struct {
	Failed  int       `json:"failed,omitempty"`  // attempts that count
	Known   int       `json:"known,omitempty"`   // deliveries whose end is known
	Stored  int64     `json:"stored,omitempty"`  // when the event was: a sequence may be that of another since
	Started int       `json:"started,omitempty"` // the delivery that was started alone and has not ended; 0: none
	First   time.Time `json:"first,omitzero"`    // failure
	Last    time.Time `json:"last,omitzero"`     // failure
	Error   string    `json:"error,omitempty"`   // of the last failure
	// Dead is why it is to be a dead letter, for which there was no room yet.
	Dead   jetbus.DeadReason `json:"dead,omitempty"`
	Buried int               `json:"buried,omitempty"` // how often that was tried
}

// errProcessDied is the failure of an attempt that never ended.
var errProcessDied = errors.New("the process ended while it handled the event")

// fail counts a failed attempt.
func (r *record) fail(err error, now time.Time) {
	r.Failed++
	if r.First.IsZero() {
		r.First = now
	}
	r.Last, r.Error = now, clip(err.Error())
}

// clip bounds an error's text.
func clip(s string) string { return s[:min(len(s), 1<<10)] }

// seen takes what a delivery of that number shows about those before. It reports
// whether one of them is unaccounted for.
func (r *record) seen(delivery int, now time.Time) (suspect bool) {
	switch {
	case r.Known >= delivery || r.Started >= delivery: // the server has forgotten deliveries, in a crash of its own
		r.Known, r.Started = delivery-1, 0
		return true
	case r.Started > 0:
		r.fail(errProcessDied, now)
		r.Known, r.Started = max(r.Known, r.Started), 0
		return true
	}
	return delivery-1 > r.Known
}

// parseRecord reads a record; one that says what cannot be is none.
func parseRecord(text []byte) (r record, ok bool) {
	if json.Unmarshal(text, &r) != nil || r.Failed < 0 || r.Known < 0 || r.Started < 0 {
		return record{}, false
	}
	return r, true
}

// resumed is seen for an ordered group, whose member knows by other means whether
// a delivery before this one is unaccounted for: the server counts those of its
// present durable only.
func (r *record) resumed(now time.Time) (suspect bool) {
	if r.Started == 0 {
		return false
	}
	r.fail(errProcessDied, now)
	r.Started = 0
	return true
}

// attemptKey names an event of a group: its stream, durable and sequence. That of
// an ordered group has the name of the first epoch, since its durable is replaced
// when a member takes over.
func (l *lease) attemptKey() string {
	return l.t.stream + "." + l.consumer + "." + strconv.FormatUint(l.seq, 10)
}

// records are what is known of the attempts at events, in a bucket of their own.
type records struct {
	*buckets

	breaker  breaker
	survived survived
}

// recall brings what is known of the attempts at an event into its lease, which
// nobody else uses yet.
func (rec *records) recall(ctx context.Context, l *lease) {
	if l.record != nil {
		return
	}
	l.record = &record{}
	if l.retry != nil {
		*l.record = record{Failed: l.retry.Failed, First: l.retry.First, Last: l.retry.Last, Error: l.retry.Error}
	}
	if l.deliveries <= 1 && (l.slot == nil || !l.slot.again) {
		return
	}
	var entry jetbus.KeyEntry
	var err error
	bounded, end := rec.forRecords(ctx, 1)
	if l.arrival == 0 || l.p.mayBeRecorded(bounded, l) {
		entry, l.base, err = rec.keyGetMarker(bounded, attemptsBucket, l.attemptKey())
	}
	end(err)
	if err != nil { // an attempt too many is better than an event that waits
		rec.cfg.Logger.WarnContext(ctx, "the attempts at an event cannot be read", slog.String("event", l.attemptKey()), slog.Any("error", err))
		l.unread = true
		return
	}
	if entry.Revision > 0 {
		l.base = entry.Revision
		if r, ok := parseRecord(entry.Value); ok && r.Stored == l.stored {
			*l.record, l.recorded = r, true
		}
	}
	if l.slot != nil {
		l.suspect = l.record.resumed(time.Now()) || l.slot.suspect
		return
	}
	if rec.survived.take(l.attemptKey()) {
		l.record.Known, l.record.Started = max(l.record.Known, l.deliveries-1), 0
	}
	l.suspect = l.record.seen(l.deliveries, time.Now())
}

// survived remembers events whose leases were lost while this process lived on:
// with a connection, say. When they come again, here, they are not suspects,
// whatever the server sent into the hole meanwhile.
type survived struct {
	mu   sync.Mutex
	keys map[string]struct{}
}

// maxSurvived bounds what is remembered; events beyond it are suspects.
const maxSurvived = 10_000

func (s *survived) note(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil || len(s.keys) >= maxSurvived {
		s.keys = map[string]struct{}{}
	}
	s.keys[l.attemptKey()] = struct{}{}
}

// take reports whether an event is one of them, and forgets it.
func (s *survived) take(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was := s.keys[key]
	delete(s.keys, key)
	return was
}

// recallAll is recall for many, in the time of few.
func (rec *records) recallAll(ctx context.Context, leases []*lease) {
	ctx, cancel := context.WithTimeout(ctx, recallTimeout)
	defer cancel()
	var asked []*lease
	for _, l := range leases {
		if l.record != nil || l.deliveries <= 1 && l.slot == nil {
			rec.recall(ctx, l) // asks nobody
			continue
		}
		asked = append(asked, l)
	}
	besides(len(asked), recordsAtOnce, func(i int) { rec.recall(ctx, asked[i]) })
}

// recordsAtOnce is how many records are asked for at a time.
const recordsAtOnce = 16

// besides calls do for each of n requests, so many at a time.
func besides(n, atOnce int, do func(i int)) {
	var wg sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for i := range n {
		room <- struct{}{}
		wg.Go(func() {
			do(i)
			<-room
		})
	}
	wg.Wait()
}

// attemptNumber is the number of the attempt that begins now.
func (l *lease) attemptNumber() int {
	if l.record == nil {
		return 1
	}
	return l.record.Failed + 1
}

// keepRecord stores a lease's record. One that cannot be stored costs the count
// of what it says, which the log tells.
func (rec *records) keepRecord(ctx context.Context, l *lease, wait time.Duration) {
	_, _ = rec.keepRecords(ctx, []*lease{l}, wait)
}

// keepRecords stores the records of leases, all at once. It returns the revision
// of the last one. What goes wrong is in the log; callers need not look at it.
func (rec *records) keepRecords(ctx context.Context, leases []*lease, wait time.Duration) (revision uint64, err error) {
	rec.readUnread(context.WithoutCancel(ctx), leases)
	ctx, end := rec.forRecords(context.WithoutCancel(ctx), len(leases))
	defer func() { end(err) }()
	messages := make([]*nats.Msg, len(leases))
	for i, l := range leases {
		l.record.Stored = l.stored
		messages[i] = rec.recordMessage(l, l.record, wait)
		if l.unread { // what is there says more, if anything is
			messages[i].Header[jetstream.ExpectedLastSubjSeqHeader] = []string{"0"}
		}
		l.recorded = true
	}
	revision, refused, err := rec.writeRecords(ctx, messages)
	for i, l := range leases {
		l.unread = l.unread && (err != nil || slices.Contains(refused, i))
	}
	if err != nil {
		rec.cfg.Logger.WarnContext(ctx, "attempts cannot be recorded; they will count as they should not", slog.Int("events", len(leases)), slog.Any("error", err))
		rec.outlived(leases)
	}
	return revision, err
}

// outlived notes that leases ended whose records may still say that their events were started
// alone: where such an event comes here again, this process has not died of it.
func (rec *records) outlived(leases []*lease) {
	for _, l := range leases {
		if l.revision > 0 {
			rec.survived.note(l)
		}
	}
}

// readUnread makes up for records that could not be read when their events came, as while a
// cluster elects: the attempts before would be forgotten for good.
func (rec *records) readUnread(ctx context.Context, leases []*lease) {
	var unread []*lease
	for _, l := range leases {
		if l.unread {
			unread = append(unread, l)
		}
	}
	besides(len(unread), recordsAtOnce, func(i int) {
		l := unread[i]
		ctx, end := rec.forRecords(ctx, 1)
		entry, marker, err := rec.keyGetMarker(ctx, attemptsBucket, l.attemptKey())
		end(err)
		if err != nil {
			return
		}
		l.unread, l.base = false, max(entry.Revision, marker)
		if there, ok := parseRecord(entry.Value); entry.Revision > 0 && ok && there.Stored == l.stored {
			if l.retry != nil { // whose attempts are among those of the record
				there.Failed -= l.retry.Failed
			}
			l.record.follow(there)
		}
	})
}

// follow adds the attempts before those that the record counts.
func (r *record) follow(before record) {
	if before.Failed > 0 {
		r.First = before.First
	}
	if r.Failed == 0 {
		r.Last, r.Error = before.Last, before.Error
	}
	r.Failed += before.Failed
	r.Known = max(r.Known, before.Known)
	r.Dead, r.Buried = cmp.Or(r.Dead, before.Dead), max(r.Buried, before.Buried)
}

func (rec *records) recordMessage(l *lease, r *record, wait time.Duration) *nats.Msg {
	value, _ := json.Marshal(r) //nolint:errchkjson // strings, numbers and times of these years
	ttl := (attemptsTTL + wait).Round(time.Second)
	return &nats.Msg{Subject: rec.keyTo(attemptsBucket, l.attemptKey()), Data: value, Header: nats.Header{"Nats-TTL": {ttl.String()}}}
}

// startAlone records that a suspect is about to run.
func (rec *records) startAlone(ctx context.Context, l *lease) {
	l.record.Started = l.deliveries
	var err error
	if l.revision, err = rec.keepRecords(ctx, []*lease{l}, 0); apiCode(err) != 0 { // refused: then the server's count must do, which knows of no innocence
		l.record.Failed = max(l.record.Failed, l.deliveries-1)
	}
	if l.revision > 0 {
		l.base = l.revision
	}
}

// endAlone records that the handler of a suspect has ended without settling it:
// it has not killed its process. It is written on condition that nobody has written
// since, and not waited for: whoever settles the event now writes what is true then.
func (rec *records) endAlone(l *lease, started record) {
	if l.revision == 0 {
		return
	}
	started.Started = 0
	m := rec.recordMessage(l, &started, 0)
	m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(l.revision, 10)}
	_ = rec.nc.PublishMsg(m)
}

// recordReturns notes that deliveries are about to end without being attempts.
// Where attempts have no end that makes no difference, and thousands of events are
// given back in no time.
func (rec *records) recordReturns(ctx context.Context, leases ...*lease) {
	counted := make([]*lease, 0, len(leases))
	for _, l := range leases {
		if l.maxAttempts > 0 {
			counted = append(counted, l)
		}
	}
	if len(counted) == 0 {
		return
	}
	rec.recallAll(ctx, counted)
	for _, l := range counted {
		l.record.Known, l.record.Started = l.deliveries, 0
	}
	_, _ = rec.keepRecords(ctx, counted, 0)
}

// dropRecord removes the record of an event that the group is done with. It does
// not wait: a record that stays ends by its TTL.
func (rec *records) dropRecord(l *lease) {
	if l.record == nil || !l.recorded {
		return
	}
	l.recorded = false
	_ = rec.nc.PublishMsg(&nats.Msg{
		Subject: rec.keyTo(attemptsBucket, l.attemptKey()),
		Header:  nats.Header{"KV-Operation": {"PURGE"}, "Nats-Rollup": {"sub"}, "Nats-TTL": {"1s"}},
	})
}

// keepAttempts makes sure that records can be stored, rather than have it turn out
// when one must be. A bucket that is full is no reason to keep a member out, though: its
// records expire, and until then the server's count of deliveries stands for them, see startAlone.
func (rec *records) keepAttempts(ctx context.Context) error {
	const op = "the attempts (bucket " + attemptsBucket + ")"
	ctx, cancel := rec.bound(ctx)
	defer cancel()
	if err := rec.reachBucket(ctx, attemptsBucket); err != nil {
		return rec.translate(op, rec.api+"STREAM.INFO."+bucketStream(attemptsBucket), err)
	}
	probe := &nats.Msg{Subject: rec.keyTo(attemptsBucket, "probe"), Header: nats.Header{"Nats-TTL": {"1s"}}}
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		_, err := rec.storeOnce(ctx, probe, new(tries))
		if errors.Is(err, nats.ErrNoResponders) {
			if err = rec.createBucket(ctx, attemptsBucket); err == nil {
				_, err = rec.storeOnce(ctx, probe, new(tries))
			}
		}
		if isAtLimit(err) {
			rec.cfg.Logger.WarnContext(ctx, "there is no room for attempts; they count by the server's deliveries until records expire", slog.String("bucket", attemptsBucket), slog.Any("error", err))
			return nil
		}
		if err == nil {
			rec.noteExists(attemptsBucket)
		}
		if err == nil || !isTransient(err) {
			return rec.translate(op, probe.Subject, err)
		}
		select { // in a cluster a new bucket is not reachable everywhere at once
		case <-time.After(wait):
		case <-ctx.Done():
			return rec.translate(op, probe.Subject, errors.Join(context.Cause(ctx), err))
		}
	}
}

// writeRecords stores messages in the bucket, which it creates where it is missing. refused are
// those whose condition did not hold.
func (rec *records) writeRecords(ctx context.Context, messages []*nats.Msg) (last uint64, refused []int, err error) {
	for created := false; ; {
		last, refused, err = rec.sendRecords(ctx, messages)
		if err == nil {
			rec.noteExists(attemptsBucket)
		}
		if !errors.Is(err, nats.ErrNoResponders) {
			return last, refused, err
		}
		if !created && rec.untilCreate(attemptsBucket) <= 0 {
			if err := rec.createBucket(ctx, attemptsBucket); err != nil {
				return 0, nil, err
			}
			created = true
			continue
		}
		select { // in a cluster a new bucket is not reachable everywhere at once
		case <-time.After(publishRetry):
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
		}
	}
}

// sendRecords stores messages without waiting for each.
func (rec *records) sendRecords(ctx context.Context, messages []*nats.Msg) (last uint64, refused []int, err error) {
	lost, err := rec.link.Wait(ctx)
	if err != nil {
		return 0, nil, err
	}
	type answer struct {
		to  int
		msg *nats.Msg
	}
	answers := make(chan answer, len(messages))
	for i, m := range messages {
		var forget func()
		m.Reply, forget = rec.replies.expect(func(a *nats.Msg) { answers <- answer{i, a} })
		defer forget()
		if err := rec.nc.PublishMsg(m); err != nil {
			return 0, nil, err
		}
	}
	for range messages {
		select {
		case a := <-answers:
			if a.msg.Header.Get("Status") == "503" {
				return 0, nil, nats.ErrNoResponders
			}
			ack, err := parsePubAck(a.msg.Data)
			switch {
			case isWrongSequence(err):
				refused = append(refused, a.to)
			case err != nil:
				return 0, nil, err
			}
			last = max(last, ack.seq)
		case <-lost:
			return 0, nil, errLost
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
		}
	}
	return last, refused, nil
}

// dropRecords removes the records of a stream that is deleted, or of one durable:
// another of the same name may come.
func (rec *records) dropRecords(ctx context.Context, stream string, consumer ...string) error {
	bucket := bucketStream(attemptsBucket)
	op := "forget the attempts in " + stream
	s, err := rec.js.Stream(ctx, bucket)
	if apiCode(err) == jetstream.JSErrCodeStreamNotFound {
		return nil
	}
	if err != nil {
		return rec.translate(op, rec.api+"STREAM.INFO."+bucket, err)
	}
	subject := keySubject(attemptsBucket, strings.Join(append([]string{stream}, consumer...), ".")) + ".>"
	return rec.translate(op, rec.api+"STREAM.PURGE."+bucket, rec.js.purge(ctx, s, subject))
}
