package jetbus_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
)

// fakeBus keeps what was published and hands it to the one who subscribes.
type fakeBus struct {
	events  []jetbus.Event
	options []jetbus.PublishOptions
	topic   string
	group   string
	handle  jetbus.Handler
	subOpts jetbus.SubscribeOptions
}

func (f *fakeBus) Publish(_ context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	if err := e.Validate(); err != nil {
		return jetbus.Receipt{}, err
	}
	f.events, f.options = append(f.events, e), append(f.options, o...)
	return jetbus.Receipt{Event: e}, nil
}

func (f *fakeBus) Subscribe(_ context.Context, topic, group string, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.Subscription, error) {
	f.topic, f.group, f.handle, f.subOpts = topic, group, h, o
	return nil, nil // no test uses it
}

type reading struct {
	Host string  `json:"host"`
	CPU  float64 `json:"cpu"`
}

func TestTopic(t *testing.T) {
	bus := new(fakeBus)
	readings := jetbus.Topic[reading]{Name: "host.reading", Key: func(r reading) string { return r.Host }}
	sent := reading{"h1", 0.5}
	receipt, err := readings.Publish(t.Context(), bus, sent, jetbus.PublishOptions{TTL: time.Minute})
	if err != nil || len(bus.events) != 1 || len(bus.options) != 1 || bus.options[0].TTL != time.Minute {
		t.Fatalf("published %+v with %+v: %v", bus.events, bus.options, err)
	}
	want := jetbus.Event{
		Topic: "host.reading", Key: "h1", Payload: []byte(`{"host":"h1","cpu":0.5}`), Headers: map[string]string{"content-type": "application/json"},
	}
	if diff := cmp.Diff(want, receipt.Event); diff != "" {
		t.Error(diff)
	}

	var got []reading
	fail := errors.New("handler fails")
	_, err = readings.Subscribe(t.Context(), bus, "ops", func(_ context.Context, r reading, d *jetbus.Delivery) error {
		got = append(got, r)
		if d.Attempt > 1 {
			return fail
		}
		return nil
	}, jetbus.SubscribeOptions{Concurrency: 7})
	if err != nil || bus.topic != "host.reading" || bus.group != "ops" || bus.subOpts.Concurrency != 7 {
		t.Fatalf("subscribed to %s/%s with %+v: %v", bus.topic, bus.group, bus.subOpts, err)
	}
	if err := bus.handle(t.Context(), jetbus.NewDelivery(bus.events[0], "ops", 1, 5, nil)); err != nil {
		t.Error(err)
	}
	if err := bus.handle(t.Context(), jetbus.NewDelivery(bus.events[0], "ops", 2, 5, nil)); !errors.Is(err, fail) {
		t.Errorf("the handler's error became %v", err)
	}
	err = bus.handle(t.Context(), jetbus.NewDelivery(jetbus.Event{ID: "i", Payload: []byte("{")}, "ops", 1, 5, nil))
	if _, ok := errors.AsType[*json.SyntaxError](err); !ok || !strings.HasPrefix(err.Error(), "decode host.reading i: ") {
		t.Errorf("a payload that does not decode: %v", err)
	}
	if diff := cmp.Diff([]reading{sent, sent}, got); diff != "" {
		t.Error(diff)
	}
}

// intCodec is decimal text.
type intCodec struct{}

func (intCodec) Encode(n int) ([]byte, error) {
	if n < 0 {
		return nil, strconv.ErrRange
	}
	return strconv.AppendInt(nil, int64(n), 10), nil
}

func (intCodec) Decode(b []byte) (int, error) { return strconv.Atoi(string(b)) }
func (intCodec) ContentType() string          { return "text/plain" }

func TestTopicCodec(t *testing.T) {
	bus := new(fakeBus)
	numbers := jetbus.Topic[int]{Name: "numbers", Codec: intCodec{}}
	e, err := numbers.Event(7)
	if err != nil || string(e.Payload) != "7" || e.ContentType() != "text/plain" || e.Key != "" {
		t.Errorf("%+v, %v", e, err)
	}
	if n, err := numbers.Decode(e); n != 7 || err != nil {
		t.Errorf("decoded %d, %v", n, err)
	}
	if _, err := numbers.Publish(t.Context(), bus, -1); !errors.Is(err, strconv.ErrRange) || err.Error() != "encode numbers: value out of range" {
		t.Errorf("a value that does not encode: %v", err)
	}
	if len(bus.events) != 0 {
		t.Errorf("published %+v", bus.events)
	}
	if _, err := (jetbus.Topic[chan int]{Name: "a"}).Event(nil); err == nil {
		t.Error("a channel was encoded as JSON")
	}
	if _, err := (jetbus.Topic[int]{Name: "A"}).Publish(t.Context(), bus, 1); !errors.Is(err, jetbus.ErrInvalidTopic) {
		t.Errorf("the publisher's error became %v", err)
	}
}

// recorder is a lease that remembers its calls.
type recorder struct {
	calls []string
	err   error
}

func (r *recorder) did(call string) error {
	r.calls = append(r.calls, call)
	return r.err
}

func (r *recorder) Ack(context.Context) error { return r.did("ack") }

func (r *recorder) Nack(_ context.Context, o jetbus.NackOptions) error {
	return r.did("nack " + o.Delay.String() + " " + o.Reason + o.Stack)
}

func (r *recorder) Extend(_ context.Context, by time.Duration) error {
	return r.did("extend " + by.String())
}

func (r *recorder) GiveBack(context.Context) error { return r.did("give back") }

func (r *recorder) Snooze(_ context.Context, by time.Duration) error {
	return r.did("snooze " + by.String())
}

func (r *recorder) Reject(_ context.Context, o jetbus.RejectOptions) error {
	return r.did("reject as " + string(o.As) + " " + o.Reason + o.Stack)
}

func (r *recorder) Deadline() time.Time { return time.UnixMilli(7) }

func TestDelivery(t *testing.T) {
	lease := &recorder{err: jetbus.ErrAlreadySettled}
	d := jetbus.NewDelivery(typical(), "ops", 2, 5, lease)
	if d.ID != typical().ID || d.Group != "ops" || d.Attempt != 2 || d.MaxAttempts != 5 || !d.Deadline().Equal(time.UnixMilli(7)) {
		t.Errorf("%+v", d)
	}
	ctx := t.Context()
	for _, err := range []error{d.Ack(ctx), d.Nack(ctx, jetbus.NackOptions{Delay: time.Second, Reason: "why"}), d.Extend(ctx, time.Minute), d.GiveBack(ctx), d.Snooze(ctx, time.Hour), d.Reject(ctx, "no"), d.RejectAs(ctx, "", "no"), d.RejectAs(ctx, "odd", "no"), d.RejectWith(ctx, jetbus.RejectOptions{Stack: "main.f"})} {
		check(t, "a lease's error", err, jetbus.ErrAlreadySettled)
		if err == nil {
			t.Error("a lease's error was lost")
		}
	}
	if diff := cmp.Diff([]string{"ack", "nack 1s why", "extend 1m0s", "give back", "snooze 1h0m0s", "reject as rejected no", "reject as rejected no", "reject as odd no", "reject as rejected main.f"}, lease.calls); diff != "" {
		t.Error(diff)
	}
	for _, stored := range []time.Time{{}, d.Time.Add(time.Hour)} { // not the publisher's time
		d.Stored = stored
		want := jetbus.Cursor{Topic: d.Topic, LastSeq: d.Seq, LastID: d.ID, LastTime: stored}
		if got := d.Cursor(); got != want {
			t.Errorf("cursor %+v, want %+v", got, want)
		}
	}
	e := typical()
	if text, err := json.Marshal(d); err != nil || !cmp.Equal(decode(t, text), decode(t, encode(t, &e)), payloads) {
		t.Errorf("in JSON it is %s, %v", text, err)
	}
}

// payloads compares payloads as JSON values, which json.Marshal compacts.
var payloads = cmp.Transformer("value", func(b []byte) any {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return string(b)
	}
	return v
})

// A Delivery that nobody leased fails, and does not panic.
func TestDeliveryWithoutLease(t *testing.T) {
	for _, d := range []*jetbus.Delivery{{}, jetbus.NewDelivery(typical(), "ops", 1, 5, nil)} {
		ctx := t.Context()
		for _, err := range []error{d.Ack(ctx), d.Nack(ctx, jetbus.NackOptions{}), d.Extend(ctx, time.Second), d.GiveBack(ctx)} {
			if !errors.Is(err, jetbus.ErrNotHeld) {
				t.Errorf("got %v", err)
			}
		}
		if !d.Deadline().IsZero() {
			t.Errorf("deadline %v", d.Deadline())
		}
	}
}

func TestObserver(t *testing.T) {
	var got []jetbus.Observation
	what := jetbus.Observation{Kind: jetbus.Acked, Topic: "a", Count: 1}
	jetbus.Observer(nil).Observe(what)
	jetbus.Observer(func(o jetbus.Observation) { got = append(got, o) }).Observe(what)
	if diff := cmp.Diff([]jetbus.Observation{what}, got); diff != "" {
		t.Error(diff)
	}
}
