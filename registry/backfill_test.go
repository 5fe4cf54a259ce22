package registry_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

// cut is a bus that dies at its nth write: before it, or after it and before its
// answer. What is written later is not, as in a process that was killed.
type cut struct {
	jetbus.Backend

	mu     sync.Mutex
	left   int
	after  bool // the write is stored
	died   bool
	cancel context.CancelFunc
}

var errKilled = errors.New("killed")

func (c *cut) write(f func() error) error {
	c.mu.Lock()
	c.left--
	die := c.left == 0
	dead := c.died
	c.died = c.died || die
	c.mu.Unlock()
	if dead || die && !c.after {
		c.cancel()
		return errKilled
	}
	err := f()
	if die {
		c.cancel()
		return errKilled
	}
	return err
}

func (c *cut) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (r jetbus.Receipt, err error) {
	failed := c.write(func() error { r, err = c.Backend.Publish(ctx, e, o...); return err })
	return r, failed
}

func (c *cut) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) (r []jetbus.Receipt, err error) {
	failed := c.write(func() error { r, err = c.Backend.PublishBatch(ctx, events, o); return err })
	return r, failed
}

func (c *cut) KeySet(ctx context.Context, bucket, key string, value []byte, revision uint64, ttl time.Duration) (n uint64, err error) {
	if bucket != "JETBUS_BACKFILLS" {
		return c.Backend.KeySet(ctx, bucket, key, value, revision, ttl)
	}
	failed := c.write(func() error { n, err = c.Backend.KeySet(ctx, bucket, key, value, revision, ttl); return err })
	return n, failed
}

const readings = "readings"

// newBackfillDesk has a topic with 45 events of two versions, of which 4 are invalid,
// one is a tombstone and one has no key.
func newBackfillDesk(t *testing.T) *desk {
	t.Helper()
	d := newDesk(t)
	d.declare(jetbus.TopicConfig{Name: readings})
	d.register(readings, `{"type":"object","properties":{"mb":{"type":"integer"}},"required":["mb"],"additionalProperties":false}`)
	d.force(readings, `{"type":"object","properties":{"mib":{"type":"integer"}},"required":["mib"],"additionalProperties":false}`)
	var events []jetbus.Event
	for i := range 45 {
		e := jetbus.Event{
			Topic: readings, ID: fmt.Sprint("r", i), Key: fmt.Sprint("k", i%7), CausedBy: []string{"boot"}, Tags: []string{"t"},
			Payload: fmt.Appendf(nil, `{"mb":%d}`, i), Headers: map[string]string{"x-schema-version": "1"},
		}
		switch {
		case i%11 == 10:
			e.Payload = fmt.Appendf(nil, `{"mb":"%d"}`, i)
		case i == 23:
			e.Payload = []byte("null")
		case i == 31:
			e.Key = ""
		case i > 25:
			e.Payload, e.Headers["x-schema-version"] = fmt.Appendf(nil, `{"mib":%d}`, i), "2"
		}
		events = append(events, e)
	}
	_, err := d.bus.PublishBatch(t.Context(), events, jetbus.BatchOptions{})
	d.ok(err)
	return d
}

func backfillOf(to string) registry.BackfillOptions {
	return registry.BackfillOptions{
		Name: to, From: readings, To: to, BatchSize: 10,
		Upcasters: registry.Upcasters{readings: {1: registry.Edit{Rename: map[string]string{"mb": "mib"}}}},
	}
}

// contents are what a backfill wrote, without what tells its target and name apart.
func (d *desk) contents(topic string) []string {
	d.Helper()
	var out []string
	for _, e := range d.scan(topic) {
		out = append(out, fmt.Sprintf("%s of %s at %v: %s %v v%s %s", e.Key, e.Headers["x-backfill-of"], e.Time.UnixMilli(), e.Payload, e.CausedBy, e.Headers["x-schema-version"], e.Headers["x-upcasted-from"]))
	}
	return out
}

func TestBackfill(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newBackfillDesk(t)
		d.declare(jetbus.TopicConfig{Name: "log"})
		progress := 0
		o := backfillOf("log")
		o.Progress = func(s registry.BackfillStats) { progress = s.Read }
		stats, err := registry.Backfill(t.Context(), d.bus, d.reg, o)
		d.ok(err)
		if stats.Read != 45 || stats.Written != 41 || stats.Invalid != 4 || stats.Kept != 0 || !stats.Finished || stats.Last != 45 || progress != 45 {
			t.Errorf("stats %+v, progress %d", stats, progress)
		}
		if len(stats.Problems) != 4 || stats.Problems[0].Seq != 11 || stats.Problems[0].ID != "r10" || !strings.Contains(stats.Problems[0].Err, "/mib") {
			t.Errorf("problems %+v", stats.Problems)
		}
		events := d.scan("log")
		if e := events[0]; len(events) != 41 || string(e.Payload) != `{"mib":0}` || e.Key != "k0" || e.CausedBy[0] != "r0" || e.CausedBy[1] != "boot" ||
			e.Headers["x-backfill-of"] != "readings/1" || e.Headers["x-ce-dataschema"] != "schema://readings/2" || e.Headers["x-upcasted-from"] != "1" {
			t.Errorf("%d events, the first is %+v", len(events), e)
		}
		// Finished is finished, whatever came since.
		_, err = d.bus.Publish(t.Context(), jetbus.Event{Topic: readings, Payload: []byte(`{"mib":1}`), Headers: map[string]string{"x-schema-version": "2"}})
		d.ok(err)
		again, err := registry.Backfill(t.Context(), d.bus, d.reg, o)
		if err != nil || !reflect.DeepEqual(again, stats) || len(d.scan("log")) != 41 {
			t.Errorf("again: %+v, error %v, %d events", again, err, len(d.scan("log")))
		}
	})
}

// Whenever a backfill dies, and however long it is before it is run again, its
// target and its report are those of one that was not interrupted.
func TestBackfillKilled(t *testing.T) {
	for _, config := range []jetbus.TopicConfig{{}, {Compact: true}, {Compact: true, History: 3}} {
		for _, after := range []bool{false, true} {
			for _, pause := range []time.Duration{time.Second, 10 * time.Minute} { // inside the duplicate window, and behind it
				if pause > time.Second && config.History > 0 {
					continue // as without a history
				}
				name := fmt.Sprintf("compact %v, history %d, after %v, pause %v", config.Compact, config.History, after, pause)
				bustest.Run(t, func(t *testing.T) { killAnywhere(t, name, config, after, pause) })
			}
		}
	}
}

func killAnywhere(t *testing.T, name string, config jetbus.TopicConfig, after bool, pause time.Duration) {
	d := newBackfillDesk(t)
	target := func(topic string) string {
		config.Name, config.TombstoneTTL = topic, 0
		if config.Compact {
			config.TombstoneTTL = 1000 * time.Hour
		}
		d.declare(config)
		return topic
	}
	want, err := registry.Backfill(t.Context(), d.bus, d.reg, backfillOf(target("whole")))
	d.ok(err)
	deaths, step, n := 0, 2, 1
	if config.Compact { // every event is a write
		step = 8
	}
	if after { // the ones between
		n += step / 2
	}
	for ; ; n += step {
		ctx, cancel := context.WithCancel(t.Context())
		b := &cut{Backend: d.bus, left: n, after: after, cancel: cancel}
		o := backfillOf(target(fmt.Sprint("killed", n)))
		_, err := registry.Backfill(ctx, b, d.reg, o)
		cancel()
		if !b.died {
			d.ok(err)
			break
		}
		deaths++
		if err == nil {
			t.Fatalf("%s: killed at write %d, and no error", name, n)
		}
		time.Sleep(pause)
		o.BatchSize = 4 // it need not be the same
		got, err := registry.Backfill(t.Context(), d.bus, d.reg, o)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: killed at write %d: error %v, stats %+v, want %+v", name, n, err, got, want)
		}
		if got, want := d.contents(o.To), d.contents("whole"); !reflect.DeepEqual(got, want) && (!config.Compact || !sameSet(got, want)) {
			t.Errorf("%s: killed at write %d: the target has\n%s\nwant\n%s", name, n, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if deaths < 5 {
		t.Errorf("%s: %d deaths", name, deaths)
	}
}

// sameSet compares without the order, which keys that are written at once do not have.
func sameSet(a, b []string) bool {
	count := map[string]int{}
	for _, s := range a {
		count[s]++
	}
	for _, s := range b {
		count[s]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// What others wrote to a compacted topic stays.
func TestBackfillKeepsNewerState(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newBackfillDesk(t)
		d.declare(jetbus.TopicConfig{Name: "state", Compact: true})
		for key, e := range map[string]jetbus.Event{"k1": {Payload: []byte(`"live"`)}, "k2": jetbus.Tombstone("state", "k2")} {
			e.Topic, e.Key = "state", key
			_, err := d.bus.Publish(t.Context(), e)
			d.ok(err)
		}
		o := backfillOf("state")
		o.DryRun = true
		dry, err := registry.Backfill(t.Context(), d.bus, d.reg, o)
		d.ok(err)
		o.DryRun = false
		stats, err := registry.Backfill(t.Context(), d.bus, d.reg, o)
		d.ok(err)
		if stats.Kept != 13 || stats.Invalid != 5 || stats.Kept+stats.Written+stats.Invalid != 45 || dry.Read != 45 || dry.Invalid != 5 {
			t.Errorf("stats %+v, of the dry run %+v", stats, dry)
		}
		state, err := d.bus.LatestByKey(t.Context(), "state", "k0", "k1", "k2", "k3")
		d.ok(err)
		if string(state["k1"].Payload) != `"live"` || len(state["k2"].Payload) != 0 || string(state["k0"].Payload) != `{"mib":42}` || string(state["k3"].Payload) != `{"mib":38}` {
			t.Errorf("state %+v", state)
		}
		// Another backfill of the same topic writes over the first one's.
		o.Name, o.Upcasters = "corrected", registry.Upcasters{readings: {1: registry.UpcastPayload(func(context.Context, []byte) ([]byte, error) { return []byte(`{"mib":1}`), nil })}}
		_, err = registry.Backfill(t.Context(), d.bus, d.reg, o)
		d.ok(err)
		state, err = d.bus.LatestByKey(t.Context(), "state", "k0", "k1")
		d.ok(err)
		if string(state["k1"].Payload) != `"live"` || state["k0"].Headers["x-backfill"] == "" || !strings.HasPrefix(state["k0"].Headers["x-backfill"], "corrected@") {
			t.Errorf("state %+v", state)
		}
	})
}

// A tombstone deletes in a log that has a snapshot, as it does in a compacted topic; in
// another log it is an event like any other.
func TestBackfillDeletesInASnapshot(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(
			jetbus.TopicConfig{Name: "old", Compact: true}, jetbus.TopicConfig{Name: "plain"},
			jetbus.TopicConfig{Name: "log", KeyInSubject: true}, jetbus.TopicConfig{Name: "log.snapshot", SnapshotOf: "log"},
		)
		for _, e := range []jetbus.Event{{Topic: "log", Key: "gone", Payload: []byte("1")}, {Topic: "old", Key: "stays", Payload: []byte("2")}, jetbus.Tombstone("old", "gone")} {
			_, err := d.bus.Publish(t.Context(), e)
			d.ok(err)
		}
		for to, tombstones := range map[string]int{"log": 1, "plain": 0} {
			stats, err := registry.Backfill(t.Context(), d.bus, d.reg, registry.BackfillOptions{Name: to, From: "old", To: to})
			if err != nil || stats.Written != 2 {
				t.Errorf("into %s: %+v, %v", to, stats, err)
			}
			for _, e := range d.scan(to) {
				if e.Headers[jetbus.HeaderTombstone] != "" {
					tombstones--
				}
			}
			if tombstones != 0 {
				t.Errorf("%s has %d tombstones less than it is to have", to, tombstones)
			}
		}
		time.Sleep(time.Minute) // a snapshot is behind its topic by moments
		state, err := d.bus.LatestByKey(t.Context(), "log.snapshot", "gone", "stays")
		d.ok(err)
		if len(state) != 1 || string(state["stays"].Payload) != "2" {
			t.Errorf("the snapshot has %v", state)
		}
	})
}

func TestBackfillBounds(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: readings}, jetbus.TopicConfig{Name: "log"}, jetbus.TopicConfig{Name: "slow"}, jetbus.TopicConfig{Name: "dry"})
		begin := time.Now()
		for i := range 20 {
			_, err := d.bus.Publish(t.Context(), jetbus.Event{Topic: readings, ID: fmt.Sprint(i), Payload: fmt.Appendf(nil, "%d", i)})
			d.ok(err)
			time.Sleep(time.Second)
		}
		o := registry.BackfillOptions{From: readings, To: "log", Since: begin.Add(5 * time.Second), Until: begin.Add(15 * time.Second), Limit: 4, BatchSize: 3}
		for run, want := range []int{4, 8, 10, 10} {
			stats, err := registry.Backfill(t.Context(), d.bus, d.reg, o)
			if err != nil || stats.Written != want || stats.Finished != (run >= 2) {
				t.Errorf("run %d: %+v, error %v", run, stats, err)
			}
		}
		events := d.scan("log")
		if len(events) != 10 || events[0].CausedBy[0] != "5" || events[9].CausedBy[0] != "14" {
			t.Errorf("events %+v", events)
		}
		began := time.Now()
		_, err := registry.Backfill(t.Context(), d.bus, d.reg, registry.BackfillOptions{From: readings, To: "slow", Rate: 2})
		d.ok(err)
		if took := time.Since(began); took < 9*time.Second || took > 11*time.Second || len(d.scan("slow")) != 20 {
			t.Errorf("it took %v to write %d events", took, len(d.scan("slow")))
		}
		stats, err := registry.Backfill(t.Context(), d.bus, d.reg, registry.BackfillOptions{From: readings, To: "dry", DryRun: true})
		if err != nil || stats.Written != 20 || !stats.Finished || len(d.scan("dry")) != 0 {
			t.Errorf("the dry run: %+v, error %v, %d events", stats, err, len(d.scan("dry")))
		}
	})
}

func TestBackfillRefuses(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newBackfillDesk(t)
		d.declare(jetbus.TopicConfig{Name: "log"}, jetbus.TopicConfig{Name: "other"}, jetbus.TopicConfig{Name: "keyed", KeyInSubject: true}, jetbus.TopicConfig{Name: "keyed.snapshot", SnapshotOf: "keyed"})
		limited := backfillOf("log")
		limited.Limit = 5
		_, err := registry.Backfill(t.Context(), d.bus, d.reg, limited)
		d.ok(err)
		for name, test := range map[string]struct {
			change func(*registry.BackfillOptions)
			want   error
		}{
			"no topic":              {func(o *registry.BackfillOptions) { o.From = "" }, jetbus.ErrInvalidTopic},
			"one topic":             {func(o *registry.BackfillOptions) { o.To = readings }, jetbus.ErrInvalidOption},
			"dead letters":          {func(o *registry.BackfillOptions) { o.From = "dlq.log" }, jetbus.ErrInvalidOption},
			"a topic that is not":   {func(o *registry.BackfillOptions) { o.To, o.Name = "nowhere", "n" }, jetbus.ErrNoTopic},
			"a snapshot":            {func(o *registry.BackfillOptions) { o.To, o.Name = "keyed.snapshot", "n" }, jetbus.ErrUnsupported},
			"a rate":                {func(o *registry.BackfillOptions) { o.Rate = -1 }, jetbus.ErrInvalidOption},
			"a batch":               {func(o *registry.BackfillOptions) { o.BatchSize = 501 }, jetbus.ErrInvalidOption},
			"a limit":               {func(o *registry.BackfillOptions) { o.Limit = -1 }, jetbus.ErrInvalidOption},
			"a name":                {func(o *registry.BackfillOptions) { o.Name = " n" }, jetbus.ErrInvalidOption},
			"bounds":                {func(o *registry.BackfillOptions) { o.Since, o.Until = time.Now(), time.Now().Add(-1) }, jetbus.ErrInvalidOption},
			"an upcaster":           {func(o *registry.BackfillOptions) { o.Upcasters = registry.Upcasters{readings: {1: nil}} }, jetbus.ErrInvalidOption},
			"a version that is not": {func(o *registry.BackfillOptions) { o.Name, o.Version = "n", 9 }, registry.ErrNoVersion},
			"upcasters, and no schema": {func(o *registry.BackfillOptions) {
				o.Name, o.From, o.Upcasters = "n", "other", registry.Upcasters{"other": {1: registry.Edit{}}}
			}, registry.ErrNoSchema},
			"another target":  {func(o *registry.BackfillOptions) { o.To = "other" }, registry.ErrBackfillDiffers},
			"another version": {func(o *registry.BackfillOptions) { o.Version = 1 }, registry.ErrBackfillDiffers},
			"another begin":   {func(o *registry.BackfillOptions) { o.Since = time.Now() }, registry.ErrBackfillDiffers},
		} {
			o := backfillOf("log")
			test.change(&o)
			if _, err := registry.Backfill(t.Context(), d.bus, d.reg, o); !errors.Is(err, test.want) {
				t.Errorf("%s: error %v", name, err)
			}
		}
		if n := len(d.scan("log")); n != 5 {
			t.Errorf("%d events", n)
		}
		time.Sleep(time.Second)
		d.ok(d.bus.DeleteTopic(t.Context(), "log"))
		d.declare(jetbus.TopicConfig{Name: "log"})
		if _, err := registry.Backfill(t.Context(), d.bus, d.reg, backfillOf("log")); !errors.Is(err, registry.ErrBackfillDiffers) {
			t.Errorf("a target that was made anew: error %v", err)
		}
	})
}

// An event that grows too large is invalid, and its neighbors are written; the
// target's own schema counts, too.
func TestBackfillOneByOne(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: readings}, jetbus.TopicConfig{Name: "log"})
		d.register("log", `{"type":"string","maxLength":2000000}`)
		for i, payload := range []string{`"a"`, `"` + strings.Repeat("x", 1<<20-250) + `"`, `7`, `"b"`} {
			_, err := d.bus.Publish(t.Context(), jetbus.Event{Topic: readings, ID: fmt.Sprint(i), SID: "s", Payload: []byte(payload)})
			d.ok(err)
		}
		stats, err := registry.Backfill(t.Context(), d.bus, d.reg, registry.BackfillOptions{From: readings, To: "log"})
		if err != nil || stats.Written != 2 || stats.Invalid != 2 || len(stats.Problems) != 2 {
			t.Errorf("stats %+v, error %v", stats, err)
		}
		if events := d.scan("log"); len(events) != 2 || events[1].CausedBy[0] != "3" || events[1].Headers["x-ce-dataschema"] != "schema://log/1" {
			t.Errorf("%d events", len(events))
		}
	})
}

// What begins without a schema goes on without one, and what states a version goes
// on stating whose that is.
func TestBackfillWithoutSchema(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: readings}, jetbus.TopicConfig{Name: "log"})
		for i := range 4 {
			_, err := d.bus.Publish(t.Context(), jetbus.Event{Topic: readings, Payload: fmt.Append(nil, i), Headers: map[string]string{"x-schema-version": "2"}})
			d.ok(err)
		}
		_, err := registry.Backfill(t.Context(), d.bus, d.reg, registry.BackfillOptions{From: readings, To: "log", Limit: 2})
		d.ok(err)
		d.register(readings, `{"type":"string"}`)
		stats, err := registry.Backfill(t.Context(), d.bus, d.reg, registry.BackfillOptions{From: readings, To: "log"})
		if err != nil || stats.Written != 4 || stats.Invalid != 0 {
			t.Errorf("stats %+v, error %v", stats, err)
		}
		for _, e := range d.scan("log") {
			if e.Headers["x-schema-version"] != "2" || e.Headers["x-ce-dataschema"] != "schema://readings/2" {
				t.Errorf("headers %v", e.Headers)
			}
		}
	})
}

// A source that was restored to an earlier state has other events at the positions that a backfill has read.
func TestBackfillNoticesRestoredSource(t *testing.T) {
	for _, stored := range []int{0, 5, 40} { // events after the restore
		t.Run(fmt.Sprint(stored), func(t *testing.T) {
			bustest.Run(t, func(t *testing.T) {
				t.Cleanup(func() { time.Sleep(time.Second) }) // the file store writes with a delay
				broker := bustest.StartRestorable(t)
				r := &rig{T: t, broker: broker.Broker}
				r.reg = r.open(registry.Config{})
				d := &desk{r, bustest.Open(t, broker, adapter.Config{})}
				d.declare(jetbus.TopicConfig{Name: readings})
				d.declare(jetbus.TopicConfig{Name: "to"})
				publish := func(from, n int) {
					for i := range n {
						_, err := d.bus.Publish(t.Context(), jetbus.Event{Topic: readings, ID: fmt.Sprint("r", from+i), Payload: []byte("1")})
						d.ok(err)
					}
				}
				publish(0, 20)
				backup := broker.Backup(t)
				publish(20, 25)
				o := registry.BackfillOptions{Name: "b", From: readings, To: "to", BatchSize: 10, Limit: 30}
				_, err := registry.Backfill(t.Context(), d.bus, d.reg, o)
				d.ok(err)
				_, err = registry.Backfill(t.Context(), d.bus, d.reg, registry.BackfillOptions{Name: "b", From: readings, To: "to", Limit: 1})
				d.ok(err)

				broker.RestoreStream(t, backup, "EV_READINGS")
				publish(100, stored)
				_, err = registry.Backfill(t.Context(), d.bus, d.reg, o)
				d.is(err, registry.ErrBackfillDiffers)
				d.is(err, jetbus.ErrPositionUnknown)
				time.Sleep(time.Second) // until every connection is restored: nats.go leaves goroutines otherwise
			})
		})
	}
}
