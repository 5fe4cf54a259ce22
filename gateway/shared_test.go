package gateway

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// logBus is a bus that only has one topic, in memory, and reads of which break off.
type logBus struct {
	jetbus.Backend
	rand *rand.Rand
	keep int // events that the topic keeps; 0: all

	mu      sync.Mutex
	events  []jetbus.Event
	first   uint64        // sequence of events[0]
	more    chan struct{} // closed, and made anew, when there are more
	cuts    int           // reads that break off, of ten
	err     error         // of every read from now on
	follows int           // reads that follow, now
	most    int           // of them at once
	alone   int           // reads that do not
	yielded int           // events that were read

	frames map[string]frame.Message // what readers got, and what it says
}

func newLogBus(r *rand.Rand) *logBus {
	return &logBus{rand: r, first: 1, more: make(chan struct{}), frames: map[string]frame.Message{}}
}

func (b *logBus) append(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seq := b.first + uint64(len(b.events))
	b.events = append(b.events, jetbus.Event{
		ID: fmt.Sprint(seq), Topic: "orders", Key: fmt.Sprint(seq % 3), Partition: jetbus.NoPartition, Seq: seq, Payload: append(make([]byte, 0, size), fmt.Sprintf("%*d", size, seq)...),
	})
	if b.keep > 0 && len(b.events) > b.keep {
		b.first += uint64(len(b.events) - b.keep)
		b.events = b.events[len(b.events)-b.keep:]
	}
	close(b.more)
	b.more = make(chan struct{})
}

func (b *logBus) last() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.first + uint64(len(b.events)) - 1
}

func (b *logBus) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	close(b.more)
	b.more = make(chan struct{})
}

// TopicInfo implements jetbus.Topics.
func (b *logBus) TopicInfo(context.Context, string) (jetbus.TopicInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return jetbus.TopicInfo{Config: jetbus.TopicConfig{Name: "orders"}, FirstSeq: b.first, LastSeq: b.first + uint64(len(b.events)) - 1}, nil
}

// next is the first event behind a sequence, or what to wait for.
func (b *logBus) next(after uint64) (e *jetbus.Event, more <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, nil, b.err
	}
	if b.rand.IntN(1000) < b.cuts {
		return nil, nil, fmt.Errorf("cut: %w", jetbus.ErrUnavailable)
	}
	after = max(after, b.first-1)
	if after < b.first+uint64(len(b.events))-1 {
		found := b.events[after+1-b.first]
		b.yielded++
		return &found, nil, nil
	}
	return nil, b.more, nil
}

// parse is what a frame says. Readers get the same frames, and each is decoded once: under the
// race detector that takes long.
func (b *logBus) parse(text []byte) (frame.Message, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m, known := b.frames[string(text)]; known {
		return m, nil
	}
	m, err := frame.ParseMessage(text)
	if err == nil {
		b.frames[string(text)] = m
	}
	return m, err
}

// Read implements jetbus.Reader.
func (b *logBus) Read(ctx context.Context, _ []string, o jetbus.ReadOptions) iter.Seq2[jetbus.Event, error] {
	return func(yield func(jetbus.Event, error) bool) {
		end := b.last()
		b.count(o.Follow, 1)
		defer b.count(o.Follow, -1)
		for after := o.After["orders"]; o.Follow || after < end; {
			e, more, err := b.next(after)
			switch {
			case err != nil:
				yield(jetbus.Event{}, err)
				return
			case !o.Follow && (e == nil || e.Seq > end):
				return
			case e == nil:
				select {
				case <-more:
				case <-ctx.Done():
					yield(jetbus.Event{}, ctx.Err())
					return
				}
				continue
			}
			if !yield(*e, nil) {
				return
			}
			after = e.Seq
		}
	}
}

func (b *logBus) count(follow bool, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !follow {
		b.alone += max(n, 0)
		return
	}
	b.follows += n
	b.most = max(b.most, b.follows)
}

// logReader is a reader of a logBus, and the client behind it.
type logReader struct {
	*testing.T
	b      *logBus
	r      *reader
	c      *conn
	from   uint64
	at     uint64
	gaps   int
	over   chan struct{} // closed when the reader has ended
	result error
	cancel context.CancelFunc
}

// join begins to read behind a sequence.
func (b *logBus) join(t *testing.T, g *Gateway, after uint64, key string) *logReader {
	info, _ := b.TopicInfo(t.Context(), "orders")
	after = max(after, info.FirstSeq-1)
	c := &conn{g: g, out: newQueue(16 << 10)}
	ses := &session{g: g, conn: c, moved: make(chan struct{}), over: make(chan struct{})}
	c.ses = ses
	s := &sub{ses: ses, id: "s1", topics: []string{"orders"}, streams: map[string]uint64{"orders": streamOf(info)}, heads: map[string][]byte{"orders": headOf("s1", "orders")}}
	s.started, s.done = make(chan struct{}), make(chan struct{})
	close(s.started)
	s.o.Filter.Key = key
	s.ctx, s.cancel = context.WithCancel(t.Context())
	r := &reader{s: s, after: map[string]uint64{"orders": after}, last: map[string]jetbus.Checkpoint{}, infos: map[string]jetbus.TopicInfo{"orders": info}}
	l := &logReader{T: t, b: b, r: r, c: c, from: after, at: after, over: make(chan struct{}), cancel: sync.OnceFunc(func() {
		close(s.done)
		s.cancel()
	})}
	go func() {
		defer close(l.over)
		l.result = r.run(s.ctx)
	}()
	return l
}

// take reads frames until the client has all events up to a sequence, at its own pace.
func (l *logReader) take(upTo uint64, pace func()) {
	var items []outgoing
	for l.at < upTo {
		select {
		case <-l.c.out.ready:
		case <-l.over:
			l.Errorf("the reader ended: %v", l.result)
			return
		case <-time.After(time.Hour):
			l.Errorf("reader behind %d: nothing comes behind %d", l.from, l.at)
			return
		}
		items = l.c.out.take(items)
		for i := range items {
			l.check(items[i])
			pace()
			l.c.out.written(items[i : i+1])
		}
	}
}

// check looks whether a frame is the one that must come.
func (l *logReader) check(o outgoing) {
	m, err := l.b.parse(slices.Concat(o.head, o.text))
	if err != nil {
		l.Fatal(err)
	}
	key := l.r.s.o.Filter.Key
	switch m.Op {
	case frame.Event:
		want := l.at + 1
		for key != "" && fmt.Sprint(want%3) != key {
			want++
		}
		if m.Seq != want || m.Event.Seq != want || m.Sub != "s1" {
			l.Errorf("reader behind %d: %d came behind %d", l.from, m.Seq, l.at)
		}
		l.at = m.Seq
	case frame.Gap:
		l.gaps++
		if m.From <= l.at || m.To < m.From || key == "" && m.From != l.at+1 {
			l.Errorf("reader behind %d: a gap from %d to %d behind %d", l.from, m.From, m.To, l.at)
		}
		l.at = m.To
	case frame.CaughtUp:
	default:
		l.Errorf("%s came", m.Op)
	}
}

// end ends the reader.
func (l *logReader) end() {
	l.cancel()
	<-l.over
}

func sharedGateway(t *testing.T, b *logBus) *Gateway {
	g := idleGateway(t, Config{})
	g.b = b
	return g
}

// TestSharedEnd lets readers join anywhere, leave, be slow and stop, while reads of the bus
// break off: each gets what is behind its position, once and in order, or is told what is gone.
func TestSharedEnd(t *testing.T) {
	for seed := range *sharedEnds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { sharedEnd(t, rand.New(rand.NewPCG(seed, 8))) }) //nolint:gosec // repeatable
		})
	}
}

// sharedEnds is how many crowds of readers TestSharedEnd plays: make soak has more.
var sharedEnds = flag.Uint64("ends", 6, "how many crowds of readers TestSharedEnd plays")

func sharedEnd(t *testing.T, r *rand.Rand) {
	const n = 700
	b := newLogBus(rand.New(rand.NewPCG(r.Uint64(), 8))) //nolint:gosec // repeatable
	b.cuts = []int{0, 2, 20}[r.IntN(3)]
	if r.IntN(3) == 0 {
		b.keep = 50 + r.IntN(300)
	}
	g := sharedGateway(t, b)
	size := []int{10, 1 << 10, 8 << 10}[r.IntN(3)]
	paces := []time.Duration{0, 0, time.Microsecond, time.Millisecond, 20 * time.Millisecond}
	step := paces[r.IntN(4)]
	var readers sync.WaitGroup
	for range 50 {
		b.append(size)
	}
	for range 2 + r.IntN(12) {
		info, _ := b.TopicInfo(t.Context(), "orders")
		after := info.FirstSeq - 1 + r.Uint64N(info.LastSeq-info.FirstSeq+2)
		key := []string{"", "", "0", "2"}[r.IntN(4)]
		late, pace, stays := time.Duration(r.IntN(400))*time.Millisecond, paces[r.IntN(len(paces))], r.IntN(5) > 0
		readers.Go(func() {
			time.Sleep(late)
			l := b.join(t, g, after, key)
			from := l.from
			defer l.end()
			upTo := uint64(n - 2) // whatever its filter, the last but two or later is among the last
			if !stays {
				upTo = min(upTo, from+20)
			}
			l.take(upTo, func() {
				if pace > 0 {
					time.Sleep(pace)
				}
			})
		})
	}
	for b.last() < n {
		b.append(1 + r.IntN(size))
		if step > 0 && r.IntN(10) == 0 {
			time.Sleep(step)
		}
	}
	readers.Wait()
	if len(g.live.ends) > 0 || b.follows > 0 {
		t.Errorf("%d live ends and %d reads are left", len(g.live.ends), b.follows)
	}
	if b.most > 1 {
		t.Errorf("%d reads followed the topic at once", b.most)
	}
}

// TestSharedEndIsNotHeldUp has readers that do not read any more.
func TestSharedEndIsNotHeldUp(t *testing.T) {
	for _, stopped := range []int{1, 9} {
		synctest.Test(t, func(t *testing.T) {
			b := newLogBus(rand.New(rand.NewPCG(1, 1))) //nolint:gosec // repeatable
			g := sharedGateway(t, b)
			var all, idle []*logReader
			for range stopped {
				idle = append(idle, b.join(t, g, 0, ""))
			}
			all = append(all, b.join(t, g, 0, ""))
			synctest.Wait()
			const n = 800 // with their JSON, half as much again as sharedBytes
			for range n {
				b.append(2 << 10)
			}
			begin := time.Now()
			all[0].take(n, func() {})
			if took := time.Since(begin); took > sharedWait {
				t.Errorf("with %d that stopped, another one waits %v", stopped, took)
			}
			for _, l := range idle { // and they lose nothing
				l.take(n, func() {})
			}
			if b.most != 1 {
				t.Errorf("%d reads followed", b.most)
			}
			for _, l := range append(all, idle...) {
				l.end()
			}
		})
	}
}

// TestSharedEndOfOneSlowReader: a reader that nobody shares the topic with, and that is slower than
// what comes, has each event read about once, and not all that is in front of it time and again.
func TestSharedEndOfOneSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLogBus(rand.New(rand.NewPCG(1, 1))) //nolint:gosec // repeatable
		g := sharedGateway(t, b)
		l := b.join(t, g, 0, "")
		synctest.Wait()
		const n, size = 600, 8 << 10 // more than twice sharedBytes
		for range n {
			b.append(size)
		}
		l.take(n, func() { time.Sleep(100 * time.Millisecond) }) // 80 KiB a second
		l.end()
		if most := n + sharedBytes/size; b.yielded > most {
			t.Errorf("%d events were read for %d, use at most %d", b.yielded, n, most)
		}
	})
}

// TestSharedEndFails deletes the topic: all readers are told, and those that come later begin
// anew.
func TestSharedEndFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLogBus(rand.New(rand.NewPCG(1, 1))) //nolint:gosec // repeatable
		g := sharedGateway(t, b)
		one, two := b.join(t, g, 0, ""), b.join(t, g, 0, "")
		b.append(10)
		one.take(1, func() {})
		two.take(1, func() {})
		b.fail(jetbus.ErrPositionUnknown)
		synctest.Wait()
		for _, l := range []*logReader{one, two} {
			<-l.over
			if codeOf(l.result) != CodeOffsetGone {
				t.Errorf("%v", l.result)
			}
		}
		b.fail(nil)
		three := b.join(t, g, 1, "")
		b.append(10)
		three.take(2, func() {})
		for _, l := range []*logReader{one, two, three} {
			l.end()
		}
	})
}

// TestSharedEndIsBounded keeps no more of the topic than it may, whatever the size of events.
func TestSharedEndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLogBus(rand.New(rand.NewPCG(1, 1))) //nolint:gosec // repeatable
		g := sharedGateway(t, b)
		l := b.join(t, g, 0, "")
		synctest.Wait()
		end := l.r.s.ses.g.live.ends[liveKey{"orders", l.r.s.streams["orders"]}]
		for _, size := range []int{10, 300 << 10, 10, 1 << 20, 1 << 20, 100} {
			for range 20 {
				b.append(size)
				l.take(b.last(), func() {})
				end.mu.Lock()
				sum := 0
				for _, e := range end.events {
					sum += e.size
					if n := len(e.Payload) + len(e.members(false)); n > e.size {
						t.Errorf("%d bytes count for %d", n, e.size)
					}
				}
				if sum != end.bytes || sum > sharedBytes && len(end.events) > 1 {
					t.Errorf("%d events of %d bytes, %d counted", len(end.events), sum, end.bytes)
				}
				end.mu.Unlock()
			}
		}
		l.end()
	})
}
