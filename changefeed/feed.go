package changefeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

// Backend is what a feed needs of a bus; every jetbus.Backend has it.
type Backend interface {
	jetbus.Batcher
	jetbus.Burier
	jetbus.Keys
	jetbus.CheckpointBus
	EnsureTopic(ctx context.Context, c jetbus.TopicConfig) (jetbus.TopicInfo, error)
}

const (
	checkTimeout = 5 * time.Second        // of what Start asks, where nobody answers
	saveTimeout  = 5 * time.Second        // of the last position, when the feed stops
	dedupeWindow = 5 * time.Second        // of topics that a feed declares for a chain, which knows what is stored
	copyAwait    = 5 * time.Millisecond   // MaxAwaitTime while a copy waits for its turn
	copyTurn     = 100 * time.Millisecond // after which it has one although there are changes
	firstAnswers = 10                     // how often a new change stream is asked for its position
	quickPause   = 100 * time.Millisecond // before a lock is asked for again
)

// Feed publishes the changes of a collection. It is made by Start. Its methods may
// be called concurrently.
type Feed struct {
	o       Options
	b       Backend
	client  *mongo.Client
	split   bool      // the server splits large events
	stream  string    // of the topic, as locate has found it
	created time.Time // when that was made
	// now is MongoDB's position at the time of Start, where a feed without a position begins. It
	// is empty if MongoDB did not answer, and once the feed has a position.
	now Token
	// lost is the position of an event that a turn found missing in the topic, or could not
	// verify. The next turn compares the topic with it. Only the current turn uses it.
	lost *Progress

	cancel context.CancelFunc
	done   chan struct{} // closed when nothing of the feed runs any more
	status status
}

// Start starts a feed. It checks the options, that the topic exists or can be declared, and that
// MongoDB has change streams for this user ([ErrNotReplicaSet], [ErrPrivilege], [ErrStream]). It
// is not an error if MongoDB does not answer: the feed waits for it. If Start returns an error,
// nothing is left running.
//
// A feed that begins with FromLatest publishes every change made after the call. If MongoDB does
// not answer during Start, the feed begins at MongoDB's position when it is first [Streaming].
//
// Canceling ctx is a graceful Stop. The client remains the caller's, and must stay connected
// until the feed has ended.
func Start(ctx context.Context, b Backend, client *mongo.Client, o Options) (*Feed, error) {
	normal, err := o.Normalize()
	if err != nil {
		return nil, fmt.Errorf("change feed %s: %w", o.Name, err)
	}
	if normal.TokenStore == nil {
		normal.TokenStore = StoreInKeys(b)
	}
	f := &Feed{o: normal, b: b, client: client, done: make(chan struct{})}
	f.status.begin()
	if err := f.check(ctx); err != nil {
		return nil, fmt.Errorf("change feed %s: %w", o.Name, err)
	}
	ctx, f.cancel = context.WithCancel(ctx)
	go f.run(ctx)
	return f, nil
}

// Stop ends the feed: the position is saved, the lock is released. What is on its way
// to the broker then is not waited for: whoever goes on finds out. It may be called twice, and concurrently. The error is
// that of ctx, when it ends while Stop waits; the feed ends all the same. A ctx that was canceled
// before the call leaves 30 seconds, or until its deadline if it has one.
func (f *Feed) Stop(ctx context.Context) error {
	f.cancel()
	ctx, release := shutdown.Context(ctx, stopTime)
	defer release()
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop change feed %s: %w", f.o.Name, context.Cause(ctx))
	}
}

// stopTime bounds a Stop whose context was canceled before: a MongoDB that hangs may not answer.
const stopTime = 30 * time.Second

// Done is closed when the feed has ended, for whatever reason.
func (f *Feed) Done() <-chan struct{} { return f.done }

// Err returns why the feed ended: nil while it runs and after Stop.
func (f *Feed) Err() error {
	select {
	case <-f.done:
		return f.status.failure()
	default:
		return nil
	}
}

// check finds out what cannot work.
func (f *Feed) check(ctx context.Context) error {
	info, err := f.b.TopicInfo(ctx, f.o.Topic)
	if errors.Is(err, jetbus.ErrNoTopic) {
		info, err = f.b.EnsureTopic(ctx, f.topicConfig())
	}
	if err != nil {
		return err
	}
	mode, err := f.modeFor(&info)
	if err != nil {
		return err
	}
	f.status.use(mode)
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if err := f.checkName(ctx); err != nil {
		return err
	}
	f.split, err = f.canSplit(ctx)
	if err == nil {
		f.now, err = f.present(ctx)
	}
	switch refused := refusal(err); {
	case err == nil:
		return nil
	case refused != nil:
		return refused
	case errors.Is(err, ErrStream):
		return err
	}
	if errors.Is(ctx.Err(), context.Canceled) { // by who starts it: that says nothing of MongoDB
		return nil
	}
	f.o.Log.LogAttrs(ctx, slog.LevelWarn, "change feed: MongoDB does not answer yet", slog.String("feed", f.o.Name), slog.Any("error", err))
	return nil
}

// topicConfig is that of a topic that does not exist yet.
func (f *Feed) topicConfig() jetbus.TopicConfig {
	c := jetbus.TopicConfig{Name: f.o.Topic, Retention: -1, Discard: jetbus.DiscardNew}
	if f.o.Mode == Auto || f.o.Mode == Chain {
		c.DuplicateWindow = dedupeWindow
	}
	return c
}

// canSplit reports whether the server knows $changeStreamSplitLargeEvent.
func (f *Feed) canSplit(ctx context.Context) (bool, error) {
	var info struct {
		Version []int32 `bson:"versionArray"`
	}
	err := f.client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info)
	if err != nil || len(info.Version) < 3 {
		return false, err
	}
	v := info.Version
	return v[0] >= 7 || v[0] == 6 && v[1] == 0 && v[2] >= 9, nil
}

// run holds the lock and leads, until the feed is stopped or cannot go on.
func (f *Feed) run(ctx context.Context) {
	defer close(f.done)
	defer f.cancel()
	defer f.saveLost(ctx)
	for attempt := 1; ctx.Err() == nil; attempt++ {
		published := f.status.stats().Published
		err := f.hold(ctx)
		if ctx.Err() != nil {
			break
		}
		if f.status.stats().Published > published {
			attempt = 1
		}
		pause := f.o.Backoff.Delay(attempt)
		switch {
		case errors.Is(err, jetbus.ErrLockLost):
			pause = quickPause
			f.status.fenced(nil)
		case errors.Is(err, jetbus.ErrWrongSequence), errors.Is(err, ErrFenced):
			f.status.fenced(err)
		case endsFeed(err):
			f.status.fail(err)
			f.o.Log.LogAttrs(ctx, slog.LevelError, "change feed ended", slog.String("feed", f.o.Name), slog.Any("error", err))
			return
		default:
			f.status.writing(err)
		}
		f.o.Log.LogAttrs(ctx, slog.LevelWarn, "change feed: begin again", slog.String("feed", f.o.Name), slog.Any("error", err))
		sleep(ctx, pause)
	}
	f.status.stop()
}

// hold leads while it holds the lock. While it waits for the lock, it checks that the holder is
// an instance of this feed.
func (f *Feed) hold(ctx context.Context) error {
	var watch sync.WaitGroup
	defer watch.Wait()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	owner := f.owner() + ownerMark + jetbus.NewID()
	watch.Go(func() { f.watchRivals(ctx, owner, stop) })
	lock := jetbus.Lock{Key: f.lockKey(), Owner: owner, TTL: f.o.LeaseTTL}
	err := lock.Hold(ctx, f.b, func(held context.Context, _ jetbus.Held) (bool, error) {
		defer f.status.rest()
		err := f.lead(held)
		return err == nil, err
	})
	if cause := context.Cause(ctx); errors.Is(cause, ErrOtherSource) {
		return cause
	}
	return err
}

// endsFeed reports whether there is no point in beginning again.
func endsFeed(err error) bool {
	for _, final := range []error{
		ErrHistoryLost, ErrInvalidated, ErrForeign, ErrOtherSource, ErrNotReplicaSet, ErrPrivilege, ErrNoImage, ErrStream, ErrPoison, ErrOversize, ErrLoop,
		jetbus.ErrClosed, jetbus.ErrDenied, jetbus.ErrNoTopic, jetbus.ErrUnsupported, jetbus.ErrConflict, jetbus.ErrInvalidOption,
	} {
		if errors.Is(err, final) {
			return true
		}
	}
	_, panicked := errors.AsType[*jetbus.PanicError](err)
	return panicked
}

// sleep waits, but not longer than ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// position is where a feed resumes.
type position struct {
	token Token
	copy  *CopyProgress // nil: no copy is under way
	// unsaid: the topic ends with the event that caused a copy, and the gap event is not
	// published yet.
	unsaid  bool
	at      *bson.Timestamp   // the time to start at, instead of token
	upTo    Token             // changes up to here were read already, if at is earlier
	created time.Time         // the creation time of the topic that has the events published up to token
	last    jetbus.Checkpoint // the newest event when token was reached; saved with token
	end     mark              // the newest event in the topic
	lost    error             // why the topic lacks events published up to token; nil: it has them
	chain   jetbus.Chain
	saved   Progress
}

// made is when the topic was made, as precisely as all stores and buses say it.
func (f *Feed) made() time.Time { return f.created.UTC().Truncate(time.Millisecond) }

// locate finds the position. It is after the topic's last event, or at the saved position if that
// is later and the topic still has all events that were published up to it.
func (f *Feed) locate(ctx context.Context) (position, error) {
	var p position
	info, err := f.b.TopicInfo(ctx, f.o.Topic)
	if err != nil {
		return p, err
	}
	mode, err := f.modeFor(&info)
	if err != nil {
		return p, err
	}
	f.status.use(mode)
	f.stream, f.created = info.Stream, info.Created
	p.created = f.made()
	e, found, err := lastEvent(ctx, f.b, &info)
	if err != nil {
		return p, err
	}
	if mode == Chain || info.Events > 0 { // other modes only say by it that there is something
		p.chain.AfterSeq = info.LastSeq
	}
	var last *jetbus.Event
	if found {
		last = &e
		if e.Headers[HeaderFeed] != f.o.Name {
			return p, fmt.Errorf("%w: topic %s ends with event %s, which is not of feed %s", ErrForeign, f.o.Topic, e.ID, f.o.Name)
		}
		if e.Seq >= info.LastSeq { // else the end is a marker of the broker, which has no id, or is gone
			p.chain = jetbus.Chain{AfterID: e.ID, AfterSeq: e.Seq}
		}
		if err := p.goBehind(&e); err != nil {
			return p, fmt.Errorf("event %s of topic %s: %w", e.ID, f.o.Topic, err)
		}
	}
	if p.saved, err = f.o.TokenStore.Load(ctx, f.o.Name); err != nil {
		return p, fmt.Errorf("load the position: %w", err)
	}
	if err := f.ours(p.saved); err != nil {
		return p, err
	}
	return p, f.resume(ctx, &p, last)
}

// goBehind makes the position the one behind an event of the feed.
func (p *position) goBehind(e *jetbus.Event) (err error) {
	if p.token, err = ParseToken(e.Headers[HeaderToken]); err != nil {
		return err
	}
	if p.copy, err = parseCopy(e.Headers[HeaderCopy]); err != nil {
		return err
	}
	op := e.Headers[HeaderOp]
	p.unsaid = (op == opInvalidate || op == opRename) && p.copy != nil && p.copy.Start == p.token
	return nil
}

// lead reads and publishes for as long as the lock is ours.
func (f *Feed) lead(ctx context.Context) error {
	f.status.lead()
	p, err := f.locate(ctx)
	if err != nil {
		return err
	}
	if p.token != "" {
		f.now = ""
	}
	var writing sync.WaitGroup
	defer writing.Wait() // where something panics
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := newWriter(f, &p)
	w.in, w.saved = make(chan batch), p.saved
	r := &reader{f: f, w: w, pos: p}
	writing.Go(func() {
		if err := w.run(ctx); err != nil {
			cancel(err)
		}
		for range w.in { // the reader may be about to hand one over
		}
	})
	err = func() error {
		defer close(w.in)
		return r.run(ctx)
	}()
	writing.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause // of the writer, or of the lock: the reader ended for it
	}
	return err
}
