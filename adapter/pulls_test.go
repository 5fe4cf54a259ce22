package adapter

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// pullModel is what a server and the way from it do to a puller's requests. What
// the server sends arrives in order, any time later.
type pullModel struct {
	now     time.Time
	asked   []pullRequest // on their way to the server
	waiting []pullRequest // at the server
	coming  []pullAnswer  // on their way back
}

type pullRequest struct {
	token uint64
	left  int
}

type pullAnswer struct {
	sent    time.Time // by the server
	token   uint64
	event   bool
	beat    bool
	pending int
}

func (m *pullModel) answer(a pullAnswer) {
	a.sent = m.now
	m.coming = append(m.coming, a)
}

// serve lets one request that waits bring an event, whichever it is.
func (m *pullModel) serve(i int) {
	if len(m.waiting) == 0 {
		return
	}
	i %= len(m.waiting)
	m.answer(pullAnswer{token: m.waiting[i].token, event: true})
	if m.waiting[i].left--; m.waiting[i].left == 0 {
		m.waiting = append(m.waiting[:i], m.waiting[i+1:]...) // without a word
	}
}

// outstanding is how many events can still come.
func (m *pullModel) outstanding() int {
	n := 0
	for _, q := range append(append([]pullRequest(nil), m.asked...), m.waiting...) {
		n += q.left
	}
	for _, a := range m.coming {
		switch {
		case a.event:
			n++
		case !a.beat:
			n += a.pending
		}
	}
	return n
}

// TestPulls runs random requests, deliveries, heartbeats, ends and delays: the
// account never says that an event was sent later than it was, and what it
// counts on is what can come.
func TestPulls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &pullModel{now: time.Unix(1, 0)}
		var p pulls
		gaveUp := false
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			m.now = m.now.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms")) * time.Millisecond)
			i := rapid.IntRange(0, 9).Draw(t, "which")
			switch rapid.SampledFrom([]string{"ask", "take", "serve", "serve", "come", "come", "beat", "end", "give up"}).Draw(t, "step") {
			case "ask":
				n := i + 1
				m.asked = append(m.asked, pullRequest{p.ask(n, m.now), n})
			case "take":
				if len(m.asked) > 0 {
					m.waiting, m.asked = append(m.waiting, m.asked[0]), m.asked[1:]
				}
			case "serve":
				m.serve(i)
			case "beat":
				if len(m.waiting) > 0 {
					m.answer(pullAnswer{token: m.waiting[i%len(m.waiting)].token, beat: true})
				}
			case "end":
				if len(m.waiting) > 0 {
					i %= len(m.waiting)
					m.answer(pullAnswer{token: m.waiting[i].token, pending: m.waiting[i].left})
					m.waiting = append(m.waiting[:i], m.waiting[i+1:]...)
				}
			case "give up":
				if i == 0 {
					gaveUp = true
					p.giveUp(time.Hour) // nothing in this test is as old
				}
			case "come":
				if len(m.coming) == 0 {
					continue
				}
				a := m.coming[0]
				m.coming = m.coming[1:]
				switch {
				case a.event:
					if since := p.event(); since.After(a.sent) {
						t.Fatalf("an event sent at %v counts from %v", a.sent, since)
					} else if since.IsZero() {
						t.Fatal("nothing is known of an event that was asked for")
					}
				case a.beat:
					p.answered(a.token)
				default:
					p.close(a.token, a.pending)
				}
			}
			if got, want := p.asked, m.outstanding(); !gaveUp && got != want {
				t.Fatalf("counts on %d events, %d can come", got, want)
			} else if got < 0 || gaveUp && got > want {
				t.Fatalf("counts on %d events after giving up, %d can come", got, want)
			}
		}
	})
}

// A request that the server never got is forgotten once a later one was answered
// long after, and does not make events look old.
func TestPullsForget(t *testing.T) {
	var p pulls
	now := time.Unix(1, 0)
	p.ask(100, now)
	p.giveUp(time.Second)
	for range 3 {
		now = now.Add(time.Second)
		token := p.ask(1, now)
		p.answered(token)
		p.close(token, 1)
	}
	p.giveUp(time.Second)
	if len(p.open) != 0 || p.asked != 0 {
		t.Errorf("%+v", p)
	}
	if token := p.ask(2, now.Add(time.Second)); token != 5 || p.event() != now.Add(time.Second) {
		t.Errorf("%+v", p)
	}
	p.reset()
	if p.asked != 0 || p.event() != p.proof {
		t.Errorf("%+v", p)
	}
}
