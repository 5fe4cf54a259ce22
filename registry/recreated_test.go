package registry_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

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
