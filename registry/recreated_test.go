package registry_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

// TestBucketMadeAnew: somebody deletes the bucket, and another process makes it again.
// Sequences begin anew then, below what the cache has.
func TestBucketMadeAnew(t *testing.T) {
	r := newRig(t)
	for _, p := range []string{"a", "b", "c"} {
		r.register("orders.created", object(p))
		must(r.reg.Delete(t.Context(), "orders.created", must(r.reg.Latest(t.Context(), "orders.created"))(t).Number, registry.DeleteOptions{}))(t)
	}
	js := must(jetstream.New(bustest.Connect(t, r.broker)))(t)
	r.ok(js.DeleteKeyValue(t.Context(), "SCHEMAS"))
	other := r.open(registry.Config{})
	must(other.Register(t.Context(), "orders.created", object("x"), registry.RegisterOptions{}))(t)
	v, err := r.reg.Register(t.Context(), "orders.created", object("x", "y"), registry.RegisterOptions{})
	if err != nil || v.Number != 2 {
		t.Errorf("version %d, %v", v.Number, err)
	}
}

// TestNormalizerOfABucketMadeAnew: what was proved of the versions before is not taken to be so of
// those that have their numbers now.
func TestNormalizerOfABucketMadeAnew(t *testing.T) {
	r := newRig(t)
	n := registry.NewNormalizer(r.reg, registry.NormalizedOptions{Versions: map[string]int{"orders.created": 2}})
	event := jetbus.Event{Topic: "orders.created", Payload: []byte(`{"a":"x"}`), Headers: map[string]string{jetbus.HeaderSchemaVersion: "1"}}
	r.register("orders.created", object("a"))
	r.register("orders.created", object("a", "b"))
	must(n.Normalize(t.Context(), event))(t)
	js := must(jetstream.New(bustest.Connect(t, r.broker)))(t)
	r.ok(js.DeleteKeyValue(t.Context(), "SCHEMAS"))
	must(r.open(registry.Config{}).Register(t.Context(), "orders.created", object("a"), registry.RegisterOptions{}))(t)
	v, err := r.reg.Register(t.Context(), "orders.created", `{"type":"object","properties":{"a":{"type":"string","minLength":1}}}`, registry.RegisterOptions{Force: true, By: "alice"})
	if err != nil || v.Number != 2 {
		t.Fatalf("version %d, %v", v.Number, err)
	}
	if _, err := n.Normalize(t.Context(), event); err == nil {
		t.Error("a hop that is not proved is passed")
	}
}

// TestReaderOfABucketMadeAnew: who only reads finds what the new bucket has.
func TestReaderOfABucketMadeAnew(t *testing.T) {
	r := newRig(t)
	for _, p := range []string{"a", "b", "c"} {
		r.register("orders.created", object(p))
		must(r.reg.Delete(t.Context(), "orders.created", must(r.reg.Latest(t.Context(), "orders.created"))(t).Number, registry.DeleteOptions{}))(t)
	}
	js := must(jetstream.New(bustest.Connect(t, r.broker)))(t)
	r.ok(js.DeleteKeyValue(t.Context(), "SCHEMAS"))
	other := r.open(registry.Config{})
	must(other.Register(t.Context(), "bills.created", object("x"), registry.RegisterOptions{}))(t)
	must(r.reg.Compiled(t.Context(), "bills.created", 1))(t)
	_, err := r.reg.Compiled(t.Context(), "bills.created", 2)
	r.is(err, registry.ErrNoVersion)
}
