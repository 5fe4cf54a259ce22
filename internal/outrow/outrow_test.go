package outrow

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

func TestComplete(t *testing.T) {
	good := jetbus.Event{Topic: "orders", Payload: []byte("{}")}
	refuse := func(context.Context, jetbus.Event) error { return jetbus.ErrSchema }
	panics := func(context.Context, jetbus.Event) error { panic("no") }
	plain := func(_ context.Context, e jetbus.Event) error { // is not asked about an event that is not valid
		if e.Headers != nil {
			panic("asked")
		}
		return nil
	}
	for name, c := range map[string]struct {
		e     jetbus.Event
		most  int
		check func(context.Context, jetbus.Event) error
		want  error
	}{
		"good":      {good, 1 << 20, nil, nil},
		"any size":  {jetbus.Event{Topic: "orders", Payload: make([]byte, 2<<20)}, -1, nil, nil},
		"too large": {good, 500, nil, jetbus.ErrPayloadTooLarge},
		"topic":     {jetbus.Event{Topic: "Orders!"}, -1, nil, jetbus.ErrInvalidTopic},
		"refused":   {good, -1, refuse, jetbus.ErrSchema},
		"header":    {jetbus.Event{Topic: "orders", Headers: map[string]string{"x-a": "b\nc"}}, -1, plain, jetbus.ErrInvalidHeader},
	} {
		out, err := Complete(t.Context(), []jetbus.Event{good, c.e}, c.most, c.check)
		switch {
		case !errors.Is(err, c.want):
			t.Errorf("%s: got error %v, want one that is %v", name, err, c.want)
		case err == nil && (out[1].ID == "" || out[1].ID == out[0].ID || out[1].Time.IsZero()):
			t.Errorf("%s: not filled in: %+v", name, out[1])
		case err != nil && out != nil:
			t.Errorf("%s: events beside an error", name)
		}
	}
	_, err := Complete(t.Context(), []jetbus.Event{good}, -1, panics)
	if p, ok := errors.AsType[*jetbus.PanicError](err); !ok || p.Value != "no" {
		t.Errorf("a check that panics: %v", err)
	}
}

func TestCheckClaim(t *testing.T) {
	ok := jetbus.ClaimOptions{Max: 1, MaxBytes: 1, Lease: time.Millisecond}
	for name, change := range map[string]func(*jetbus.ClaimOptions){
		"":         func(*jetbus.ClaimOptions) {},
		"Max":      func(o *jetbus.ClaimOptions) { o.Max = 0 },
		"Max is":   func(o *jetbus.ClaimOptions) { o.Max = maxClaim + 1 },
		"MaxBytes": func(o *jetbus.ClaimOptions) { o.MaxBytes = -1 },
		"Lease":    func(o *jetbus.ClaimOptions) { o.Lease = 0 },
	} {
		o := ok
		change(&o)
		err := CheckClaim(o)
		if (err == nil) != (name == "") || err != nil && (!errors.Is(err, jetbus.ErrInvalidOption) || !strings.Contains(err.Error(), name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestErrorText(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"plain", "plain"},
		{"a\x00b", "ab"},
		{"a\xffb", "ab"},
		{strings.Repeat("x", maxError-1) + "é", strings.Repeat("x", maxError-1)},
	} {
		if got := ErrorText(errors.New(c.text)); got != c.want {
			t.Errorf("ErrorText(%.20q) = %.20q of %d bytes, want %.20q", c.text, got, len(got), c.want)
		}
	}
	if got := ErrorText(nil); got != "" {
		t.Errorf("ErrorText(nil) = %q", got)
	}
}

func TestASCII(t *testing.T) {
	for text, want := range map[string]string{
		"": "", `say "no" to a\b`: `say "no" to a\\b`, "caf\u00e9 \u2603\U0001f600\n": `caf\u00e9 \u2603\U0001f600\n`,
		strings.Repeat("\u2603", maxError): strings.Repeat(`\u2603`, maxError/6+1)[:maxError],
	} {
		if got := ASCII(text); got != want {
			t.Errorf("ASCII(%.20q) = %.40q, want %.40q", text, got, want)
		}
	}
}

func TestAttempts(t *testing.T) {
	for have, want := range map[int]int64{-1 << 63: 1, -1: 1, 0: 1, 7: 8, 1<<31 - 2: 1<<31 - 1, 1<<31 - 1: 1<<31 - 1, 1<<63 - 1: 1<<63 - 1} {
		if got := Attempts(jetbus.OutboxRow{Attempts: have}); got != want {
			t.Errorf("after %d attempts there are %d, want %d", have, got, want)
		}
	}
}
