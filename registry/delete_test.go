package registry_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus/registry"
)

func TestDelete(t *testing.T) {
	r := newRig(t)
	first, second := r.register("t", object("a!")), r.register("t", object("a"))
	gone := must(r.reg.Delete(t.Context(), "t", 2, registry.DeleteOptions{}))(t)
	if gone.Live() || gone.Deleted.IsZero() || gone.Text != second.Text {
		t.Errorf("deleted: %+v", gone)
	}
	r.nothingStored(func() { // what is done already is no error
		if again := must(r.reg.Delete(t.Context(), "t", 2, registry.DeleteOptions{}))(t); !cmp.Equal(again, gone) {
			t.Errorf("deleted again: %+v", again)
		}
	})
	if latest := must(r.reg.Latest(t.Context(), "t"))(t); !cmp.Equal(latest, first) {
		t.Errorf("the latest is %+v", latest)
	}
	if current := must(r.reg.Current("t"))(t); current.Version.Number != 1 {
		t.Errorf("the current one is %+v", current)
	}
	if got := must(r.reg.Versions(t.Context(), "t", false))(t); !cmp.Equal(got, []registry.Version{first}) {
		t.Errorf("versions: %+v", got)
	}
	if got := must(r.reg.Versions(t.Context(), "t", true))(t); !cmp.Equal(got, []registry.Version{first, gone}) {
		t.Errorf("versions with deleted ones: %+v", got)
	}
	if compiled := must(r.reg.Compiled(t.Context(), "t", 2))(t); compiled.Text() != second.Text {
		t.Errorf("for events of the past: %s", compiled.Text())
	}
	_, err := r.reg.Find(t.Context(), "t", object("a"))
	r.is(err, registry.ErrNoVersion)
	if again := r.register("t", object("a")); again.Number != 3 || again.ID != second.ID {
		t.Errorf("registered again: %+v", again)
	}

	erased := must(r.reg.Delete(t.Context(), "t", 2, registry.DeleteOptions{Permanent: true}))(t)
	if !erased.Erased || erased.Text != "" || erased.Number != 2 || erased.ID != second.ID {
		t.Errorf("erased: %+v", erased)
	}
	must(r.reg.Delete(t.Context(), "t", 2, registry.DeleteOptions{Permanent: true}))(t)
	other := r.open(registry.Config{})
	for _, reg := range []*registry.Registry{r.reg, other} {
		if got := must(reg.Version(t.Context(), "t", 2))(t); !cmp.Equal(got, erased) {
			t.Errorf("version 2 is %+v", got)
		}
		_, err = reg.Compiled(t.Context(), "t", 2)
		r.is(err, registry.ErrErased)
	}
	_, err = r.reg.Delete(t.Context(), "t", 2, registry.DeleteOptions{})
	r.is(err, registry.ErrErased)
}

// Numbers are not used again, though nothing else is left of a topic.
func TestDeleteTopic(t *testing.T) {
	r := newRig(t)
	r.ok(r.reg.SetSettings(t.Context(), "t", registry.Settings{Level: registry.LevelNone}))
	r.register("t", object("a!"))
	r.register("t", referring("x", registry.Reference{Topic: "t", Version: 1}))
	_, err := r.reg.DeleteTopic(t.Context(), "t", registry.DeleteOptions{Permanent: true})
	r.is(err, registry.ErrNotDeleted)
	for _, permanent := range []bool{false, true} {
		if got := must(r.reg.DeleteTopic(t.Context(), "t", registry.DeleteOptions{Permanent: permanent}))(t); !cmp.Equal(got, []int{2, 1}) {
			t.Errorf("permanent %t: deleted %v", permanent, got)
		}
		if got := must(r.reg.DeleteTopic(t.Context(), "t", registry.DeleteOptions{Permanent: permanent}))(t); got != nil {
			t.Errorf("permanent %t: deleted again %v", permanent, got)
		}
	}
	if got := must(r.reg.Topics(t.Context(), false))(t); got != nil {
		t.Errorf("topics: %q", got)
	}
	if got := must(r.reg.Topics(t.Context(), true))(t); !cmp.Equal(got, []string{"t"}) {
		t.Errorf("topics with deleted versions: %q", got)
	}
	if v := r.register("t", object("z!")); v.Number != 3 || v.Admission != registry.First {
		t.Errorf("registered %+v", v)
	}
}

func TestReferences(t *testing.T) {
	r := newRig(t)
	target := r.register("address", object("city!")).Reference()
	v := r.register("order", referring("to", target))
	if !cmp.Equal(v.References, []registry.Reference{target}) {
		t.Errorf("references: %v", v.References)
	}
	must(r.reg.Compiled(t.Context(), "order", 1))(t)
	must(r.open(registry.Config{}).Compiled(t.Context(), "order", 1))(t)
	r.register("shipment", referring("order", v.Reference())) // and through it to the address
	if got := must(r.reg.ReferencedBy(t.Context(), "address", 1))(t); !cmp.Equal(got, []registry.Reference{v.Reference()}) {
		t.Errorf("referenced by %v", got)
	}
	r.nothingStored(func() {
		_, err := r.reg.Delete(t.Context(), "address", 1, registry.DeleteOptions{})
		r.is(err, registry.ErrReferenced)
		bad, ok := errors.AsType[*registry.ReferencedError](err)
		if !ok || !cmp.Equal(bad.By, []registry.Reference{v.Reference()}) || !strings.Contains(err.Error(), "schema://order/1") {
			t.Errorf("got %v", err)
		}
		_, err = r.reg.DeleteTopic(t.Context(), "order", registry.DeleteOptions{})
		r.is(err, registry.ErrReferenced)
		_, err = r.reg.ReferencedBy(t.Context(), "address", 2)
		r.is(err, registry.ErrNoVersion)
	})

	must(r.reg.Delete(t.Context(), "shipment", 1, registry.DeleteOptions{}))(t)
	must(r.reg.Delete(t.Context(), "order", 1, registry.DeleteOptions{}))(t)
	must(r.reg.Delete(t.Context(), "address", 1, registry.DeleteOptions{}))(t)
	must(r.open(registry.Config{}).Compiled(t.Context(), "shipment", 1))(t) // events of the past are still read
	_, err := r.reg.Delete(t.Context(), "address", 1, registry.DeleteOptions{Permanent: true})
	r.is(err, registry.ErrReferenced) // by a deleted version, which needs it
	for _, topic := range []string{"shipment", "order", "address"} {
		must(r.reg.Delete(t.Context(), topic, 1, registry.DeleteOptions{Permanent: true}))(t)
	}
}

// A version whose number another registration took refers to nothing.
func TestReferenceOfTheLoser(t *testing.T) {
	r := newRig(t)
	target := r.register("target", object("a")).Reference()
	p := &tap{broker: r.broker}
	slow := openOn(t, p.connect(t), registry.Config{})
	p.on("$KV.SCHEMAS.s.referrer.v.1 ", func() { r.register("referrer", `{"type": "object"}`) }, nil)
	v := must(slow.Register(t.Context(), "referrer", `{"$ref": "`+target.String()+`", "type": "object"}`, registry.RegisterOptions{Force: true, By: "ana"}))(t)
	if v.Number != 2 {
		t.Fatalf("registered %+v", v)
	}
	if got := must(slow.ReferencedBy(t.Context(), "target", 1))(t); !cmp.Equal(got, []registry.Reference{v.Reference()}) {
		t.Errorf("referenced by %v", got)
	}
	must(slow.Delete(t.Context(), "referrer", 2, registry.DeleteOptions{}))(t)
	must(slow.Delete(t.Context(), "target", 1, registry.DeleteOptions{}))(t)
}

// A version is deleted after its referrer has said that it will refer to it, and
// before it does.
func TestDeletedUnderRegistration(t *testing.T) {
	r := newRig(t)
	target := r.register("target", object("a")).Reference()
	p := &tap{broker: r.broker}
	slow := openOn(t, p.connect(t), registry.Config{})
	p.on("$KV.SCHEMAS.s.referrer.v.1 ", func() {
		must(r.reg.Delete(t.Context(), "target", 1, registry.DeleteOptions{}))(t)
	}, nil)
	_, err := slow.Register(t.Context(), "referrer", referring("x", target), registry.RegisterOptions{})
	r.is(err, registry.ErrInvalidReference)
	if got := must(slow.Topics(t.Context(), true))(t); !cmp.Equal(got, []string{"target"}) {
		t.Errorf("topics: %q", got)
	}
}

// A referrer comes into being while a version is being deleted, after that has made
// sure that there is none.
func TestReferredUnderDeletion(t *testing.T) {
	r := newRig(t)
	target := r.register("target", object("a")).Reference()
	p := &tap{broker: r.broker}
	slow := openOn(t, p.connect(t), registry.Config{})
	p.on("$KV.SCHEMAS.s.target.v.1 ", func() { r.register("referrer", referring("x", target)) }, nil)
	_, err := slow.Delete(t.Context(), "target", 1, registry.DeleteOptions{})
	r.is(err, registry.ErrReferenced)
	if v := must(slow.Version(t.Context(), "target", 1))(t); !v.Live() {
		t.Errorf("it is deleted all the same: %+v", v)
	}
}

// An abandoned registration hinders nobody.
func TestAbandonedReference(t *testing.T) {
	r := newRig(t)
	target := r.register("target", object("a")).Reference()
	p := &tap{broker: r.broker}
	slow := openOn(t, p.connect(t), registry.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.on("$KV.SCHEMAS.s.target.r.1.referrer.1 ", nil, cancel) // the process ends before it registers
	_, err := slow.Register(ctx, "referrer", referring("x", target), registry.RegisterOptions{})
	r.is(err, context.Canceled)
	must(r.open(registry.Config{}).Delete(t.Context(), "target", 1, registry.DeleteOptions{}))(t)
}
