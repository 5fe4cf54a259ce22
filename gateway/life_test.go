package gateway

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// idleGateway is a gateway whose bus is not asked for anything.
func idleGateway(t *testing.T, c Config) *Gateway {
	t.Helper()
	g, err := New(struct{ jetbus.Backend }{}, c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]Config{
		"negative count":    {Limits: Limits{Connections: -1}},
		"negative time":     {Limits: Limits{Ping: -time.Second}},
		"rate":              {Limits: Limits{Rate: -2}},
		"lease beyond all":  {Limits: Limits{LeaseMax: 2 * time.Hour}},
		"tiny frames":       {Limits: Limits{FrameBytes: 1}},
		"header of a proxy": {Headers: []string{"Nats-Rollup"}},
		"credentials":       {Headers: []string{"User-Agent", "Authorization"}},
		"origin with path":  {Origins: []string{"https://a.example.com/x"}},
	} {
		if _, err := New(struct{ jetbus.Backend }{}, c); !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(nil, Config{}); !errors.Is(err, jetbus.ErrInvalidOption) {
		t.Errorf("no bus: %v", err)
	}
}

func TestTrack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := idleGateway(t, Config{Limits: Limits{PerPrincipal: 1}})
		who := Principal{Subject: "ann", Expires: time.Now().Add(time.Minute)}
		ctx, release, err := g.track(t.Context(), who, streams)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := g.track(t.Context(), who, streams); codeOf(err) != CodeRateLimited {
			t.Errorf("a second stream: %v", err)
		}
		<-ctx.Done()
		if codeOf(context.Cause(ctx)) != CodeTokenExpired {
			t.Errorf("ended by %v", context.Cause(ctx))
		}
		release()
		release()
		ctx, release, err = g.track(t.Context(), Principal{Subject: "ann"}, streams)
		if err != nil {
			t.Fatal(err)
		}
		drained := make(chan error, 1)
		go func() { drained <- g.Drain(context.Background()) }() // ends below
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), errDraining) {
			t.Errorf("ended by %v", context.Cause(ctx))
		}
		synctest.Wait()
		select {
		case err := <-drained:
			t.Errorf("Drain did not wait: %v", err)
		default:
		}
		release()
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if _, _, err := g.track(t.Context(), who, streams); codeOf(err) != CodeDraining {
			t.Errorf("after Drain: %v", err)
		}
	})
}

func TestOffset(t *testing.T) {
	o := offset{stream: 1 << 63, seq: 1<<53 + 1, stored: 1<<62 + 1}
	if got, err := parseOffset(o.String()); err != nil || got != o {
		t.Errorf("%+v, %v", got, err)
	}
	older := offset{stream: o.stream, seq: o.seq} // by a gateway of version 1
	if got, err := parseOffset("AYAAAAAAAAAAACAAAAAAAAE"); err != nil || got != older || got.checkpoint().Seq != 0 {
		t.Errorf("a token of version 1: %+v, %v", got, err)
	}
	for _, token := range []string{
		"", "x", o.String() + "A", o.String()[:20], "AAAAAAAAAAAAAAAAAAAAAAA", "AoAAAAAAAAAAACAAAAAAAAE", "B" + o.String()[1:], "../../../../etc/passwd",
	} {
		if _, err := parseOffset(token); codeOf(err) != CodeBadRequest {
			t.Errorf("%q: %v", token, err)
		}
	}
}

func FuzzOffset(f *testing.F) {
	f.Add(offset{stream: 1, seq: 2, stored: 3}.String())
	f.Add("AYAAAAAAAAAAACAAAAAAAAE")
	f.Fuzz(func(t *testing.T, token string) {
		o, err := parseOffset(token)
		if err != nil {
			return
		}
		if again, err := parseOffset(o.String()); err != nil || again != o {
			t.Errorf("%q is %+v, and its token is that of %+v, %v", token, o, again, err)
		}
		if c := o.checkpoint(); c.Seq != 0 && (c.Seq != o.seq || c.Stored.UnixNano() != o.stored) {
			t.Errorf("%+v has the checkpoint %+v", o, c)
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	q := newQueue(8 << 10)
	if err := q.push(make([]byte, 9<<10), answerFrame); err != nil {
		t.Errorf("the first answer: %v", err)
	}
	if err := q.push([]byte("x"), answerFrame); !errors.Is(err, errSlow) {
		t.Errorf("one more: %v", err)
	}
	done := make(chan struct{})
	close(done)
	if q.pushEvent(done, func() []byte { t.Error("built"); return nil }) {
		t.Error("an event although there is no room")
	}
	q.close()
	if err := q.push([]byte("x"), answerFrame); !errors.Is(err, errQueueClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestClockGoesBack lets the timer of a token's end fire before that end.
func TestClockGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &conn{g: idleGateway(t, Config{}), ended: make(chan struct{}), wrote: make(chan struct{}), out: newQueue(1 << 10)}
		c.ctx, c.cancel = context.WithCancel(t.Context())
		defer c.cancel()
		c.who.Expires = time.Now().Add(time.Hour)
		c.expiry = time.NewTimer(time.Hour)
		c.expiry.Stop()
		c.expire(c.who.Expires)
		if c.isOver() {
			t.Error("it ended early")
		}
		if !c.expiry.Stop() {
			t.Error("nothing ends the connection any more")
		}
		before := c.expiry
		c.expire(time.Now())
		if c.isOver() || c.expiry != before {
			t.Error("the end of a token that is not used any more counts")
		}
	})
}

// TestBoxIsBounded replaces small events by big ones.
func TestBoxIsBounded(t *testing.T) {
	const limit, big = 4 << 10, 100 << 10
	b := newBox(limit, nil)
	seq := uint64(0)
	add := func(key string, size int) bool {
		seq++
		return b.add(encode(&jetbus.Event{Topic: "t", Key: key, Seq: seq, Payload: make([]byte, size)}, 0))
	}
	for _, key := range []string{"a", "b", "c"} {
		if !add(key, 0) {
			t.Errorf("%s has no room", key)
		}
	}
	if !add("a", big) {
		t.Error("the first one has no room")
	}
	if add("b", big) || add("d", 0) {
		t.Error("beyond the limit and one event there is room")
	}
	if !add("b", 0) || !add("a", 0) || !add("b", big) {
		t.Error("no room for what takes no more, or when there is some again")
	}
	if b.bytes > limit+sizeWithJSON(&jetbus.Event{Topic: "t", Key: "b", Payload: make([]byte, big)}) {
		t.Errorf("%d bytes", b.bytes)
	}
}
