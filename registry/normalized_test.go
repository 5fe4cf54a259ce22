package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// counters: versions 1 and 2 are compatible, 3 renames, 4 is compatible with 3, 5
// was deleted.
const counters = "counters"

func registerCounters(d *desk) {
	d.Helper()
	d.register(counters, `{"type":"object","properties":{"n":{"type":"integer","minimum":5}},"required":["n"]}`)
	d.register(counters, `{"type":"object","properties":{"n":{"type":"integer","minimum":0}},"required":["n"]}`)
	d.force(counters, `{"type":"object","properties":{"count":{"type":"integer","minimum":0}},"required":["count"]}`)
	d.register(counters, `{"type":"object","properties":{"count":{"type":"integer"}},"required":["count"]}`)
	d.force(counters, `{"type":"object","required":["x"]}`)
	must(d.reg.Delete(d.Context(), counters, 5, registry.DeleteOptions{}))(d.T)
}

var errUpcast = errors.New("no luck")

// rename leads from version 2 to 3. Some payloads are told what to do.
var rename = registry.UpcasterFunc(func(ctx context.Context, e jetbus.Event) (jetbus.Event, error) {
	e.Headers["x-scribbled"] = "yes" // on its own copy
	switch {
	case strings.Contains(string(e.Payload), "panic"):
		panic("upcaster")
	case strings.Contains(string(e.Payload), "fail"):
		return e, errUpcast
	case strings.Contains(string(e.Payload), "wait"):
		return e, jetbus.RetryIn(time.Hour, errUpcast)
	case strings.Contains(string(e.Payload), "break"):
		e.Payload = []byte(`{}`)
		return e, nil
	}
	out, err := registry.Edit{Rename: map[string]string{"n": "count"}}.Upcast(ctx, e)
	copy(e.Payload, "scribbled")
	out.ID, out.Topic, out.Seq = "other", "other", 99
	return out, err
})

func TestNormalize(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		registerCounters(d)
		upcasters := registry.Upcasters{counters: {2: rename}}
		latest := registry.NewNormalizer(d.reg, registry.NormalizedOptions{Upcasters: upcasters})
		bare := registry.NewNormalizer(d.reg, registry.NormalizedOptions{})
		second := registry.NewNormalizer(d.reg, registry.NormalizedOptions{Versions: map[string]int{counters: 2}, Upcasters: upcasters})
		for _, test := range []struct {
			name    string
			n       *registry.Normalizer
			version string // that the event states
			payload string
			out     string // payload, states and from
			err     error
			text    string
		}{
			{"every hop", latest, "1", `{"n":7}`, `{"count":7} 4 1`, nil, ""},
			{"from the middle", latest, "2", `{"n":1.0}`, `{"count":1.0} 4 2`, nil, ""},
			{"hops that need no upcaster", bare, "3", `{"count":1}`, `{"count":1} 4 3`, nil, ""},
			{"nothing to do", latest, "4", `{"count":-1}`, `{"count":-1} 4 `, nil, ""},
			{"nothing to do, and invalid", latest, "4", `{"count":"a"}`, "", jetbus.ErrSchema, "/count"},
			{"a missing hop", bare, "1", `{"n":7}`, "", jetbus.ErrSchema, "upcast counters from version 2 to 3: there is no upcaster"},
			{"an upcaster that fails", latest, "1", `{"n":7,"fail":1}`, "", errUpcast, "upcast counters from version 2 to 3: no luck"},
			{"an upcaster that panics", latest, "1", `{"n":7,"panic":1}`, "", jetbus.ErrSchema, "upcast counters from version 2 to 3: handler panicked: upcaster"},
			{"an upcaster that breaks the event", latest, "1", `{"n":7,"break":1}`, "", jetbus.ErrSchema, "breaks version 4"},
			{"no version, and as it is to be", latest, "", `{"count":3}`, `{"count":3} 4 `, nil, ""},
			{"no version, and of an older one", latest, "", `{"n":3}`, "", jetbus.ErrSchema, "set AssumeVersion of topic counters"},
			{"a version that is no number", latest, "v1", `{"n":3}`, "", jetbus.ErrSchema, "x-schema-version"},
			{"a version that does not exist", latest, "17", `{"count":3}`, "", jetbus.ErrSchema, "a version that does not exist"},
			{"a version that does not exist, for an older program", second, "17", `{"n":3}`, "", registry.ErrNoVersion, "17"},
			{"a newer one that can be read", second, "4", `{"n":3,"count":3}`, `{"n":3,"count":3} 4 `, nil, ""},
			{"a newer one that cannot be read", second, "4", `{"count":3}`, "", registry.ErrNewer, "this program reads version 2"},
			{"a newer one that is deleted, and can be read", latest, "5", `{"x":1,"count":3}`, `{"x":1,"count":3} 5 `, nil, ""},
			{"a newer one that is deleted", latest, "5", `{"x":1}`, "", jetbus.ErrSchema, "deleted"},
			{"no payload", latest, "1", "", "", jetbus.ErrSchema, "missing"},
			{"no JSON", latest, "4", "{", "", jetbus.ErrSchema, "not JSON"},
		} {
			e := jetbus.Event{ID: "1", Topic: counters, Seq: 5, Key: "k", Payload: []byte(test.payload), Headers: map[string]string{"x-other": "1"}}
			if test.version != "" {
				e.Headers["x-schema-version"] = test.version
			}
			got, err := test.n.Normalize(t.Context(), e)
			if !errors.Is(err, test.err) || err != nil && !strings.Contains(err.Error(), test.text) {
				t.Errorf("%s: got the error %v, want %v with %q", test.name, err, test.err, test.text)
			}
			if test.err == nil {
				out := fmt.Sprintf("%s %s %s", got.Payload, got.Headers["x-schema-version"], got.Headers["x-upcasted-from"])
				if out != test.out || got.ID != "1" || got.Topic != counters || got.Seq != 5 || got.Headers["x-other"] != "1" {
					t.Errorf("%s: got %q of %+v, want %q", test.name, out, got, test.out)
				}
				if want := "schema://counters/4"; strings.HasSuffix(test.out, "4 1") && got.Headers["x-ce-dataschema"] != want {
					t.Errorf("%s: the dataschema is %q", test.name, got.Headers["x-ce-dataschema"])
				}
			}
			if string(e.Payload) != test.payload || e.Headers["x-schema-version"] != test.version || len(e.Headers) > 2 {
				t.Errorf("%s: the event that was passed is now %+v", test.name, e)
			}
		}
		if _, err := latest.Normalize(t.Context(), jetbus.Event{Topic: counters, Payload: []byte(`{"n":7,"wait":1}`), Headers: map[string]string{"x-schema-version": "1"}}); jetbus.DispositionOf(err).Delay != time.Hour {
			t.Errorf("an upcaster that asks for a retry: error %v", err)
		}
	})
}

func TestNormalizePasses(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		registerCounters(d)
		n := registry.NewNormalizer(d.reg, registry.NormalizedOptions{})
		for _, e := range []jetbus.Event{
			{Topic: "free", Payload: []byte("any"), Headers: map[string]string{"x-schema-version": "any"}},
			{Topic: "dlq." + counters, Payload: []byte("any")},
			{Topic: counters, Key: "k", Payload: []byte("null")},
		} {
			if got, err := n.Normalize(t.Context(), e); err != nil || fmt.Sprint(got) != fmt.Sprint(e) {
				t.Errorf("%+v became %+v, error %v", e, got, err)
			}
		}
	})
}

func TestNormalizeAssumesVersion(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		registerCounters(d)
		d.ok(d.reg.SetSettings(t.Context(), counters, registry.Settings{AssumeVersion: 1}))
		n := registry.NewNormalizer(d.reg, registry.NormalizedOptions{Upcasters: registry.Upcasters{counters: {2: rename}}})
		got, err := n.Normalize(t.Context(), jetbus.Event{Topic: counters, ID: "1", Payload: []byte(`{"n":7}`), Headers: map[string]string{}})
		if err != nil || string(got.Payload) != `{"count":7}` || got.Headers["x-upcasted-from"] != "1" {
			t.Errorf("got %+v and the error %v", got, err)
		}
		d.ok(d.reg.SetSettings(t.Context(), counters, registry.Settings{AssumeVersion: 77}))
		_, err = n.Normalize(t.Context(), jetbus.Event{Topic: counters, ID: "1", Payload: []byte(`{"n":7}`)})
		if !errors.Is(err, jetbus.ErrSchema) || !strings.Contains(err.Error(), "AssumeVersion of topic "+counters+" is 77") {
			t.Errorf("a version that is not is assumed: %v", err)
		}
	})
}

// Under the declared model a reader passes over what it does not know, also where
// its schema forbids it.
func TestNormalizeDeclared(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.ok(d.reg.SetSettings(t.Context(), "people", registry.Settings{Model: schema.Declared}))
		d.register("people", object("name!", "age"))
		d.register("people", object("name!"))
		n := registry.NewNormalizer(d.reg, registry.NormalizedOptions{})
		e := jetbus.Event{Topic: "people", Payload: []byte(`{"name":"a","age":"7"}`), Headers: map[string]string{"x-schema-version": "1"}}
		if got, err := n.Normalize(t.Context(), e); err != nil || got.Headers["x-upcasted-from"] != "1" {
			t.Errorf("got %+v and the error %v", got, err)
		}
		old := registry.NewNormalizer(d.reg, registry.NormalizedOptions{Versions: map[string]int{"people": 2}})
		d.register("people", object("name!", "city"))
		e = jetbus.Event{Topic: "people", Payload: []byte(`{"name":"a","city":"b"}`), Headers: map[string]string{"x-schema-version": "3"}}
		if got, err := old.Normalize(t.Context(), e); err != nil || got.Headers["x-schema-version"] != "3" {
			t.Errorf("a newer one: got %+v and the error %v", got, err)
		}
	})
}

// What this process has not heard of yet is looked up.
func TestNormalizeLearns(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.register("people", nameV1)
		other := d.open(registry.Config{})
		n := registry.NewNormalizer(other, registry.NormalizedOptions{})
		for i := range 20 { // the cache may be quicker now and then
			v := d.force("people", fmt.Sprintf(`{"type":"object","required":["a%d"]}`, i))
			e := jetbus.Event{Topic: "people", Payload: fmt.Appendf(nil, `{"a%d":1}`, i), Headers: map[string]string{"x-schema-version": fmt.Sprint(v.Number)}}
			if _, err := n.Normalize(t.Context(), e); err != nil {
				t.Errorf("version %d: %v", v.Number, err)
			}
		}
	})
}

// The dead letter is the event as it was stored, and says which hop failed, or that what the
// hops made of it is not valid.
func TestNormalizedDeadLetters(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: counters})
		registerCounters(d)
		b := registry.Normalized(d.bus, d.reg, registry.NormalizedOptions{Upcasters: registry.Upcasters{counters: {2: rename}}})
		for id, payload := range map[string]string{"good": `{"n": 7}`, "fails": `{"n": 7, "fail":1}`, "panics": `{"n": 7, "panic":1}`, "breaks": `{"n": 7, "break":1}`} {
			_, err := d.bus.Publish(t.Context(), jetbus.Event{Topic: counters, ID: id, Payload: []byte(payload), Headers: map[string]string{"x-schema-version": "1"}})
			d.ok(err)
		}
		var handled []string
		_, err := b.Subscribe(t.Context(), counters, "g", func(_ context.Context, d *jetbus.Delivery) error {
			handled = append(handled, d.ID+string(d.Payload))
			return nil
		}, jetbus.SubscribeOptions{From: jetbus.Earliest()})
		d.ok(err)
		time.Sleep(time.Minute)
		synctest.Wait() // the handlers have returned
		if len(handled) != 1 || handled[0] != `good{"count":7}` {
			t.Errorf("handled %q", handled)
		}
		wrong := map[string]string{"fails": "from version 2 to 3", "panics": "from version 2 to 3", "breaks": "breaks version 4"}
		for l, err := range jetbus.DeadLetters(t.Context(), d.bus, jetbus.DeadLetterQuery{Topic: counters}) {
			d.ok(err)
			if l.Reason != jetbus.DeadSchema || wrong[l.Event.ID] == "" || !strings.Contains(l.Error, wrong[l.Event.ID]) || !strings.HasPrefix(string(l.Event.Payload), `{"n": 7, `) ||
				l.Event.Headers["x-schema-version"] != "1" || len(l.Event.Headers) != 1 || l.Attempts > 1 {
				t.Errorf("dead letter %+v", l)
			}
			delete(wrong, l.Event.ID)
		}
		if len(wrong) > 0 {
			t.Errorf("no dead letter of %v", wrong)
		}
	})
}

// A version that broke the topic and was taken back stands in nobody's way.
func TestNormalizeOverDeleted(t *testing.T) {
	const good, bad = `{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}`, `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`
	const loose = `{"type":"object","properties":{"a":{"type":"string"}}}` // which good is proved to fit, and wider is not
	const wider = `{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":["a"],"additionalProperties":false}`
	for name, c := range map[string]struct {
		second    string // default bad
		kept      bool   // version 2 is not deleted
		erased    []int  // for good
		upcasters registry.Upcasters
		want      string // "": there is no way
	}{
		"deleted":            {want: "4"},
		"erased":             {erased: []int{2, 3}, want: "4"},
		"one of them erased": {erased: []int{3}, want: "4"},
		"proved to fit it":   {second: loose, want: "4"},
		"live":               {kept: true},
		"upcast from it":     {upcasters: registry.Upcasters{"t": {3: rename}}, want: "4"},
	} {
		t.Run(name, func(t *testing.T) {
			bustest.Run(t, func(t *testing.T) {
				d := newDesk(t)
				d.register("t", good)
				if c.second == loose {
					d.register("t", loose)
				} else {
					d.force("t", bad)
				}
				d.force("t", `{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"]}`)
				if !c.kept {
					must(d.reg.Delete(t.Context(), "t", 2, registry.DeleteOptions{}))(t)
				}
				must(d.reg.Delete(t.Context(), "t", 3, registry.DeleteOptions{}))(t)
				for _, v := range c.erased {
					must(d.reg.Delete(t.Context(), "t", v, registry.DeleteOptions{Permanent: true}))(t)
				}
				if c.kept {
					d.force("t", wider)
				} else if v := d.register("t", wider); v.Admission != registry.Proved {
					t.Fatalf("%+v", v)
				}
				n := registry.NewNormalizer(d.reg, registry.NormalizedOptions{Upcasters: c.upcasters})
				e, err := n.Normalize(t.Context(), jetbus.Event{Topic: "t", ID: "1", Payload: []byte(`{"a":"x"}`), Headers: map[string]string{"x-schema-version": "1"}})
				if c.want == "" {
					d.is(err, jetbus.ErrSchema)
					return
				}
				d.ok(err)
				if e.Headers["x-schema-version"] != c.want {
					t.Errorf("%+v", e)
				}
			})
		})
	}
}

// In one group an old member puts off what it cannot read, and a new one takes it.
func TestNormalizedSnoozesNewer(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: counters})
		registerCounters(d)
		member := func(version int) jetbus.Backend {
			return registry.Normalized(d.bus, d.reg, registry.NormalizedOptions{
				Versions: map[string]int{counters: version}, Upcasters: registry.Upcasters{counters: {2: rename}},
			})
		}
		attempts := map[string]int{}
		subscribe := func(version int) jetbus.Subscription {
			s, err := member(version).Subscribe(t.Context(), counters, "g", func(_ context.Context, d *jetbus.Delivery) error {
				attempts[fmt.Sprint(version, string(d.Payload))] = d.Attempt
				return nil
			}, jetbus.SubscribeOptions{From: jetbus.Earliest(), MaxAttempts: 2})
			d.ok(err)
			return s
		}
		old := subscribe(2)
		_, err := d.bus.Publish(t.Context(), jetbus.Event{Topic: counters, Payload: []byte(`{"count":1}`), Headers: map[string]string{"x-schema-version": "4"}})
		d.ok(err)
		time.Sleep(10 * time.Minute)
		if len(attempts) != 0 || old.Stats().Snoozed < 150 || old.Stats().DeadLetters != 0 {
			t.Errorf("handled %v, stats %+v", attempts, old.Stats())
		}
		subscribe(4)
		time.Sleep(time.Minute)
		synctest.Wait() // the handler has returned
		if attempts[`4{"count":1}`] != 1 || len(attempts) != 1 {
			t.Errorf("handled %v", attempts)
		}
	})
}

// A member of a group by partition gets events in its version, and the rest of their
// delivery as it is.
func TestNormalizedPartition(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: counters, Partitions: 1})
		registerCounters(d)
		b := registry.Normalized(d.bus, d.reg, registry.NormalizedOptions{Versions: map[string]int{counters: 3}, Upcasters: registry.Upcasters{counters: {2: rename}}})
		o := jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: jetbus.PerKey}
		d.ok(b.JoinPartitions(t.Context(), counters, "g", o))
		turn := jetbus.PartitionTurn{Partition: jetbus.Partition{Generation: 1}, Epoch: 7, Clean: true}
		handled := make(chan string, 1)
		s, err := b.SubscribePartition(t.Context(), counters, "g", turn, func(_ context.Context, d *jetbus.Delivery) error {
			handled <- fmt.Sprint(string(d.Payload), d.Partition, d.Epoch)
			return nil
		}, o)
		d.ok(err)
		_, err = d.bus.Publish(t.Context(), jetbus.Event{Topic: counters, Payload: []byte(`{"n":7}`), Headers: map[string]string{"x-schema-version": "1"}})
		d.ok(err)
		if got, want := <-handled, `{"count":7}0 7`; got != want {
			t.Errorf("handled %s, want %s", got, want)
		}
		d.ok(s.Stop(t.Context()))
		if !s.Clean() {
			t.Error("the partition was not handed over")
		}
		wrong := registry.Normalized(d.bus, d.reg, registry.NormalizedOptions{Versions: map[string]int{counters: 99}})
		_, err = wrong.SubscribePartition(t.Context(), counters, "g", turn, func(context.Context, *jetbus.Delivery) error { return nil }, o)
		if !errors.Is(err, registry.ErrNoVersion) {
			t.Errorf("a version that is not there: %v", err)
		}
		if _, err = b.SubscribePartition(t.Context(), counters, "g", turn, nil, o); !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("no handler: %v", err)
		}
	})
}

// An ordered group has one active member: what that cannot read waits for its end.
func TestNormalizedNewerInOrder(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: counters})
		registerCounters(d)
		handled := make(chan string, 10)
		subscribe := func(version int) jetbus.Subscription {
			b := registry.Normalized(d.bus, d.reg, registry.NormalizedOptions{Versions: map[string]int{counters: version}})
			s, err := b.Subscribe(t.Context(), counters, "g", func(_ context.Context, d *jetbus.Delivery) error {
				handled <- fmt.Sprint(version, string(d.Payload))
				return nil
			}, jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: jetbus.Total})
			d.ok(err)
			return s
		}
		old := subscribe(2)
		for i, version := range []string{"4", "4"} {
			_, err := d.bus.Publish(t.Context(), jetbus.Event{Topic: counters, Payload: fmt.Appendf(nil, `{"count":%d}`, i), Headers: map[string]string{"x-schema-version": version}})
			d.ok(err)
		}
		time.Sleep(time.Second)
		subscribe(4)
		time.Sleep(5 * time.Minute) // many times what a newer event is put off for
		if len(handled) != 0 {
			t.Errorf("handled %s", <-handled)
		}
		d.ok(old.Stop(t.Context()))
		for i := range 2 {
			if got, want := <-handled, fmt.Sprintf(`4{"count":%d}`, i); got != want {
				t.Errorf("handled %s, want %s", got, want)
			}
		}
	})
}

func TestNormalizedReceive(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: counters})
		registerCounters(d)
		b := registry.Normalized(d.bus, d.reg, registry.NormalizedOptions{Versions: map[string]int{counters: 3}, Upcasters: registry.Upcasters{counters: {2: rename}}})
		receive := func(o jetbus.ReceiveOptions) []*jetbus.Delivery {
			o.From = jetbus.Earliest()
			out, err := b.Receive(t.Context(), counters, "g", o)
			d.ok(err)
			return out
		}
		publish := func(id, version, payload string) {
			_, err := d.bus.Publish(t.Context(), jetbus.Event{Topic: counters, ID: id, Payload: []byte(payload), Headers: map[string]string{"x-schema-version": version}})
			d.ok(err)
		}
		publish("bad", "1", `{"n":7,"fail":1}`)
		publish("panics", "1", `{"n":7,"panic":1}`)
		publish("newer", "4", `{"count":-1}`)
		began := time.Now()
		if out := receive(jetbus.ReceiveOptions{Wait: 700 * time.Millisecond}); len(out) != 0 || time.Since(began) < 600*time.Millisecond {
			t.Errorf("got %d events after %v", len(out), time.Since(began))
		}
		if out := receive(jetbus.ReceiveOptions{Wait: -1}); len(out) != 0 {
			t.Errorf("got %d events", len(out))
		}
		publish("good", "1", `{"n":7}`)
		out := receive(jetbus.ReceiveOptions{})
		if len(out) != 1 || out[0].ID != "good" || string(out[0].Payload) != `{"count":7}` {
			t.Fatalf("got %+v", out)
		}
		d.ok(out[0].Ack(t.Context()))
		time.Sleep(time.Second)
		dead := map[string]jetbus.DeadLetter{}
		for l, err := range jetbus.DeadLetters(t.Context(), d.bus, jetbus.DeadLetterQuery{Topic: counters}) {
			d.ok(err)
			dead[l.Event.ID] = l
		}
		bad, panics := dead["bad"], dead["panics"]
		if len(dead) != 2 || bad.Error != "upcast counters from version 2 to 3: no luck" || bad.Reason != jetbus.DeadSchema || bad.Stack != "" {
			t.Errorf("dead letters %+v", dead)
		}
		if panics.Reason != jetbus.DeadSchema || !strings.HasPrefix(panics.Stack, "github.com/seed-63e9a637/jetbus/registry_test.") {
			t.Errorf("dead letter of the panic: %s with the stack\n%s", panics.Reason, panics.Stack)
		}
	})
}

// While the registry is gone nothing is given up.
func TestNormalizedWithoutRegistry(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: counters})
		registerCounters(d)
		reg := d.open(registry.Config{})
		s, err := registry.Normalized(d.bus, reg, registry.NormalizedOptions{}).Subscribe(t.Context(), counters, "g",
			func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{MaxAttempts: 1})
		d.ok(err)
		d.ok(reg.Close(t.Context()))
		_, err = d.bus.Publish(t.Context(), jetbus.Event{Topic: counters, Payload: []byte(`{"count":1}`)})
		d.ok(err)
		time.Sleep(time.Minute)
		if stats := s.Stats(); stats.Snoozed < 10 || stats.DeadLetters != 0 || stats.Acked != 0 {
			t.Errorf("stats %+v", stats)
		}
	})
}

func TestNormalizedOptions(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: counters})
		registerCounters(d)
		for _, test := range []struct {
			o    registry.NormalizedOptions
			want error
		}{
			{registry.NormalizedOptions{NewerDelay: -1}, jetbus.ErrInvalidOption},
			{registry.NormalizedOptions{Versions: map[string]int{counters: -1}}, jetbus.ErrInvalidOption},
			{registry.NormalizedOptions{Upcasters: registry.Upcasters{counters: {1: nil}}}, jetbus.ErrInvalidOption},
			{registry.NormalizedOptions{Upcasters: registry.Upcasters{counters: {1: registry.Edit{Default: map[string]json.RawMessage{"": nil}}}}}, jetbus.ErrInvalidOption},
			{registry.NormalizedOptions{Versions: map[string]int{counters: 9}}, registry.ErrNoVersion},
		} {
			b := registry.Normalized(d.bus, d.reg, test.o)
			if _, err := b.Subscribe(t.Context(), counters, "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{}); !errors.Is(err, test.want) {
				t.Errorf("subscribe with %+v: error %v", test.o, err)
			}
			if _, err := b.Receive(t.Context(), counters, "g", jetbus.ReceiveOptions{}); !errors.Is(err, test.want) {
				t.Errorf("receive with %+v: error %v", test.o, err)
			}
		}
		if groups := must(d.bus.Groups(t.Context(), counters))(t); len(groups) != 0 {
			t.Errorf("groups %+v", groups)
		}
	})
}
