package registry_test

import (
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus/registry"
)

// TestDocument has a schema that refers to one that refers to another: all of it is in the
// document, and none of the registry's names.
func TestDocument(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	if got, err := r.reg.Document(ctx, "orders", nil); err != nil || got != nil {
		t.Errorf("no schema: %s, %v", got, err)
	}
	for _, s := range [][2]string{
		{"city", `{"type":"string","minLength":1}`},
		{"address", `{"type":"object","properties":{"city":{"$ref":"schema://city/1"}}}`},
		{"orders", `{"type":"object","properties":{"to":{"$ref":"schema://address/1"},"from":{"$ref":"schema://address/1#/properties/city"}}}`},
	} {
		if _, err := r.reg.Register(ctx, s[0], s[1], registry.RegisterOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := r.reg.Document(ctx, "orders", nil)
	if err != nil || strings.Contains(string(got), "schema://") || !strings.Contains(string(got), `"minLength":1`) || !strings.Contains(string(got), `"to":{"$ref":"#/$defs/address.1"}`) {
		t.Errorf("%s, %v", got, err)
	}
	for hidden, shown := range map[string]bool{"city": false, "address": false, "other": true} {
		may := func(topic string) bool { return topic != hidden }
		if got, err := r.reg.Document(ctx, "orders", may); err != nil || (got != nil) != shown {
			t.Errorf("without %s: %s, %v", hidden, got, err)
		}
	}
	if _, err := r.reg.Document(ctx, "or ders", nil); err == nil {
		t.Error("no error of a name that is none")
	}
}
