package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/client"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// firstFew refuses the first n frames of each op that is named, for their rate.
func firstFew(n int, ops ...string) func(*line, *frame.Request) string {
	seen := map[string]int{}
	return func(_ *line, r *frame.Request) string {
		seen[r.Op]++
		for _, op := range ops {
			if r.Op == op && seen[op] <= n {
				return limited(r)
			}
		}
		return yes(r)
	}
}

func nothing(context.Context, *jetbus.Delivery) error { return nil }

// member joins the group "g".
func (s *standIn) member(bus jetbus.Subscriber, h jetbus.Handler, o jetbus.SubscribeOptions) jetbus.Subscription {
	s.Helper()
	m, err := bus.Subscribe(s.Context(), "orders", "g", h, o)
	if err != nil {
		s.Fatal(err)
	}
	return m
}

// TestWhatIsRefusedForItsRateIsSaidAgain: a gateway that was not told that a subscription is
// over, or paused, goes on pushing to it.
func TestWhatIsRefusedForItsRateIsSaidAgain(t *testing.T) {
	inScript(t, firstFew(2, frame.Unsubscribe, frame.Flow), func(s *standIn) {
		bus, _ := s.dial(nil)
		m := s.member(bus, nothing, jetbus.SubscribeOptions{})
		m.Pause()
		time.Sleep(time.Second)
		flow := s.said(frame.Flow)
		if len(flow) != 3 || !*flow[2].Pause {
			s.Errorf("pause was said %d times", len(flow))
		}
		if err := m.Stop(s.Context()); err != nil {
			s.Error(err)
		}
		if n := len(s.said(frame.Unsubscribe)); n != 3 {
			s.Errorf("UNSUBSCRIBE was said %d times", n)
		}
	})
}

// TestAPauseThatIsOverIsNotSaidAgain: what is said again is what holds then.
func TestAPauseThatIsOverIsNotSaidAgain(t *testing.T) {
	inScript(t, firstFew(1, frame.Flow), func(s *standIn) {
		bus, _ := s.dial(nil)
		m := s.member(bus, nothing, jetbus.SubscribeOptions{})
		m.Pause()
		synctest.Wait()
		m.Resume()
		time.Sleep(time.Minute)
		if flow := s.said(frame.Flow); *flow[len(flow)-1].Pause {
			s.Errorf("it is paused: %d frames", len(flow))
		}
	})
}

// TestAPauseThatEndsWithoutAConnection: a gateway that keeps the session keeps the pause, until it
// is told otherwise.
func TestAPauseThatEndsWithoutAConnection(t *testing.T) {
	inScript(t, func(c *line, r *frame.Request) string {
		if r.Op == frame.Auth && c.n > 1 {
			return `{"op":"OK","corr":"auth","recovered":true,"subs":["c1"]}`
		}
		return yes(r)
	}, func(s *standIn) {
		bus, c := s.dial(nil)
		m := s.member(bus, nothing, jetbus.SubscribeOptions{})
		m.Pause()
		if flow := s.said(frame.Flow); len(flow) != 1 || !*flow[0].Pause || flow[0].Sub != "c1" {
			s.Fatalf("said %+v", flow)
		}
		s.away.Store(true)
		c.cut()
		synctest.Wait()
		m.Resume()
		s.away.Store(false)
		get(s.T, "the connection", s.lines)
		time.Sleep(time.Second)
		if flow := s.said(frame.Flow); *flow[len(flow)-1].Pause {
			s.Errorf("it is paused still: %d frames", len(flow))
		}
	})
}

// TestAnAckBesideAnExtension: an extension that waits while its event is settled makes no failure of that.
func TestAnAckBesideAnExtension(t *testing.T) {
	frames := 0
	inScript(t, func(_ *line, r *frame.Request) string {
		if r.Op != frame.Acks {
			return yes(r)
		}
		switch frames++; {
		case frames == 1:
			return limited(r)
		case len(r.Ack) > 0 && len(r.Mod) > 0: // as the gateway: what is settled cannot be extended
			return fmt.Sprintf(`{"op":"OK","corr":%q,"results":[{"ack_id":%q,"applied":false,"reason":"settled"}]}`, r.Corr, r.Mod[0].AckID)
		}
		return yes(r)
	}, func(s *standIn) {
		bus, c := s.dial(nil)
		got, extended := make(chan *jetbus.Delivery, 1), make(chan error, 1)
		m := s.member(bus, func(_ context.Context, d *jetbus.Delivery) error {
			got <- d
			return nil
		}, jetbus.SubscribeOptions{AckTimeout: time.Hour, ManualAck: true})
		c.event("c1", "a", 1)
		d := get(s.T, "the event", got)
		go func() { extended <- d.Extend(s.Context(), time.Hour) }()
		synctest.Wait()
		if err := d.Ack(s.Context()); err != nil {
			s.Error(err)
		}
		_ = get(s.T, "the extension's end", extended)
		if st := m.Stats(); st.Acked != 1 || st.LeasesLost != 0 || frames != 2 {
			s.Errorf("%d frames, %+v", frames, st)
		}
	})
}

// TestExtensionByHandIsObserved: whoever asks why an event is held for so long hears that its holder wanted it.
func TestExtensionByHandIsObserved(t *testing.T) {
	frames := 0
	inScript(t, func(_ *line, r *frame.Request) string {
		if r.Op == frame.Acks {
			if frames++; frames == 2 {
				return fmt.Sprintf(`{"op":"OK","corr":%q,"results":[{"ack_id":%q,"applied":false,"reason":"expired"}]}`, r.Corr, r.Mod[0].AckID)
			}
		}
		return yes(r)
	}, func(s *standIn) {
		var heard []jetbus.Observation // each after what it tells of, on this goroutine
		bus, c := s.dial(func(c *client.Config) {
			c.Observer = func(o jetbus.Observation) {
				if o.Kind == jetbus.Extended {
					heard = append(heard, o)
				}
			}
		})
		got := make(chan *jetbus.Delivery, 1)
		s.member(bus, func(_ context.Context, d *jetbus.Delivery) error {
			got <- d
			return nil
		}, jetbus.SubscribeOptions{AckTimeout: time.Hour, ManualAck: true})
		c.event("c1", "a", 1)
		d := get(s.T, "the event", got)
		if err := d.Extend(s.Context(), time.Hour); err != nil {
			s.Error(err)
		}
		if err := d.Extend(s.Context(), time.Hour); !errors.Is(err, jetbus.ErrLeaseExpired) {
			s.Errorf("extended what is lost: %v", err)
		}
		if len(heard) != 1 || heard[0].ID != d.ID || heard[0].Attempt != 1 || heard[0].Reason != "extended by its holder" {
			s.Errorf("the observer was told %+v", heard)
		}
	})
}

// TestUnknownEventsEndTheirSubscription: events that nobody has asked for are held by nobody.
func TestUnknownEventsEndTheirSubscription(t *testing.T) {
	inScript(t, func(_ *line, r *frame.Request) string {
		if r.Op == frame.Unsubscribe { // it takes its time
			return ""
		}
		return yes(r)
	}, func(s *standIn) {
		_, c := s.dial(nil)
		for i := range 3 {
			c.event("ghost", "a", i+1)
		}
		if left := s.said(frame.Unsubscribe); len(left) != 1 || left[0].Sub != "ghost" {
			s.Errorf("said %+v", left)
		}
	})
}

// TestATokenThatStaysTheSame: a source of tokens that keeps one until shortly before its end is
// asked again in a while, and the gateway is not told what it knows.
func TestATokenThatStaysTheSame(t *testing.T) {
	var asked atomic.Int64
	token := func(context.Context) (string, error) {
		if asked.Add(1) <= 10 {
			return "old", nil
		}
		return "new", nil
	}
	inScript(t, func(c *line, r *frame.Request) string {
		if r.Op != frame.Auth {
			return yes(r)
		}
		return expiring(c, r, r.Token != "new")
	}, func(s *standIn) {
		s.dial(func(c *client.Config) { c.Token = token })
		time.Sleep(time.Minute)
		if said := s.said(frame.Auth); len(said) != 2 || said[0].Token != "old" || said[1].Token != "new" {
			s.Errorf("tokens that were sent: %+v", said)
		}
		if n := asked.Load(); n != 11 {
			s.Errorf("%d tokens were asked for", n)
		}
	})
}

// expiring answers AUTH, and says that the token ends soon.
func expiring(c *line, r *frame.Request, soon bool) string {
	if !soon {
		return yes(r)
	}
	ends := time.Now().Unix() + 60
	go func() { c.say(`{"op":"TOKEN_EXPIRING","exp":%d}`, ends) }() // before the answer, or behind it
	return fmt.Sprintf(`{"op":"OK","corr":%q,"exp":%d}`, r.Corr, ends)
}

// TestTokensThatEndSoon: each token ends within the minute in which the gateway says so.
func TestTokensThatEndSoon(t *testing.T) {
	var asked atomic.Int64
	token := func(context.Context) (string, error) { return fmt.Sprint(asked.Add(1)), nil }
	inScript(t, func(c *line, r *frame.Request) string {
		if r.Op != frame.Auth {
			return yes(r)
		}
		return expiring(c, r, true)
	}, func(s *standIn) {
		s.dial(func(c *client.Config) { c.Token = token })
		time.Sleep(time.Minute)
		if n := len(s.said(frame.Auth)); n < 3 || n > 15 {
			s.Errorf("%d tokens were sent within a minute", n)
		}
	})
}

// TestWhatIsSaidBeforeTheAnswerToAuth: a session goes on, but for a subscription that the token
// no longer allows.
func TestWhatIsSaidBeforeTheAnswerToAuth(t *testing.T) {
	inScript(t, func(c *line, r *frame.Request) string {
		if r.Op != frame.Auth || c.n == 1 {
			return yes(r)
		}
		c.say(`{"op":"SUB_CLOSED","sub":"c1","code":"forbidden","msg":"the token does not allow it"}`)
		return `{"op":"OK","corr":"auth","recovered":true,"subs":["c1"]}`
	}, func(s *standIn) {
		bus, c := s.dial(nil)
		m := s.member(bus, nothing, jetbus.SubscribeOptions{})
		c.cut()
		get(s.T, "the end of the subscription", m.Done())
		if !errors.Is(m.Err(), jetbus.ErrDenied) {
			s.Errorf("it ended with %v", m.Err())
		}
	})
}

// TestStopReachesAHandlerThatSettled: a handler that has acknowledged its event, and goes on, is
// told to stop as others are.
func TestStopReachesAHandlerThatSettled(t *testing.T) {
	inScript(t, answer, func(s *standIn) {
		bus, c := s.dial(nil)
		entered, ends := make(chan struct{}), make(chan error, 1)
		m := s.member(bus, func(ctx context.Context, d *jetbus.Delivery) error {
			if err := d.Ack(ctx); err != nil {
				s.Error(err)
			}
			close(entered)
			<-ctx.Done()
			ends <- context.Cause(ctx)
			return nil
		}, jetbus.SubscribeOptions{})
		c.event("c1", "a", 1)
		<-entered
		ctx, cancel := context.WithTimeout(s.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := m.Stop(ctx); err != nil || time.Since(began) > 2*time.Second {
			s.Errorf("stopped after %v: %v", time.Since(began), err)
		}
		if err := get(s.T, "the end of the handler", ends); !errors.Is(err, jetbus.ErrStopped) {
			s.Errorf("it ended for %v", err)
		}
	})
}

// TestHandlersEndWithTheGrace: when the connection breaks, the gateway keeps what is held for
// a while, or not at all; handlers go on no longer than that.
func TestHandlersEndWithTheGrace(t *testing.T) {
	for what, of := range map[string]struct {
		grace time.Duration
		end   func(c *line)
		after time.Duration
	}{
		"none":              {-1, (*line).cut, 0},
		"the usual one":     {0, (*line).cut, 29 * time.Second},
		"the gateway stops": {0, func(c *line) { _ = c.ws.Close(frame.CloseGoingAway, "going_away") }, 0},
		"silence":           {0, func(*line) {}, 2*time.Hour + 10*time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			inScript(t, answer, func(s *standIn) {
				bus, c := s.dial(func(c *client.Config) { c.ResumeGrace = of.grace })
				ends := make(chan error, 1)
				s.member(bus, func(ctx context.Context, d *jetbus.Delivery) error {
					<-ctx.Done()
					ends <- context.Cause(ctx)
					if err := d.Ack(s.Context()); !errors.Is(err, jetbus.ErrLeaseExpired) {
						s.Errorf("ack: %v", err)
					}
					return nil
				}, jetbus.SubscribeOptions{AckTimeout: 24 * time.Hour})
				c.event("c1", "a", 1)
				synctest.Wait()
				s.away.Store(true)
				began := time.Now()
				of.end(c)
				select {
				case err := <-ends:
					if took := time.Since(began); !errors.Is(err, jetbus.ErrLeaseExpired) || took < of.after || took > of.after+time.Second {
						s.Errorf("it ended after %v: %v", took, err)
					}
				case <-time.After(12 * time.Hour):
					s.Error("the handler goes on")
				}
			})
		})
	}
}

// TestLeasesOutlastACut: the session is taken up within the grace, and leases end when they
// would have ended; also those that nobody extends.
func TestLeasesOutlastACut(t *testing.T) {
	inScript(t, func(c *line, r *frame.Request) string {
		if r.Op == frame.Auth && c.n > 1 {
			return `{"op":"OK","corr":"auth","recovered":true,"subs":["c1"]}`
		}
		return yes(r)
	}, func(s *standIn) {
		bus, c := s.dial(func(c *client.Config) { c.Reconnect = jetbus.Backoff{Min: time.Second, Max: time.Second} })
		got := make(chan *jetbus.Delivery, 1)
		s.member(bus, func(_ context.Context, d *jetbus.Delivery) error {
			got <- d
			return nil
		}, jetbus.SubscribeOptions{AckTimeout: time.Hour, ManualAck: true})
		c.event("c1", "a", 1)
		d := get(s.T, "the event", got)
		if err := d.Extend(s.Context(), time.Hour); err != nil {
			s.Fatal(err)
		}
		ends := d.Deadline()
		s.away.Store(true)
		c.cut()
		time.Sleep(10 * time.Second)
		if at := d.Deadline(); time.Until(at) > 20*time.Second {
			s.Errorf("without a connection it is held until %v", at)
		}
		s.away.Store(false)
		time.Sleep(time.Minute)
		if at := d.Deadline(); !at.Equal(ends) {
			s.Errorf("it ends at %v, not %v", at, ends)
		}
		if err := d.Ack(s.Context()); err != nil {
			s.Error(err)
		}
	})
}

// read reads the topic until the end of the test, and returns what comes: payloads and an error.
func (s *standIn) read(bus jetbus.Reader, o jetbus.ReadOptions) <-chan any {
	out := make(chan any)
	ctx, cancel := context.WithCancel(s.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(out)
		for e, err := range bus.Read(ctx, []string{"orders"}, o) {
			var what any = string(e.Payload)
			if err != nil {
				what = err
			}
			select {
			case out <- what:
			case <-ctx.Done():
				return
			}
		}
	})
	s.Cleanup(func() {
		cancel()
		reading.Wait()
	})
	return out
}

// TestNothingIsReadBehindAReset: what the topic has that was made anew is not what was asked for.
func TestNothingIsReadBehindAReset(t *testing.T) {
	inScript(t, answer, func(s *standIn) {
		bus, c := s.dial(nil)
		got := s.read(bus, jetbus.ReadOptions{Follow: true})
		s.said(frame.Subscribe)
		c.event("c1", "", 7)
		c.say(`{"op":"GAP","sub":"c1","from":8,"to":0,"reason":"reset"}`)
		c.event("c1", "", 1)
		synctest.Wait()
		if e := get(s.T, "the event", got); e != "7" {
			s.Errorf("%v came", e)
		}
		if err, ok := get(s.T, "the error", got).(error); !ok || !errors.Is(err, jetbus.ErrPositionUnknown) {
			s.Errorf("%v came", err)
		}
	})
}

// TestAReaderWithoutRoomAsksForNothing: not over a new connection either, until there is room.
func TestAReaderWithoutRoomAsksForNothing(t *testing.T) {
	inScript(t, answer, func(s *standIn) {
		bus, c := s.dial(func(c *client.Config) { c.Buffer = 600 })
		got := s.read(bus, jetbus.ReadOptions{Follow: true})
		s.said(frame.Subscribe)
		for i := range 9 { // one is on its way to the test, two are in the buffer
			c.event("c1", "", i+1)
			synctest.Wait()
		}
		c.cut()
		c = get(s.T, "another connection", s.lines)
		if n := len(s.said(frame.Subscribe)); n != 1 {
			s.Errorf("%d SUBSCRIBE frames", n)
		}
		for _, want := range []string{"1", "2", "3"} {
			if e := get(s.T, "an event", got); e != want {
				s.Errorf("%v came, not %s", e, want)
			}
		}
		asked := s.said(frame.Subscribe)
		if len(asked) != 2 || !strings.Contains(string(asked[1].Opts), `"offset":"o3"`) {
			s.Fatalf("asked for %+v", asked)
		}
		c.event(asked[1].Sub, "", 4)
		if e := get(s.T, "an event", got); e != "4" {
			s.Errorf("%v came", e)
		}
	})
}

// TestAReaderThatAskedTwice: the gateway has the subscription by that name.
func TestAReaderThatAskedTwice(t *testing.T) {
	inScript(t, func(_ *line, r *frame.Request) string {
		if r.Op == frame.Subscribe {
			return fmt.Sprintf(`{"op":"ERR","corr":%q,"code":"already_subscribed","msg":"there is a subscription \"%s\""}`, r.Corr, r.Sub)
		}
		return yes(r)
	}, func(s *standIn) {
		bus, c := s.dial(nil)
		got := s.read(bus, jetbus.ReadOptions{Follow: true})
		s.said(frame.Subscribe)
		c.event("c1", "", 1)
		if e := get(s.T, "the event", got); e != "1" {
			s.Errorf("%v came", e)
		}
	})
}

// TestLatestStaysWhereItWas: a reader of what is new goes on where it began, when the
// connection breaks before the first event.
func TestLatestStaysWhereItWas(t *testing.T) {
	inScript(t, func(_ *line, r *frame.Request) string {
		if r.Op == frame.Subscribe {
			return fmt.Sprintf(`{"op":"OK","corr":%q,"sub":%q,"offset":"here"}`, r.Corr, r.Sub)
		}
		return yes(r)
	}, func(s *standIn) {
		bus, c := s.dial(nil)
		s.read(bus, jetbus.ReadOptions{Follow: true})
		s.said(frame.Subscribe)
		c.cut()
		get(s.T, "another connection", s.lines)
		if asked := s.said(frame.Subscribe); len(asked) != 2 || !strings.Contains(string(asked[1].Opts), `"offset":"here"`) {
			s.Errorf("asked for %+v", asked)
		}
	})
}

// TestCrowdedGatewaysAreTriedAgain: a client that was let in before does not stay away for good
// because of others, or of a machine that was asleep.
func TestCrowdedGatewaysAreTriedAgain(t *testing.T) {
	for _, code := range []int{frame.CloseConnections, frame.CloseAuthTimeout} {
		inScript(t, func(c *line, r *frame.Request) string {
			if r.Op == frame.Auth && (c.n == 2 || c.n == 3) {
				_ = c.ws.Close(websocket.StatusCode(code), "crowded")
			}
			return yes(r)
		}, func(s *standIn) {
			bus, c := s.dial(func(c *client.Config) {
				c.Reconnect = jetbus.Backoff{Min: time.Second, Max: time.Minute, NoJitter: true}
			})
			c.cut()
			began := time.Now()
			for range 3 {
				get(s.T, "another connection", s.lines)
			}
			if took := time.Since(began).Round(time.Second); took != 2*time.Minute+time.Second {
				s.Errorf("%d: it took %v", code, took)
			}
			if _, err := bus.Publish(s.Context(), jetbus.Event{Topic: "orders"}); err != nil {
				s.Error(err)
			}
		})
	}
}

// TestCloseWhileItConnects: there is no connection, or one that is not let in yet.
func TestCloseWhileItConnects(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Millisecond, time.Second, 5 * time.Second} {
		inScript(t, func(c *line, r *frame.Request) string {
			if r.Op == frame.Auth && c.n > 1 {
				time.Sleep(time.Second)
			}
			return yes(r)
		}, func(s *standIn) {
			bus, c := s.dial(func(c *client.Config) {
				c.Reconnect = jetbus.Backoff{Min: time.Millisecond, Max: time.Millisecond, NoJitter: true}
			})
			s.member(bus, nothing, jetbus.SubscribeOptions{})
			c.cut()
			time.Sleep(wait)
			ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			if err := bus.Close(ctx); err != nil || time.Since(began) > 10*time.Second {
				s.Errorf("after %v: closed after %v: %v", wait, time.Since(began), err)
			}
		})
	}
}

// TestOthersWhenItCloses: calls that wait end with Close, and those of Close with their context.
func TestOthersWhenItCloses(t *testing.T) {
	inScript(t, func(_ *line, r *frame.Request) string {
		if r.Op == frame.Publish {
			return ""
		}
		return yes(r)
	}, func(s *standIn) {
		bus, _ := s.dial(nil)
		var publishing sync.WaitGroup
		var closed atomic.Int64
		ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
		defer cancel()
		for range 130 {
			publishing.Go(func() {
				_, err := bus.Publish(ctx, jetbus.Event{Topic: "orders"})
				if errors.Is(err, jetbus.ErrClosed) {
					closed.Add(1)
				}
			})
		}
		synctest.Wait()
		publishing.Go(func() {
			if err := bus.Close(s.Context()); err != nil {
				s.Error(err)
			}
		})
		synctest.Wait()
		if n := closed.Load(); n != 2 {
			s.Errorf("%d publishes ended with Close", n)
		}
		short, cancel := context.WithTimeout(s.Context(), time.Second)
		defer cancel()
		if err := bus.Close(short); !errors.Is(err, jetbus.ErrUnavailable) {
			s.Errorf("the second call: %v", err)
		}
		publishing.Wait()
	})
}

// TestMembersJoinWhileItConnects: a connection that is made finds members that have just come.
func TestMembersJoinWhileItConnects(t *testing.T) {
	inScript(t, answer, func(s *standIn) {
		bus, c := s.dial(func(c *client.Config) { c.Reconnect = jetbus.Backoff{Min: 1, Max: 1, NoJitter: true} })
		for range 30 {
			c.cut()
			m := s.member(bus, nothing, jetbus.SubscribeOptions{})
			c = get(s.T, "another connection", s.lines)
			if err := m.Stop(s.Context()); err != nil {
				s.Error(err)
			}
		}
	})
}

// TestAnEventThatCameAgainIsTheOneThatIsHeld: what was settled by a request whose answer was lost is
// not in the way of the next delivery; nor does an extension that fails open what is settled.
func TestAnEventThatCameAgainIsTheOneThatIsHeld(t *testing.T) {
	inScript(t, answer, func(s *standIn) {
		pulls, nacks := 0, 0
		s.web = func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, ":pull"):
				pulls++
				_, _ = fmt.Fprintf(w, `{"events":[{"ack_id":"a%d","ctx":{"attempt":1,"ack_deadline_ms":600000},"event":{"id":"1","topic":"orders","payload":1}}]}`, pulls)
			case strings.HasSuffix(r.URL.Path, ":nack") && nacks == 0:
				nacks++
				panic(http.ErrAbortHandler)
			case strings.HasSuffix(r.URL.Path, ":extend"):
				panic(http.ErrAbortHandler)
			default:
				_, _ = w.Write([]byte(`{"results":[{"ack_id":"a","applied":true}]}`))
			}
		}
		bus, _ := s.dial(nil)
		receive := func() *jetbus.Delivery {
			ds, err := bus.Receive(s.Context(), "orders", "g", jetbus.ReceiveOptions{})
			if err != nil || len(ds) != 1 {
				s.Fatal(ds, err)
			}
			return ds[0]
		}
		first := receive()
		if err := first.Nack(s.Context(), jetbus.NackOptions{}); !errors.Is(err, jetbus.ErrUnavailable) {
			s.Errorf("got %v", err)
		}
		second := receive()
		if err := bus.Ack(s.Context(), "orders", "g", "1"); err != nil {
			s.Errorf("the one that is held: %v", err)
		}
		if err := first.Ack(s.Context()); !errors.Is(err, jetbus.ErrLeaseExpired) {
			s.Errorf("the one before: %v", err)
		}
		_ = second.Extend(s.Context(), time.Minute)
		if err := second.Ack(s.Context()); !errors.Is(err, jetbus.ErrAlreadySettled) {
			s.Errorf("settled, and then %v", err)
		}
	})
}

// TestASettlementThatFailedCanBeSaidAgain: what the broker did not take, or whose answer was lost,
// leaves the event with its holder.
func TestASettlementThatFailedCanBeSaidAgain(t *testing.T) {
	inScript(t, answer, func(s *standIn) {
		acks := 0
		s.web = func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, ":pull"):
				_, _ = w.Write([]byte(`{"events":[{"ack_id":"a","ctx":{"attempt":1,"ack_deadline_ms":60000},"event":{"id":"1","topic":"orders","payload":1}}]}`))
			case acks == 0:
				acks++
				_, _ = w.Write([]byte(`{"results":[{"ack_id":"a","applied":false,"code":"ack_failed","msg":"try again","retryable":true}]}`))
			case acks == 1:
				acks++
				panic(http.ErrAbortHandler)
			default:
				acks++
				_, _ = w.Write([]byte(`{"results":[{"ack_id":"a","applied":true}]}`))
			}
		}
		bus, _ := s.dial(nil)
		ds, err := bus.Receive(s.Context(), "orders", "g", jetbus.ReceiveOptions{})
		if err != nil || len(ds) != 1 {
			s.Fatal(ds, err)
		}
		for range 2 {
			if err := ds[0].Ack(s.Context()); !errors.Is(err, jetbus.ErrUnavailable) {
				s.Errorf("got %v", err)
			}
		}
		if err := bus.Ack(s.Context(), "orders", "g", "1"); err != nil || acks != 3 {
			s.Errorf("the third time: %v, %d requests", err, acks)
		}
		if err := ds[0].Ack(s.Context()); !errors.Is(err, jetbus.ErrAlreadySettled) {
			s.Errorf("settled, and then %v", err)
		}
	})
}
