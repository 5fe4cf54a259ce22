package adapter

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// pullModel is what a server and the way from it do to a puller's requests. What
// the server sends arrives in order, any time later; with replicas the words that
// overtake come before events that were sent earlier.
type pullModel struct {
	now        time.Time
	replicated bool
	asked      []pullRequest // on their way to the server
	waiting    []pullRequest // at the server
	coming     []pullAnswer  // on their way back
	ghosts     int           // events that were asked for by requests which ended without a word
}

type pullRequest struct {
	token uint64
	left  int
	bytes int64
}

type pullAnswer struct {
	sent  time.Time // by the server
	token uint64
	size  int64 // of an event; 0: it is a word
	word  pullWord
}

func (m *pullModel) answer(a pullAnswer) {
	a.sent = m.now
	m.coming = append(m.coming, a)
}

// end lets the server say that a request is over.
func (m *pullModel) end(i int, kind pullKind, at int) {
	q := m.waiting[i]
	m.waiting = slices.Delete(m.waiting, i, i+1)
	m.answer(pullAnswer{token: q.token, word: pullWord{kind: kind, events: q.left, bytes: q.bytes}})
	if last := len(m.coming) - 1; m.replicated && (pullWord{kind: kind}).overtakes() {
		a := m.coming[last]
		m.coming = slices.Insert(m.coming[:last], at%(last+1), a)
	}
}

// serve lets one request that waits bring an event, whichever it is.
func (m *pullModel) serve(i, at int, size int64) {
	if len(m.waiting) == 0 {
		return
	}
	i %= len(m.waiting)
	q := &m.waiting[i]
	if size > q.bytes {
		m.end(i, pullFull, at)
		return
	}
	m.answer(pullAnswer{token: q.token, size: size})
	q.left--
	q.bytes -= size
	switch {
	case q.bytes == 0: // without a word
		m.ghosts += q.left
		m.waiting = slices.Delete(m.waiting, i, i+1)
	case q.left == 0:
		m.end(i, pullDone, at)
	}
}

// outstanding is how many events and bytes can still come.
func (m *pullModel) outstanding() (events int, bytes int64) {
	for _, q := range slices.Concat(m.asked, m.waiting) {
		events, bytes = events+q.left, bytes+q.bytes
	}
	for _, a := range m.coming {
		switch {
		case a.size > 0:
			events, bytes = events+1, bytes+a.size
		case a.word.kind != pullBeat:
			events, bytes = events+a.word.events, bytes+a.word.bytes
		}
	}
	return events, bytes
}

// come takes in what comes next.
func (m *pullModel) come(t *rapid.T, p *pulls) {
	if len(m.coming) == 0 {
		return
	}
	a := m.coming[0]
	m.coming = m.coming[1:]
	switch {
	case a.size > 0:
		if since := p.event(a.size); since.After(a.sent) {
			t.Fatalf("an event sent at %v counts from %v", a.sent, since)
		} else if since.IsZero() {
			t.Fatal("nothing is known of an event that was asked for")
		}
	case a.word.kind == pullBeat:
		p.answered(a.token)
	default:
		p.close(a.token, a.word)
	}
	if p.bytes == 0 {
		m.ghosts = 0
	}
}

// TestPulls runs random requests, deliveries, heartbeats, ends and delays: the
// account never says that an event was sent later than it was, and what it
// counts on is what can come, to the byte.
func TestPulls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &pullModel{now: time.Unix(1, 0), replicated: rapid.Bool().Draw(t, "replicated")}
		var p pulls
		gaveUp := false
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			m.now = m.now.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms")) * time.Millisecond)
			i := rapid.IntRange(0, 9).Draw(t, "which")
			switch rapid.SampledFrom([]string{"ask", "take", "serve", "serve", "come", "come", "beat", "end", "give up"}).Draw(t, "step") {
			case "ask":
				n, bytes := i+1, rapid.Int64Range(1, 60).Draw(t, "bytes")
				m.asked = append(m.asked, pullRequest{p.ask(n, bytes, m.now), n, bytes})
			case "take":
				if len(m.asked) > 0 {
					m.waiting, m.asked = append(m.waiting, m.asked[0]), m.asked[1:]
				}
			case "serve":
				m.serve(i, rapid.IntRange(0, 20).Draw(t, "at"), rapid.Int64Range(1, 20).Draw(t, "size"))
			case "beat":
				if len(m.waiting) > 0 {
					m.answer(pullAnswer{token: m.waiting[i%len(m.waiting)].token})
				}
			case "end":
				if len(m.waiting) > 0 {
					m.end(i%len(m.waiting), pullOver, 0)
				}
			case "give up":
				if i == 0 {
					gaveUp = true
					p.giveUp(time.Hour) // nothing in this test is as old
				}
			case "come":
				m.come(t, &p)
			}
			events, bytes := m.outstanding()
			switch {
			case !gaveUp && (p.asked != events+m.ghosts || p.bytes != bytes):
				t.Fatalf("counts on %d events of %d bytes, %d of %d can come, and %d were asked for in vain", p.asked, p.bytes, events, bytes, m.ghosts)
			case p.asked < 0 || p.bytes < 0 || p.asked > events+m.ghosts || p.bytes > bytes:
				t.Fatalf("counts on %d events of %d bytes after giving up, %d of %d can come", p.asked, p.bytes, events, bytes)
			}
		}
	})
}

// over is the word of a request that has expired, with so much left.
func over(events int, bytes int64) pullWord {
	return pullWord{kind: pullOver, events: events, bytes: bytes}
}

// A request that the server never got is forgotten once a later one was answered
// long after, and does not make events look old.
func TestPullsForget(t *testing.T) {
	var p pulls
	now := time.Unix(1, 0)
	p.ask(100, 1000, now)
	p.giveUp(time.Second)
	for range 3 {
		now = now.Add(time.Second)
		token := p.ask(1, 10, now)
		p.answered(token)
		p.close(token, over(1, 10))
	}
	p.giveUp(time.Second)
	if len(p.open) != 0 || p.asked != 0 || p.bytes != 0 {
		t.Errorf("%+v", p)
	}
	if token := p.ask(2, 20, now.Add(time.Second)); token != 5 || p.event(5) != now.Add(time.Second) || p.bytes != 15 {
		t.Errorf("%+v", p)
	}
	p.reset()
	if p.asked != 0 || p.bytes != 0 || p.event(5) != p.proof {
		t.Errorf("%+v", p)
	}
}

// Of a request that was used up to the last byte the server says nothing: when all
// bytes have come, no more events are counted on.
func TestPullsUsedUp(t *testing.T) {
	var p pulls
	now := time.Unix(1, 0)
	p.ask(100, 30, now)
	p.ask(100, 20, now)
	for range 4 {
		p.event(10)
	}
	if p.asked != 196 || p.bytes != 10 {
		t.Errorf("%d events of %d bytes", p.asked, p.bytes)
	}
	p.event(10)
	if p.asked != 0 || p.bytes != 0 {
		t.Errorf("%+v", p)
	}
}

// What is overdue is not counted on any more, neither in events nor in bytes, and what is
// said of it later takes nothing from newer requests.
func TestPullsOverdue(t *testing.T) {
	var p pulls
	const life = 10 * time.Second
	now := time.Unix(1, 0)
	old := p.ask(100, 1000, now)
	p.event(10)
	p.ask(10, 500, now.Add(life))
	p.overdue(life, now.Add(life+pullGrace))
	if p.asked != 109 || p.bytes != 1490 {
		t.Errorf("in time: %d events of %d bytes", p.asked, p.bytes)
	}
	p.overdue(life, now.Add(life+pullGrace+1))
	if p.asked != 10 || p.bytes != 500 {
		t.Errorf("overdue: %d events of %d bytes", p.asked, p.bytes)
	}
	p.close(old, over(99, 990))
	if p.asked != 10 || p.bytes != 500 {
		t.Errorf("after the word: %d events of %d bytes", p.asked, p.bytes)
	}
}
