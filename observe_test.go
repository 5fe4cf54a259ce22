package jetbus_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

func TestObservers(t *testing.T) {
	var heard []string
	named := func(name string) jetbus.Observer {
		return func(o jetbus.Observation) { heard = append(heard, fmt.Sprint(name, " ", o.Kind)) }
	}
	for _, c := range []struct {
		list []jetbus.Observer
		want []string
	}{
		{nil, nil},
		{[]jetbus.Observer{nil}, nil},
		{[]jetbus.Observer{nil, named("a")}, []string{"a acked"}},
		{[]jetbus.Observer{named("a"), nil, named("b")}, []string{"a acked", "b acked"}},
	} {
		heard = nil
		o := jetbus.Observers(c.list...)
		if (o == nil) != (c.want == nil) {
			t.Errorf("of %d observers: nil is %v", len(c.list), o == nil)
		}
		clear(c.list) // it is the caller's
		o.Observe(jetbus.Observation{Kind: jetbus.Acked})
		if !slices.Equal(heard, c.want) {
			t.Errorf("of %d observers: %q, want %q", len(c.list), heard, c.want)
		}
	}
}
