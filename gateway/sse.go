package gateway

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// Times of an event stream.
const (
	heartbeat     = 15 * time.Second // between comments, so that proxies keep the connection
	reconnect     = 2000             // milliseconds until a browser connects again
	reconnectLate = 10_000           // at most, when all clients have to
)

// eventStream writes to one client, from several goroutines.
type eventStream struct {
	mu   sync.Mutex
	w    http.ResponseWriter
	rc   *http.ResponseController
	time time.Duration // of one write
	at   string        // the offset that the client was told last
	next string        // the offset that was read up to
	err  error         // why the stream ended: the first failed write, or the error of fail
}

// write writes, and flushes if asked.
func (s *eventStream) write(flush bool, parts ...[]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writeLocked(flush, parts...)
}

func (s *eventStream) writeLocked(flush bool, parts ...[]byte) error {
	if s.err != nil {
		return s.err
	}
	s.hurry()
	for _, b := range parts {
		if _, s.err = s.w.Write(b); s.err != nil {
			return s.err
		}
	}
	if flush {
		s.err = s.rc.Flush()
	}
	if s.err == nil { // over HTTP/2 a deadline that passes ends the stream, though nothing is being written
		_ = s.rc.SetWriteDeadline(time.Time{})
	}
	return s.err
}

// hurry gives what is written next its time.
func (s *eventStream) hurry() {
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.time)) // what has no deadlines is a test's
}

// send sends an event with its data, which has several lines where JSON does. An offset that
// is not empty is what the client goes on behind.
func (s *eventStream) send(flush bool, name, offset string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	head := "event: " + name + "\n"
	if offset != "" {
		s.at, s.next = offset, offset
		head = "id: " + offset + "\n" + head
	}
	return s.writeLocked(flush, []byte(head), dataLines(data), []byte("\n"))
}

// passed notes that events were read which the client's filter left out.
func (s *eventStream) passed(offset string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = offset
}

// beat keeps the connection, and tells the client how far its filter was read.
func (s *eventStream) beat() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ": \n\n"
	if s.next != s.at {
		text, s.at = "id: "+s.next+"\n\n", s.next
	}
	return s.writeLocked(true, []byte(text))
}

// dataLines makes the data of an event: CR and LF, which JSON has outside of strings alone,
// begin another line.
func dataLines(data []byte) []byte {
	out := make([]byte, 0, len(data)+8)
	out = append(out, "data: "...)
	if bytes.IndexByte(data, '\n') < 0 && bytes.IndexByte(data, '\r') < 0 {
		return append(append(out, data...), '\n')
	}
	for i, c := range data {
		switch {
		case c == '\n' && i > 0 && data[i-1] == '\r':
		case c == '\n' || c == '\r':
			out = append(out, "\ndata: "...)
		default:
			out = append(out, c)
		}
	}
	return append(out, '\n')
}

// stream sends the events behind a position as they come (Server-Sent Events), until the
// client goes, the gateway stops, or the client's token ends.
func (g *Gateway) stream(ctx context.Context, w http.ResponseWriter, t *tail) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies hold nothing back
	h.Set("X-Content-Type-Options", "nosniff")
	s := &eventStream{w: w, rc: http.NewResponseController(w), time: g.c.Limits.WriteTimeout, at: t.token()}
	s.next = s.at
	defer s.hurry() // net/http writes what is not flushed
	w.WriteHeader(http.StatusOK)
	if s.write(true, fmt.Appendf(nil, "retry: %d\n\n", reconnect)) != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var beating sync.WaitGroup
	beating.Go(func() {
		tick := time.NewTicker(heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if s.beat() != nil {
					cancel() // it reads nothing any more
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	defer beating.Wait()
	defer cancel()
	t.sendAll(ctx, s)
	if g.isDraining() { // all clients come back at once
		_ = s.write(true, fmt.Appendf(nil, "retry: %d\n\n", reconnect+rand.N(reconnectLate-reconnect))) //nolint:gosec // it spreads load, and is no secret
	}
}

// sendAll sends until there is a reason not to.
func (t *tail) sendAll(ctx context.Context, s *eventStream) {
	t.lost = func(lost gapEvent) error { return s.send(true, "gap", "", text(lost)) }
	if t.gap != nil && t.lost(*t.gap) != nil {
		return
	}
	for follow, wait := false, retryWait; ; {
		before := t.after
		err := t.sendSome(ctx, s, follow)
		switch {
		case ctx.Err() != nil || s.failed():
			return
		case err == nil && follow:
			return
		case err == nil:
			follow, wait = true, retryWait
			if s.send(true, "caught_up", t.token(), fmt.Appendf(nil, `{"offset":"%s","seq":%d}`, t.token(), t.after)) != nil {
				return
			}
			continue
		case !codeOf(err).Retryable():
			return // the client connects again, and is told then
		}
		if t.after != before {
			wait = retryWait
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		wait = min(2*wait, retryWaitMax)
		if err := t.current(ctx); err != nil && !codeOf(err).Retryable() {
			return
		}
	}
}

// sendSome sends what there is, or with follow what comes.
func (t *tail) sendSome(ctx context.Context, s *eventStream, follow bool) error {
	if !follow && !t.behind() {
		return nil
	}
	filter := t.filter
	defer func() { t.filter = filter }()
	t.filter = jetbus.Filter{} // looked at here, so that the client learns how far it came
	read := func(each func(*encoded) bool) error { return t.read(ctx, nil, each) }
	if follow {
		read = func(each func(*encoded) bool) error { return t.follow(ctx, each) }
	}
	err := read(func(e *encoded) bool {
		if !filter.Match(&e.Event) {
			s.passed(t.token())
			return true
		}
		size := int64(e.size) // of its data, which send copies
		if err := acquire(ctx, t.account, budget.Bytes, size); err != nil {
			s.fail(err) // the client reconnects and resumes after the previous event
			return false
		}
		defer t.account.Release(budget.Bytes, size)
		return s.send(follow, "event", t.token(), e.appendItem(nil)) == nil
	})
	if err == nil && !follow {
		err = t.caughtUp(ctx)
	}
	return err
}

// fail ends the stream with an error. Later writes return it.
func (s *eventStream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *eventStream) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}
