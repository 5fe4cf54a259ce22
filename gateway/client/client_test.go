package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/gateway/client"
)

// rig is a gateway over a broker, in a network of its own.
type rig struct {
	*testing.T
	bus *adapter.Bus
	net *pipeNet
}

// start starts a gateway with the topic "orders".
func start(t *testing.T, c gateway.Config) *rig {
	t.Helper()
	r := &rig{T: t, bus: bustest.Open(t, bustest.Start(t, embedded.Config{}), adapter.Config{})}
	if _, err := r.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders", KeyInSubject: true}); err != nil {
		t.Fatal(err)
	}
	r.net = newPipeNet()
	serve(t, r.bus, c, r.net)
	return r
}

// config reconnects fast.
func (r *rig) config() client.Config {
	c := r.net.config()
	c.Reconnect = jetbus.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}
	return c
}

func (r *rig) publish(n int) {
	r.Helper()
	for i := range n {
		if _, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "orders", Key: fmt.Sprint(i), Payload: fmt.Append(nil, i)}); err != nil {
			r.Fatal(err)
		}
	}
}

// get waits for the next of a channel.
func get[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// settled waits until a group is done with everything up to seq.
func (r *rig) settled(group string, seq uint64) {
	r.Helper()
	for late := time.Now().Add(patience); ; <-time.After(5 * time.Millisecond) {
		at, err := r.bus.Cursor(r.Context(), "orders", group)
		if err == nil && at.LastSeq >= seq {
			return
		}
		if time.Now().After(late) {
			r.Fatalf("the group is at %+v, %v", at, err)
		}
	}
}

// tokens are tokens of tests: all may do everything, and "short" ends soon.
type tokens struct{ seen chan string }

// Authenticate implements gateway.Authenticator.
func (a tokens) Authenticate(_ context.Context, token string) (gateway.Principal, error) {
	a.seen <- token
	who := gateway.Principal{Subject: "ann", Scopes: gateway.AllScopes()}
	switch token {
	case "short":
		who.Expires = time.Now().Add(61 * time.Second)
	case "long":
	case "poor":
		who.Scopes, _ = gateway.ParseScopes("ann", "topic:read:other")
	default:
		return who, gateway.ErrBadToken
	}
	return who, nil
}

func TestTokens(t *testing.T) {
	seen := make(chan string, 100)
	r := start(t, gateway.Config{Auth: tokens{seen}, Limits: limits()})
	c := r.config()
	if _, err := client.Dial(t.Context(), c); !errors.Is(err, jetbus.ErrDenied) {
		t.Errorf("dial without a token: %v", err)
	}
	c.Token = func(context.Context) (string, error) { return "wrong", nil }
	if _, err := client.Dial(t.Context(), c); !errors.Is(err, jetbus.ErrDenied) {
		t.Errorf("dial with a wrong token: %v", err)
	}
	c.Token = func(context.Context) (string, error) { panic("no token") }
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Dial(short, c); err == nil {
		t.Error("dial where the token panics")
	}
	c.Token = func(context.Context) (string, error) { return "poor", nil }
	poor := dial(t, c)
	_, err := poor.Publish(t.Context(), jetbus.Event{Topic: "orders"})
	refused, ok := errors.AsType[*client.Error](err)
	if !errors.Is(err, jetbus.ErrDenied) || !ok || refused.Code != "forbidden" {
		t.Errorf("publish without the scope: %v", err)
	}
	if _, err := poor.TopicInfo(t.Context(), "orders"); !errors.Is(err, jetbus.ErrDenied) {
		t.Errorf("look without the scope: %v", err)
	}
}

func TestTokenIsReplacedBeforeItEnds(t *testing.T) {
	seen := make(chan string, 100)
	r := start(t, gateway.Config{Auth: tokens{seen}, Limits: limits()})
	c := r.config()
	next := make(chan string, 2)
	next <- "short" // which the gateway says is about to end, after a second
	next <- "long"
	c.Token = func(context.Context) (string, error) { return <-next, nil }
	bus := dial(t, c)
	for _, want := range []string{"short", "long"} {
		if got := get(t, "token "+want, seen); got != want {
			t.Errorf("the token %s was used, not %s", got, want)
		}
	}
	if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "orders"}); err != nil {
		t.Error(err)
	}
	if n := r.net.made.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	if _, err := bus.TopicInfo(t.Context(), "orders"); err != nil { // the token is not asked for again
		t.Error(err)
	}
	if got := get(t, "a token", seen); got != "long" {
		t.Errorf("the token %s was used", got)
	}
}

func TestConfigs(t *testing.T) {
	for what, c := range map[string]client.Config{
		"nowhere":            {},
		"another scheme":     {URL: "ftp://localhost"},
		"no host":            {URL: "http:///ws"},
		"a token in the URL": {URL: "http://user:secret@localhost"},
		"a query":            {URL: "http://localhost?token=x"},
		"no UTF-8":           {URL: "http://localhost/%zz"},
		"a client that ends": {URL: "http://localhost", HTTPClient: &http.Client{Timeout: time.Second}},
		"a negative timeout": {URL: "http://localhost", Timeout: -1},
		"a negative grace":   {URL: "http://localhost", ResumeGrace: -2},
		"a backoff upside":   {URL: "http://localhost", Reconnect: jetbus.Backoff{Min: 2, Max: 1}},
		"a sid of two lines": {URL: "http://localhost", SID: "a\nb"},
		"a negative buffer":  {URL: "http://localhost", Buffer: -1},
		"no time to connect": {URL: "http://localhost", ConnectTimeout: -1},
	} {
		if _, err := client.Dial(t.Context(), c); !errors.Is(err, jetbus.ErrInvalidOption) || strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("dial with %s: %v", what, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Dial(ctx, client.Config{URL: "http://127.0.0.1:1"}); !errors.Is(err, jetbus.ErrUnavailable) {
		t.Errorf("dial where nobody listens: %v", err)
	}
}

func TestUnsupported(t *testing.T) {
	r := start(t, gateway.Config{Limits: limits()})
	c := r.config()
	c.Observer = func(o jetbus.Observation) {
		if o.Kind == jetbus.PublishFail && o.ID == "dry" {
			t.Errorf("the observer is told of a dry run: %+v", o)
		}
	}
	bus := dial(t, c)
	ctx := t.Context()
	h := func(context.Context, *jetbus.Delivery) error { return nil }
	calls := map[string]func() error{
		"declare":        func() error { _, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "new"}); return err },
		"delete":         func() error { return bus.DeleteTopic(ctx, "orders") },
		"pause a group":  func() error { return bus.PauseGroup(ctx, "orders", "g", time.Now()) },
		"resume a group": func() error { return bus.ResumeGroup(ctx, "orders", "g") },
		"a long lease": func() error {
			_, err := bus.Subscribe(ctx, "orders", "g", h, jetbus.SubscribeOptions{AckTimeout: time.Hour})
			return err
		},
		"a short pull": func() error {
			_, err := bus.Receive(ctx, "orders", "g", jetbus.ReceiveOptions{AckTimeout: 100 * time.Millisecond})
			return err
		},
		"a dry run": func() error {
			_, err := bus.Publish(ctx, jetbus.Event{Topic: "orders", ID: "dry"}, jetbus.PublishOptions{DryRun: true})
			return err
		},
		"a large unit": func() error {
			_, err := bus.PublishBatch(ctx, slices.Repeat([]jetbus.Event{{Topic: "orders"}}, 1001), jetbus.BatchOptions{Atomic: true})
			return err
		},
		"a long wait": func() error {
			return bus.SetCursor(ctx, "orders", "g", jetbus.Cursor{}, jetbus.SeekOptions{Wait: time.Hour})
		},
		"many handlers": func() error {
			_, err := bus.Subscribe(ctx, "orders", "g", h, jetbus.SubscribeOptions{Concurrency: 2000})
			return err
		},
	}
	for what, call := range calls {
		if err := call(); !errors.Is(err, jetbus.ErrUnsupported) || !strings.Contains(err.Error(), ":") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if info, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders"}); err != nil || info.Config.Name != "orders" {
		t.Errorf("a topic that exists: %+v, %v", info, err)
	}
	all, err := bus.ListTopics(ctx)
	if err != nil || len(all) != 1 {
		t.Errorf("topics %+v, %v", all, err)
	}
	if groups, err := bus.Groups(ctx, "orders"); err != nil || len(groups) != 0 {
		t.Errorf("groups %+v, %v", groups, err)
	}
}

func TestDeleteGroup(t *testing.T) {
	auth, err := gateway.StaticTokens(
		gateway.Token{Token: "0123456789abcdef", Subject: "ann", Scopes: []string{"topic:read:>", "group:join:>"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, gateway.Config{Limits: limits(), Auth: auth})
	c := r.config()
	c.Token = func(context.Context) (string, error) { return "0123456789abcdef", nil }
	bus := dial(t, c)
	ctx := t.Context()
	var subs []jetbus.Subscription
	for _, group := range []string{"u.ann.tab", "billing"} {
		sub, err := bus.Subscribe(ctx, "orders", group, func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		subs = append(subs, sub)
	}
	if err := bus.DeleteGroup(ctx, "orders", "u.ann.tab"); err != nil {
		t.Error(err)
	}
	select {
	case <-subs[0].Done():
		if err := subs[0].Err(); !errors.Is(err, jetbus.ErrNoGroup) {
			t.Errorf("its member ended with %v", err)
		}
	case <-time.After(patience):
		t.Error("its member goes on")
	}
	for want, err := range map[error]error{
		jetbus.ErrNoGroup:      bus.DeleteGroup(ctx, "orders", "u.ann.tab"),
		jetbus.ErrNoTopic:      bus.DeleteGroup(ctx, "none", "u.ann.tab"),
		jetbus.ErrDenied:       bus.DeleteGroup(ctx, "orders", "billing"),
		jetbus.ErrInvalidGroup: bus.DeleteGroup(ctx, "orders", "a/b"),
		jetbus.ErrInvalidTopic: bus.DeleteGroup(ctx, "a/b", "g"),
	} {
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if groups, err := bus.Groups(ctx, "orders"); err != nil || len(groups) != 1 || groups[0].Group != "billing" {
		t.Errorf("groups %+v, %v", groups, err)
	}
}

func TestCloseIsTheEnd(t *testing.T) {
	r := start(t, gateway.Config{Limits: limits()})
	bus := dial(t, r.config())
	ctx := t.Context()
	s, err := bus.Subscribe(ctx, "orders", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	over, end := context.WithCancel(ctx)
	end()
	var work sync.WaitGroup
	for _, ctx := range []context.Context{over, ctx, over} {
		work.Go(func() {
			if err := bus.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	<-s.Done()
	if s.Err() != nil {
		t.Error(s.Err())
	}
	for what, call := range map[string]func() error{
		"publish": func() error { _, err := bus.Publish(ctx, jetbus.Event{Topic: "orders"}); return err },
		"subscribe": func() error {
			_, err := bus.Subscribe(ctx, "orders", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{})
			return err
		},
		"cursor": func() error { _, err := bus.Cursor(ctx, "orders", "g"); return err },
		"topic":  func() error { _, err := bus.TopicInfo(ctx, "orders"); return err },
		"ack":    func() error { return bus.Ack(ctx, "orders", "g", "id") },
		"batch": func() error {
			_, err := bus.PublishBatch(ctx, []jetbus.Event{{Topic: "orders"}}, jetbus.BatchOptions{})
			return err
		},
		"read": func() error {
			for _, err := range bus.Read(ctx, []string{"orders"}, jetbus.ReadOptions{}) {
				return err
			}
			return nil
		},
	} {
		if err := call(); !errors.Is(err, jetbus.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

// TestLargeFrames: what the gateway would end the connection for is not sent.
func TestLargeFrames(t *testing.T) {
	l := limits()
	l.FrameBytes = 16 << 10
	r := start(t, gateway.Config{Limits: l})
	bus := dial(t, r.config())
	ctx := t.Context()
	for size := 14 << 10; size < 17<<10; size += 50 {
		payload := []byte(`"` + strings.Repeat("x", size) + `"`)
		_, err := bus.Publish(ctx, jetbus.Event{Topic: "orders", Payload: payload})
		if err != nil && !errors.Is(err, jetbus.ErrPayloadTooLarge) || size == 14<<10 && err != nil || size > 16<<10 && err == nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	batch := make([]jetbus.Event, 50)
	for i := range batch {
		batch[i] = jetbus.Event{Topic: "orders", Payload: []byte(`"` + strings.Repeat("y", 1000) + `"`)}
	}
	receipts, err := bus.PublishBatch(ctx, batch, jetbus.BatchOptions{})
	if err != nil || len(receipts) != 50 || receipts[49].Event.Seq == 0 {
		t.Errorf("a batch of several frames: %v", err)
	}
	failed := make(chan struct{}, 100)
	s, err := bus.Subscribe(ctx, "orders", "billing", func(_ context.Context, d *jetbus.Delivery) error {
		if d.Attempt == 1 {
			failed <- struct{}{}
			return errors.New(strings.Repeat("\x00", 1<<20))
		}
		return nil
	}, jetbus.SubscribeOptions{From: jetbus.Earliest(), Concurrency: 50, Backoff: jetbus.Backoff{Max: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		get(t, "a failed attempt", failed)
	}
	r.settled("billing", receipts[49].Event.Seq)
	if err := s.Stop(ctx); err != nil || s.Err() != nil {
		t.Error(err, s.Err())
	}
	if n := r.net.made.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// countedError counts how often its stack is taken.
type countedError struct{ taken atomic.Int64 }

func (*countedError) Error() string { return "odd" }

func (e *countedError) StackTrace() string {
	e.taken.Add(1)
	return "main.f"
}

// TestStacks: the stack is taken for the last attempt only, and what the gateway would refuse as too large is cut.
func TestStacks(t *testing.T) {
	l := limits()
	l.FrameBytes = 16 << 10
	r := start(t, gateway.Config{Limits: l})
	bus := dial(t, r.config())
	ctx := t.Context()
	receipt, err := bus.Publish(ctx, jetbus.Event{Topic: "orders", Payload: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	var odd countedError
	s, err := bus.Subscribe(ctx, "orders", "billing", func(context.Context, *jetbus.Delivery) error { return &odd },
		jetbus.SubscribeOptions{From: jetbus.Earliest(), MaxAttempts: 3, Backoff: jetbus.Backoff{Max: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	r.settled("billing", receipt.Event.Seq)
	if err := s.Stop(ctx); err != nil {
		t.Error(err)
	}
	ds, err := bus.Receive(ctx, "orders", "pulled", jetbus.ReceiveOptions{From: jetbus.Earliest(), Wait: patience})
	if err != nil || len(ds) != 1 {
		t.Fatalf("%d events, %v", len(ds), err)
	}
	if err := ds[0].RejectWith(ctx, jetbus.RejectOptions{Reason: strings.Repeat("\x01", 1<<20), Stack: strings.Repeat("\x01.", 1<<20)}); err != nil {
		t.Error(err)
	}
	stacks := map[string]string{}
	for d, err := range jetbus.DeadLetters(ctx, r.bus, jetbus.DeadLetterQuery{Topic: "orders"}) {
		if err != nil {
			t.Fatal(err)
		}
		stacks[d.Group] = d.Stack
	}
	if stacks["billing"] != "main.f" || odd.taken.Load() != 1 || !strings.HasPrefix(stacks["pulled"], ". . .") {
		t.Errorf("stacks %.60q, %d were taken", stacks, odd.taken.Load())
	}
}
