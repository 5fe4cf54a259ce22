package registry_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// desk is a rig with a bus.
type desk struct {
	*rig

	bus *adapter.Bus
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	r := newRig(t)
	return &desk{r, bustest.Open(t, r.broker, adapter.Config{Storage: jetbus.MemoryStorage})}
}

func (d *desk) declare(configs ...jetbus.TopicConfig) {
	d.Helper()
	for _, c := range configs {
		_, err := d.bus.EnsureTopic(d.Context(), c)
		d.ok(err)
	}
}

// force registers a schema whatever it is compatible with.
func (d *desk) force(topic, text string) registry.Version {
	d.Helper()
	return must(d.reg.Register(d.Context(), topic, text, registry.RegisterOptions{Force: true, By: "test"}))(d.T)
}

func (d *desk) scan(topic string) []jetbus.Event {
	d.Helper()
	var out []jetbus.Event
	for e, err := range d.bus.Scan(d.Context(), topic, jetbus.ScanQuery{}) {
		d.ok(err)
		out = append(out, e)
	}
	return out
}

const (
	nameV1 = `{"type":"object","properties":{"name":{"type":"string","minLength":1}},"required":["name"]}`
	nameV2 = `{"type":"object","properties":{"name":{"type":"string","minLength":1},"age":{"type":"integer"}},"required":["name"],"additionalProperties":false}`
)

func TestValidated(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: "people"}, jetbus.TopicConfig{Name: "free"}, jetbus.TopicConfig{Name: "gone"})
		d.register("people", nameV1)
		d.force("people", nameV2)
		d.force("people", `{"type":"object","required":["x"]}`)
		must(d.reg.Delete(t.Context(), "people", 3, registry.DeleteOptions{}))(t)
		latest := registry.Validated(d.bus, d.reg, registry.ValidatedOptions{})
		pinned := registry.Validated(d.bus, d.reg, registry.ValidatedOptions{Versions: map[string]int{"people": 1}, RequireSchema: true})
		for _, test := range []struct {
			name    string
			bus     jetbus.Backend
			e       jetbus.Event
			version string // that is stored
			want    error
			text    string
		}{
			{"the latest version", latest, jetbus.Event{Payload: []byte(`{"name":"a","age":1}`)}, "2", nil, ""},
			{"that of the program", pinned, jetbus.Event{Payload: []byte(`{"name":"a","other":1}`)}, "1", nil, ""},
			{"that of the event", latest, jetbus.Event{Payload: []byte(`{"name":"a","other":1}`), Headers: map[string]string{"x-schema-version": "1"}}, "1", nil, ""},
			{"that of the event before that of the program", pinned, jetbus.Event{Payload: []byte(`{"name":"a","other":1}`), Headers: map[string]string{"x-schema-version": "2"}}, "", jetbus.ErrSchema, "other"},
			{"a version of another topic is none", latest, jetbus.Event{Payload: []byte(`{"name":"a"}`), Headers: map[string]string{"x-schema-version": "7", "x-ce-dataschema": "schema://other/7"}}, "2", nil, ""},
			{"other JSON", latest, jetbus.Event{Payload: []byte(`{"name":"a"}`), Headers: map[string]string{"content-type": "application/person+json; charset=utf-8"}}, "2", nil, ""},
			{"violations", latest, jetbus.Event{Payload: []byte(`{"name":"","age":"x"}`)}, "", jetbus.ErrSchema, "people breaks version 2 of its schema: /age: "},
			{"no JSON", latest, jetbus.Event{Payload: []byte(`{"name"`)}, "", jetbus.ErrSchema, "not JSON"},
			{"no payload", latest, jetbus.Event{}, "", jetbus.ErrSchema, "payload: missing"},
			{"another content type", latest, jetbus.Event{Payload: []byte(`{"name":"a"}`), Headers: map[string]string{"content-type": "text/plain"}}, "", jetbus.ErrSchema, "text/plain"},
			{"no content type at all", latest, jetbus.Event{Payload: []byte(`{"name":"a"}`), Headers: map[string]string{"content-type": ";"}}, "", jetbus.ErrSchema, "content type"},
			{"a version that is no number", latest, jetbus.Event{Payload: []byte(`{"name":"a"}`), Headers: map[string]string{"x-schema-version": "latest"}}, "", jetbus.ErrSchema, "x-schema-version"},
			{"a version that does not exist", latest, jetbus.Event{Payload: []byte(`{"name":"a"}`), Headers: map[string]string{"x-schema-version": "9"}}, "", registry.ErrNoVersion, "9"},
			{"a version that is deleted", latest, jetbus.Event{Payload: []byte(`{"x":1}`), Headers: map[string]string{"x-schema-version": "3"}}, "", jetbus.ErrSchema, "deleted"},
			{"no schema", latest, jetbus.Event{Topic: "free", Payload: []byte("any"), Headers: map[string]string{"x-schema-version": "any"}}, "any", nil, ""},
			{"no schema where one is required", pinned, jetbus.Event{Topic: "free", Payload: []byte("any")}, "", registry.ErrNoSchema, "free"},
			{"no topic where a schema is required", pinned, jetbus.Event{Topic: "No Topic", Payload: []byte("any")}, "", jetbus.ErrInvalidTopic, ""},
			{"a null", latest, jetbus.Event{Key: "k", Payload: []byte("null")}, "", jetbus.ErrSchema, "publish a jetbus.Tombstone"},
		} {
			func() {
				if test.e.Topic == "" {
					test.e.Topic = "people"
				}
				before := maps.Clone(test.e.Headers)
				at := len(d.scan("people")) + len(d.scan("free"))
				for _, publish := range []func() (jetbus.Receipt, error){
					func() (jetbus.Receipt, error) { return test.bus.Publish(t.Context(), test.e) },
					func() (jetbus.Receipt, error) {
						out, err := test.bus.PublishBatch(t.Context(), []jetbus.Event{{Topic: "people", Payload: []byte(`{"name":"first"}`)}, test.e}, jetbus.BatchOptions{})
						if err != nil {
							return jetbus.Receipt{}, err
						}
						return out[1], nil
					},
				} {
					r, err := publish()
					if !errors.Is(err, test.want) || err != nil && !strings.Contains(err.Error(), test.text) {
						t.Errorf("%s: got the error %v, want %v with %q", test.name, err, test.want, test.text)
					}
					if err == nil && r.Event.Headers["x-schema-version"] != test.version {
						t.Errorf("%s: stored with %v, want version %s", test.name, r.Event.Headers, test.version)
					}
					if want := "schema://people/" + test.version; err == nil && test.e.Topic == "people" && test.version != "" && r.Event.Headers["x-ce-dataschema"] != want {
						t.Errorf("%s: stored with %v, want dataschema %s", test.name, r.Event.Headers, want)
					}
				}
				if !maps.Equal(before, test.e.Headers) {
					t.Errorf("%s: the caller's headers are %v now, were %v", test.name, test.e.Headers, before)
				}
				if n := len(d.scan("people")) + len(d.scan("free")) - at; (test.want == nil) != (n > 0) {
					t.Errorf("%s: %d events were stored", test.name, n)
				}
			}()
		}
	})
}

// A tombstone deletes its key whatever the schema says; a null is a value.
func TestValidatedTombstone(t *testing.T) {
	d := newDesk(t)
	d.declare(jetbus.TopicConfig{Name: "state", Compact: true})
	d.register("state", nameV1)
	b := registry.Validated(d.bus, d.reg, registry.ValidatedOptions{})
	must(b.Publish(t.Context(), jetbus.Event{Topic: "state", Key: "k", Payload: []byte(`{"name":"a"}`)}))(t)
	_, err := b.Publish(t.Context(), jetbus.Event{Topic: "state", Key: "k", Payload: []byte("null")})
	d.is(err, jetbus.ErrSchema)
	if state := must(b.LatestByKey(t.Context(), "state", "k"))(t); len(state) != 1 {
		t.Errorf("a null that was refused leaves %v", state)
	}
	must(b.Publish(t.Context(), jetbus.Tombstone("state", "k")))(t)
	if state := must(b.LatestByKey(t.Context(), "state", "k"))(t); len(state) != 0 {
		t.Errorf("a tombstone leaves %v", state)
	}
}

func TestValidatedViolations(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: "people"})
		d.register("people", `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"},"d":{"type":"integer"}}}`)
		b := registry.Validated(d.bus, d.reg, registry.ValidatedOptions{})
		good, bad := jetbus.Event{Topic: "people", Payload: []byte(`{}`)}, jetbus.Event{Topic: "people", Payload: []byte(`{"a":"1","b":"2","c":"3","d":"4"}`)}
		_, err := b.PublishBatch(t.Context(), []jetbus.Event{good, good, bad}, jetbus.BatchOptions{Atomic: true})
		broken, ok := errors.AsType[*registry.SchemaError](err)
		if !ok || broken.Topic != "people" || broken.Version != 1 || len(broken.Violations) != 4 || broken.Violations[3].InstancePath != "/d" {
			t.Fatalf("error %v: %+v", err, broken)
		}
		if text := err.Error(); !strings.Contains(text, "event 2") || !strings.Contains(text, "and 1 more") || strings.Contains(text, "/d") || strings.Contains(text, "\n") {
			t.Errorf("error %q", text)
		}
		if n := len(d.scan("people")); n != 0 {
			t.Errorf("%d events of the batch are stored", n)
		}
	})
}

// The observer is told what is refused, and leaves the rest to that of the bus.
func TestValidatedObserver(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: "people"})
		d.register("people", nameV1)
		var told []jetbus.Observation
		b := registry.Validated(d.bus, d.reg, registry.ValidatedOptions{Observer: func(o jetbus.Observation) { told = append(told, o) }})
		good, bad := jetbus.Event{Topic: "people", Payload: []byte(`{"name":"a"}`)}, jetbus.Event{Topic: "people", ID: "bad", Payload: []byte(`{}`)}
		must(b.Publish(t.Context(), good))(t)
		must(b.PublishBatch(t.Context(), []jetbus.Event{good, good}, jetbus.BatchOptions{}))(t)
		if len(told) != 0 {
			t.Errorf("told %+v of what passed", told)
		}
		_, single := b.Publish(t.Context(), bad)
		d.is(single, jetbus.ErrSchema)
		_, batch := b.PublishBatch(t.Context(), []jetbus.Event{good, bad, good}, jetbus.BatchOptions{})
		d.is(batch, jetbus.ErrSchema)
		if len(told) != 2 {
			t.Fatalf("told %+v, want two refusals", told)
		}
		for i, want := range []jetbus.Observation{
			{Kind: jetbus.PublishFail, Topic: "people", ID: "bad", Count: 1, Err: single},
			{Kind: jetbus.PublishFail, Topic: "people", Count: 3, Err: batch},
		} {
			if got := told[i]; got.Kind != want.Kind || got.Topic != want.Topic || got.ID != want.ID || got.Count != want.Count || !errors.Is(got.Err, want.Err) {
				t.Errorf("told %+v, want %+v", got, want)
			}
		}
	})
}

// Under the declared model a publisher may not send what its schema does not declare.
func TestValidatedDeclared(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: "people"})
		d.ok(d.reg.SetSettings(t.Context(), "people", registry.Settings{Model: schema.Declared}))
		d.register("people", nameV1)
		b := registry.Validated(d.bus, d.reg, registry.ValidatedOptions{})
		_, err := b.Publish(t.Context(), jetbus.Event{Topic: "people", Payload: []byte(`{"name":"a","nick":"b"}`)})
		if broken, ok := errors.AsType[*registry.SchemaError](err); !ok || len(broken.Violations) != 1 || !strings.Contains(err.Error(), "nick") {
			t.Errorf("error %v", err)
		}
		_, err = b.Publish(t.Context(), jetbus.Event{Topic: "people", Payload: []byte(`{"name":"a"}`)})
		d.ok(err)
	})
}

// Every way of publishing is checked.
func TestValidatedEverywhere(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: "people", Delays: true}, jetbus.TopicConfig{Name: "raw"})
		d.register("people", nameV1)
		b := registry.Validated(d.bus, d.reg, registry.ValidatedOptions{})
		bad := jetbus.Event{Topic: "people", Payload: []byte(`{}`)}
		for name, o := range map[string]jetbus.PublishOptions{
			"delayed": {DeliverAt: time.Now().Add(time.Hour)}, "with a TTL": {TTL: time.Minute}, "conditional": {ExpectLastSeq: new(uint64)},
		} {
			if _, err := b.Publish(t.Context(), bad, o); !errors.Is(err, jetbus.ErrSchema) {
				t.Errorf("%s: error %v", name, err)
			}
		}
		r, err := b.Publish(t.Context(), jetbus.Event{Topic: "people", Payload: []byte(`{"name":"later"}`)}, jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour)})
		if err != nil || !r.Scheduled || r.Event.Headers["x-schema-version"] != "1" {
			t.Errorf("got %+v and the error %v", r, err)
		}

		// A replay to the topic: the event brings along what it stated elsewhere.
		for _, payload := range []string{`{}`, `{"name":"a"}`} {
			_, err := d.bus.Publish(t.Context(), jetbus.Event{Topic: "raw", Payload: []byte(payload), Headers: map[string]string{"x-schema-version": "5", "x-ce-dataschema": "schema://raw/5"}})
			d.ok(err)
		}
		dead := make(chan struct{}, 2)
		_, err = d.bus.Subscribe(t.Context(), "raw", "g", func(context.Context, *jetbus.Delivery) error {
			dead <- struct{}{}
			return jetbus.Reject(errors.New("no"))
		}, jetbus.SubscribeOptions{From: jetbus.Earliest()})
		d.ok(err)
		<-dead
		<-dead
		time.Sleep(time.Second)
		stats, err := jetbus.Replay(t.Context(), b, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "raw"}, ToTopic: "people"})
		if stats.Replayed != 1 || stats.Failed != 1 {
			t.Errorf("the replay did %+v, error %v", stats, err)
		}
		stored := d.scan("people")
		if len(stored) != 1 || stored[0].Headers["x-schema-version"] != "1" || stored[0].Headers["x-ce-dataschema"] != "schema://people/1" {
			t.Errorf("stored %+v", stored)
		}
	})
}

func BenchmarkValidated(b *testing.B) {
	text := `{"type":"object","properties":{"id":{"type":"string"},"host":{"type":"string","minLength":1},"pid":{"type":"integer","minimum":1},` +
		`"cpu":{"type":"number","minimum":0},"mem_mib":{"type":"integer","minimum":0},"state":{"enum":["running","stopped"]}},"required":["id","host","pid"]}`
	payload := []byte(`{"id":"7f3a","host":"web-1","pid":4711,"cpu":0.25,"mem_mib":512,"state":"running"}`)
	compiled, err := schema.Compile(text, schema.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("validation", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := compiled.Validate(payload); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("publish", func(b *testing.B) {
		r, err := registry.Open(b.Context(), bustest.Connect(b, bustest.Start(b, embedded.Config{})), registry.Config{})
		if err != nil {
			b.Fatal(err)
		}
		defer r.Close(context.Background())
		if _, err := r.Register(b.Context(), "heartbeat.received", text, registry.RegisterOptions{}); err != nil {
			b.Fatal(err)
		}
		bus := registry.Validated(nowhere{}, r, registry.ValidatedOptions{})
		e := jetbus.Event{Topic: "heartbeat.received", Payload: payload}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := bus.Publish(b.Context(), e); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// nowhere stores nothing.
type nowhere struct{ jetbus.Backend }

func (nowhere) Publish(_ context.Context, e jetbus.Event, _ ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	return jetbus.Receipt{Event: e}, nil
}
