package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-63e9a637/jetbus"
)

func TestSchemaUsage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "orders")
	if r := b.run(t, "", "schema", "usage", "orders"); r.code != 0 || r.out != "" || !strings.HasPrefix(r.errOut, "no events in orders since 20") {
		t.Errorf("%+v", r)
	}
	bus := b.bus(t)
	old := time.Now()
	for _, e := range []jetbus.Event{
		{SID: "boot-1", Headers: map[string]string{"x-schema-version": "10"}},
		{SID: "boot-1", Headers: map[string]string{"x-schema-version": "10"}},
		{SID: "boot-2", Headers: map[string]string{"x-schema-version": "10"}},
		{SID: "boot-1", Headers: map[string]string{"x-schema-version": "9"}},
		{SID: "shop-42", Headers: map[string]string{"x-schema-version": "9", "x-ce-source": "shop-42"}},
		{SID: "boot 3"},
		{SID: "boot-1", Headers: map[string]string{"x-schema-version": "v\u202e1"}},
	} {
		e.Topic = "orders"
		if _, err := bus.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	out := b.ok(t, "", "schema", "usage", "orders", "--since", "1h")
	var cells [][]string
	for line := range strings.Lines(out) {
		cells = append(cells, strings.Fields(line)[:3])
	}
	if diff := cmp.Diff([][]string{
		{"VERSION", "SOURCE", "EVENTS"},
		{"none", "urn:jetbus:boot%203", "1"},
		{"9", "shop-42", "1"},
		{"9", "urn:jetbus:boot-1", "1"},
		{"10", "urn:jetbus:boot-1", "2"},
		{"10", "urn:jetbus:boot-2", "1"},
		{`v\u202e1`, "urn:jetbus:boot-1", "1"},
	}, cells); diff != "" {
		t.Errorf("%s\n%s", diff, out)
	}
	var list []usage
	if err := json.Unmarshal([]byte(b.ok(t, "", "schema", "usage", "orders", "-o", "json")), &list); err != nil || len(list) != 6 {
		t.Fatalf("%+v, %v", list, err)
	}
	if u := list[3]; u.Events != 2 || u.First < old.UnixMilli() || u.Last < u.First || u.Last > time.Now().UnixMilli() {
		t.Errorf("%+v", u)
	}
	later := time.UnixMilli(list[5].Last + 1000).UTC().Format(time.RFC3339Nano)
	if out := b.ok(t, "", "schema", "usage", "orders", "-o", "json", "--since", later); out != "[]\n" {
		t.Errorf("after the last event: %s", out)
	}
	b.fails(t, exitUsage, "--since: ", "", "schema", "usage", "orders", "--since", "soon")
	b.fails(t, exitUsage, "", "", "schema", "usage", "orders", "-o", "yaml")
	b.fails(t, exitNotFound, "nothing: no such topic", "", "schema", "usage", "nothing")
}

// The number of rows and their size are bounded, and all events are counted.
func TestCountUsageIsBounded(t *testing.T) {
	const events = 5000
	list, err := countUsage(func(yield func(jetbus.Event, error) bool) {
		for i := range events {
			e := jetbus.Event{SID: fmt.Sprint(i, strings.Repeat("s", 400)), Headers: map[string]string{"x-schema-version": strings.Repeat("\u00e9", 300) + fmt.Sprint(i)}}
			if !yield(e, nil) {
				return
			}
		}
	})
	sum := uint64(0)
	for _, u := range list {
		if sum += u.Events; len(u.Version) > maxUsageBytes+3 || len(u.Source) > maxUsageBytes+3 {
			t.Fatalf("a version of %d bytes, a source of %d", len(u.Version), len(u.Source))
		}
	}
	if err != nil || len(list) != maxUsageRows+1 || sum != events {
		t.Errorf("%d rows of %d events, %v", len(list), sum, err)
	}
	list, err = countUsage(func(yield func(jetbus.Event, error) bool) { // the old version comes last
		for i := range events {
			version := "2"
			if i >= events-2 {
				version = "1"
			}
			if !yield(jetbus.Event{SID: fmt.Sprint(i), Headers: map[string]string{"x-schema-version": version}}, nil) {
				return
			}
		}
	})
	if err != nil || len(list) != maxUsageRows+2 || list[0].Version != "1" || list[0].Source != "other" || list[0].Events != 2 || list[1].Version != "2" {
		t.Errorf("%d rows, %v; the first is %+v", len(list), err, list[0])
	}
	list, err = countUsage(func(yield func(jetbus.Event, error) bool) {
		for i := range events {
			if !yield(jetbus.Event{SID: "s", Headers: map[string]string{"x-schema-version": fmt.Sprint(i + 1)}}, nil) {
				return
			}
		}
	})
	if last := list[len(list)-1]; err != nil || len(list) != maxUsageRows+1 || last.Version != "other" || last.Events != events-maxUsageRows {
		t.Errorf("%d rows, %v; the last is %+v", len(list), err, last)
	}
	broken := errors.New("broken")
	if list, err := countUsage(func(yield func(jetbus.Event, error) bool) { yield(jetbus.Event{}, broken) }); !errors.Is(err, broken) || list != nil {
		t.Errorf("%v, %v", list, err)
	}
	list, err = countUsage(func(yield func(jetbus.Event, error) bool) { yield(jetbus.Event{}, nil) })
	if diff := cmp.Diff([]usage{{Version: "none", Events: 1}}, list, cmpopts.IgnoreFields(usage{}, "First", "Last")); diff != "" || err != nil {
		t.Error(diff, err)
	}
}
