package gateway_test

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// restoreRig is a rig whose broker can be restored to an earlier state.
type restoreRig struct {
	*wsRig
	*bustest.Restorable
}

func inRestoreBubble(t *testing.T, f func(r *restoreRig)) {
	t.Helper()
	var broker *bustest.Restorable
	inBubbleOn(t, gateway.Config{}, func(t *testing.T) *embedded.Broker {
		broker = bustest.StartRestorable(t)
		return broker.Broker
	}, func(r *wsRig) {
		f(&restoreRig{r, broker})
		time.Sleep(time.Second) // until every connection is restored: nats.go leaves goroutines otherwise
	})
}

// fill sets keys of a topic, from one number up to another.
func (r *restoreRig) fill(topic, value string, from, to int) {
	r.Helper()
	for i := from; i <= to; i++ {
		r.set(topic, fmt.Sprintf("k%d=%q", i, value))
	}
}

// offsets returns the tokens that clients have of the end of a topic, by where they are from.
func (r *restoreRig) offsets(topic string) map[string]string {
	r.Helper()
	path := "/v1/topics/" + topic
	out := map[string]string{}
	page := r.do("GET", path+"/events?from=earliest&limit=100", "").is(200)
	events, _ := page["events"].([]any)
	last, _ := events[len(events)-1].(map[string]any)
	out["event of a page"], _ = last["offset"].(string)
	out["next page"], _ = page["next"].(string)
	out["snapshot"], _ = r.do("GET", path+"/snapshot", "").is(200)["offset"].(string)
	out["latest"], _ = r.do("GET", path+"/events?limit=1", "").is(200)["next"].(string)
	c := r.dial()
	c.next(frame.Hello)
	ok := c.ask(`{"op":"SUBSCRIBE","topic":"`+topic+`","corr":"s","opts":{}}`, frame.OK)
	out["SUBSCRIBE"] = ok.Offset
	out["CAUGHT_UP"] = c.next(frame.CaughtUp).Offset
	_ = c.ws.CloseNow()
	c = r.dial()
	c.next(frame.Hello)
	c.ask(`{"op":"SUBSCRIBE","topic":"`+topic+`","corr":"s","opts":{"from":"earliest"}}`, frame.OK)
	for range events {
		out["EVENT"] = c.next(frame.Event).Offset
	}
	_ = c.ws.CloseNow()
	for from, token := range out {
		if token == "" {
			r.Fatalf("%s has no offset", from)
		}
	}
	return out
}

func TestOffsetsOfALostHistoryAreGone(t *testing.T) {
	for name, c := range map[string]jetbus.TopicConfig{
		"keyed":     {Name: "t", KeyInSubject: true},
		"compacted": {Name: "t", Compact: true},
		"shared":    {Name: "t", Stream: "ALL", KeyInSubject: true},
	} {
		t.Run(name, func(t *testing.T) {
			inRestoreBubble(t, func(r *restoreRig) {
				r.ensure(c)
				r.fill("t", "old", 1, 3)
				kept := r.offsets("t")
				backup := r.Backup(r.T)
				time.Sleep(time.Second)
				r.fill("t", "old", 4, 6)
				lost := r.offsets("t")
				cursor, _ := r.do("GET", "/v1/topics/t/snapshot?limit=5", "").is(200)["next"].(string)
				for from, token := range kept {
					r.resumes(from, token, 200)
				}
				r.Restore(r.T, backup, nil)
				time.Sleep(time.Second)
				for i, more := range []int{0, 2, 1, 2} { // the topic ends before, at and after the position
					r.fill("t", "new", 10*i, 10*i+more-1)
					for from, token := range lost {
						r.isGone(fmt.Sprintf("%s, step %d", from, i), token)
					}
					r.do("GET", "/v1/topics/t/snapshot?cursor="+cursor, "").refused(gateway.CodeOffsetGone)
					for from, token := range kept {
						r.resumes(from, token, 200)
					}
				}
				for from, token := range lost { // an older gateway did not tell clients the time
					r.resumes(from, version1(r, token), 200)
				}
			})
		})
	}
}

// version1 is the token as an older gateway made it.
func version1(r *restoreRig, token string) string {
	r.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) < 17 {
		r.Fatalf("token %q: %v", token, err)
	}
	raw[0] = 1
	return base64.RawURLEncoding.EncodeToString(raw[:17])
}

// resumes asks for the events after a token over HTTP, and reports whether the answer has a status.
func (r *restoreRig) resumes(from, token string, status int) bool {
	r.Helper()
	res := r.do("GET", "/v1/topics/t/events?limit=1&after="+token, "")
	if res.status != status {
		r.Errorf("resume at the offset of %s: %d %s, want %d", from, res.status, res.text, status)
	}
	return res.status == status
}

// isGone tries to resume at a token in every way.
func (r *restoreRig) isGone(from, token string) {
	r.Helper()
	if !r.resumes(from, token, gateway.CodeOffsetGone.Status()) {
		return // a stream would not end
	}
	if res := r.do("GET", "/v1/topics/t/events?after="+token, "", "Accept", "text/event-stream", "Last-Event-ID", token); res.status != gateway.CodeOffsetGone.Status() {
		r.Errorf("stream from the offset of %s: %d %s", from, res.status, res.text)
	}
	c := r.dial()
	c.next(frame.Hello)
	for _, opts := range []string{`"offset":%q`, `"from":"offset","offset":%q`, `"offsets":[%q]`} {
		text := fmt.Sprintf(`{"op":"SUBSCRIBE","topic":"t","corr":"s","opts":{`+opts+`}}`, token)
		if m := c.ask(text, frame.Err); m.Code != "offset_gone" {
			r.Errorf("%s of %s: %+v", opts, from, m)
		}
	}
	if m := c.ask(fmt.Sprintf(`{"op":"SEEK","topic":"t","group":"g","corr":"k","to":{"offset":%q}}`, token), frame.Err); m.Code != "offset_gone" {
		r.Errorf("SEEK to %s: %+v", from, m)
	}
	_ = c.ws.CloseNow()
}

// A reader that follows a topic while the broker is restored is told, whether it waits at the
// live end, over HTTP or in a poll.
func TestFollowingReadersNoticeARestore(t *testing.T) {
	for name, stored := range map[string]int{"idle": 0, "shorter": 2, "longer": 9} {
		t.Run(name, func(t *testing.T) {
			inRestoreBubble(t, func(r *restoreRig) {
				r.ensure(jetbus.TopicConfig{Name: "t"})
				r.fill("t", "old", 1, 3)
				backup := r.Backup(r.T)
				time.Sleep(time.Second)
				r.fill("t", "old", 4, 6)
				c := r.dial()
				c.next(frame.Hello)
				c.ask(`{"op":"SUBSCRIBE","topic":"t","corr":"s","opts":{}}`, frame.OK)
				c.next(frame.CaughtUp)
				sse := r.events("/v1/topics/t/events?from=latest")
				sse.block()
				sse.next("caught_up")
				time.Sleep(time.Second)
				r.Restore(r.T, backup, nil)
				r.fill("t", "new", 1, stored)
				if m := c.next(frame.SubClosed); m.Code != "offset_gone" {
					r.Errorf("the reader got %+v", m)
				}
				for ended, late := false, time.After(patience); !ended; {
					select {
					case _, open := <-sse.blocks:
						ended = !open
					case <-late:
						r.Fatal("the stream goes on in another history")
					}
				}
			})
		})
	}
}
