package jetbus_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
)

// refused is a case of options that break one rule: the error names the field.
type refused[T any] struct {
	field   string
	options T
}

// checkRefused wants an ErrInvalidOption that names the field.
func checkRefused[T any](t *testing.T, cases []refused[T], validate func(T) error) {
	t.Helper()
	for _, c := range cases {
		err := validate(c.options)
		if !errors.Is(err, jetbus.ErrInvalidOption) || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%+v: got %v, want an invalid %s", c.options, err, c.field)
		}
	}
}

func TestSubscribeOptionsDefaults(t *testing.T) {
	got, err := jetbus.SubscribeOptions{}.Normalize()
	want := jetbus.SubscribeOptions{
		Concurrency: 1, BatchSize: 100, MaxInFlight: 1000, MaxInFlightBytes: 64 << 20, MaxLease: 10 * time.Minute,
		MaxAttempts: 5, Backoff: jetbus.Backoff{Min: time.Second, Max: 5 * time.Minute}, ShutdownTimeout: 30 * time.Second,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for _, c := range []struct {
		name  string
		o     jetbus.SubscribeOptions
		holds func(jetbus.SubscribeOptions) bool
	}{
		{"a batch fits into the window", jetbus.SubscribeOptions{MaxInFlight: 10}, func(o jetbus.SubscribeOptions) bool { return o.BatchSize == 10 }},
		{"each topic has room for a whole request", jetbus.SubscribeOptions{Topics: manyTopics(299), BatchSize: 1}, func(o jetbus.SubscribeOptions) bool { return o.MaxInFlight == 30_000 }},
		{"the window has room for all handlers", jetbus.SubscribeOptions{Concurrency: 5000}, func(o jetbus.SubscribeOptions) bool { return o.MaxInFlight == 5000 }},
		{"a lease lasts AckTimeout", jetbus.SubscribeOptions{AckTimeout: time.Hour}, func(o jetbus.SubscribeOptions) bool { return o.MaxLease == time.Hour }},
		{"-1 stays", jetbus.SubscribeOptions{MaxLease: -1, MaxAttempts: -1}, func(o jetbus.SubscribeOptions) bool { return o.MaxLease == -1 && o.MaxAttempts == -1 }},
		{"shortest lease", jetbus.SubscribeOptions{AckTimeout: 100 * time.Millisecond, MaxLease: 100 * time.Millisecond}, func(jetbus.SubscribeOptions) bool { return true }},
	} {
		if o, err := c.o.Normalize(); err != nil || !c.holds(o) {
			t.Errorf("%s: %+v, %v", c.name, o, err)
		}
	}
}

func manyTopics(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("t%d", i))
	}
	return names
}

func TestSubscribeOptionsRefused(t *testing.T) {
	type options = jetbus.SubscribeOptions
	normalize := func(o options) error { _, err := o.Normalize(); return err }
	checkRefused(t, []refused[options]{
		{"from latest", options{From: jetbus.Start{Kind: jetbus.FromLatest, Seq: 1}}},
		{"Concurrency", options{Concurrency: -1}},
		{"Concurrency", options{Concurrency: 10_001}},
		{"BatchSize", options{BatchSize: -1}},
		{"BatchSize", options{BatchSize: 10_001}},
		{"MaxInFlight", options{MaxInFlight: -1}},
		{"MaxInFlight", options{MaxInFlight: 1_000_001}},
		{"MaxInFlightBytes", options{MaxInFlightBytes: -1}},
		{"MaxInFlightBytes", options{MaxInFlightBytes: 1<<40 + 1}},
		{"GroupMaxInFlight", options{GroupMaxInFlight: -1}},
		{"GroupMaxInFlight", options{GroupMaxInFlight: 1_000_001}},
		{"Concurrency", options{Concurrency: 11, MaxInFlight: 10}},
		{"AckTimeout", options{AckTimeout: -1}},
		{"AckTimeout", options{AckTimeout: 99 * time.Millisecond}},
		{"MaxLease", options{MaxLease: -2}},
		{"MaxLease", options{MaxLease: time.Second}},
		{"MaxAttempts", options{MaxAttempts: -2}},
		{"ShutdownTimeout", options{ShutdownTimeout: -1}},
		{"Backoff", options{Backoff: jetbus.Backoff{Min: -1}}},
		{"Filter", options{Filter: jetbus.Filter{Key: "a", KeyPrefix: "b"}}},
		{"Topics", options{Topics: []string{"a", "b", "a"}}},
	}, normalize)
	check(t, "a topic", normalize(options{Topics: []string{"A"}}), jetbus.ErrInvalidTopic)
}

// What was normalized stays as it is, and what is accepted keeps its promises.
func TestSubscribeOptionsNormalizeTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20_000)
		o, err := jetbus.SubscribeOptions{
			Concurrency: n.Draw(t, "concurrency"), BatchSize: n.Draw(t, "batch"), MaxInFlight: n.Draw(t, "inFlight"),
			AckTimeout: drawDuration(t, "ack"), MaxLease: drawDuration(t, "lease"), Backoff: drawBackoff(t),
		}.Normalize()
		if err != nil {
			return
		}
		again, err := o.Normalize()
		if diff := cmp.Diff(o, again, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Fatal(diff, err)
		}
		if o.BatchSize > o.MaxInFlight || o.Concurrency > o.MaxInFlight || o.MaxLease != -1 && o.MaxLease < o.AckTimeout {
			t.Fatalf("%+v", o)
		}
	})
}

func TestReceiveOptions(t *testing.T) {
	type options = jetbus.ReceiveOptions
	got, err := options{}.Normalize()
	if want := (options{Max: 100, MaxBytes: 64 << 20, Wait: 5 * time.Second, MaxAttempts: 5}); !reflect.DeepEqual(got, want) || err != nil {
		t.Errorf("defaults: %+v, %v", got, err)
	}
	want := options{From: jetbus.Earliest(), Max: 10_000, MaxBytes: 1, Wait: -1, AckTimeout: 100 * time.Millisecond, MaxLease: 100 * time.Millisecond, MaxAttempts: -1}
	if got, err := want.Normalize(); !reflect.DeepEqual(got, want) || err != nil {
		t.Errorf("bounds: %+v, %v", got, err)
	}
	checkRefused(t, []refused[options]{
		{"from ts", options{From: jetbus.Start{Kind: jetbus.FromTime}}},
		{"MaxLease", options{MaxLease: -1}},
		{"MaxLease", options{MaxLease: 30*time.Second - 1}},
		{"MaxLease", options{MaxLease: time.Second - 1, AckTimeout: time.Second}},
		{"Max", options{Max: -1}},
		{"Max", options{Max: 10_001}},
		{"MaxBytes", options{MaxBytes: -1}},
		{"MaxBytes", options{MaxBytes: 1<<40 + 1}},
		{"Wait", options{Wait: -2}},
		{"AckTimeout", options{AckTimeout: 1}},
		{"AckTimeout", options{AckTimeout: -1}},
		{"MaxAttempts", options{MaxAttempts: -2}},
	}, func(o options) error { _, err := o.Normalize(); return err })
}

func TestReadOptions(t *testing.T) {
	type options = jetbus.ReadOptions
	for _, o := range []options{{}, {From: jetbus.Latest(), Follow: true}, {After: map[string]uint64{"a": 0, "b.c": 7}, From: jetbus.Earliest()}} {
		check(t, o.From.String(), o.Validate(), nil)
	}
	checkRefused(t, []refused[options]{
		{"from afterId", options{From: jetbus.AfterID("")}},
		{"Filter", options{Filter: jetbus.Filter{Key: "a", KeyPrefix: "ab"}}},
	}, options.Validate)
	check(t, "After", options{After: map[string]uint64{"A": 1}}.Validate(), jetbus.ErrInvalidTopic)
}

func TestScanQuery(t *testing.T) {
	type query = jetbus.ScanQuery
	for _, q := range []query{{}, {Limit: math.MaxInt, From: jetbus.AfterSeq(0), Filter: jetbus.Filter{Key: "ab", KeyPrefix: "a"}}} {
		check(t, q.From.String(), q.Validate(), nil)
	}
	checkRefused(t, []refused[query]{
		{"from", query{From: jetbus.Start{Kind: "now"}}},
		{"Limit", query{Limit: -1}},
		{"Filter", query{Filter: jetbus.Filter{Key: "a", KeyPrefix: "b"}}},
	}, query.Validate)
}

func TestPublishOptions(t *testing.T) {
	type options = jetbus.PublishOptions
	const tenYears = 10 * 365 * 24 * time.Hour
	synctest.Test(t, func(t *testing.T) { // so that now stands still
		year := time.Now().Add(365 * 24 * time.Hour)
		for _, o := range []options{
			{},
			{ExpectLastSeq: new(uint64)},
			{TTL: time.Second},
			{TTL: tenYears},
			{DeliverAt: year},
			{DeliverAt: time.UnixMilli(0)},
			{TTL: time.Minute, DeliverAt: time.Now().Add(time.Hour)},
			{DryRun: true},
		} {
			check(t, "options", o.Validate(), nil)
		}
		checkRefused(t, []refused[options]{
			{"TTL", options{TTL: -1}},
			{"TTL", options{TTL: 1}},
			{"TTL", options{TTL: 999 * time.Millisecond}},
			{"TTL", options{TTL: 1500 * time.Millisecond}},
			{"TTL", options{TTL: -time.Second}},
			{"TTL", options{TTL: tenYears + time.Second}},
			{"DeliverAt", options{DeliverAt: year.Add(1)}},
			{"DeliverAt", options{DeliverAt: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}},
		}, options.Validate)
	})
}

func TestBatchSeekNackOptions(t *testing.T) {
	expecting := jetbus.PublishOptions{ExpectLastSeq: new(uint64)}
	for _, o := range []jetbus.BatchOptions{
		{},
		{Atomic: true, ExpectLastSeq: new(uint64)},
		{Atomic: true, ExpectLastSeq: new(uint64), Each: []jetbus.PublishOptions{{}, expecting}},
		{Chain: &jetbus.Chain{AfterID: "x", AfterSeq: 7}},
		{Chain: &jetbus.Chain{}, Each: []jetbus.PublishOptions{{}, {TTL: time.Second}}},
		{Each: []jetbus.PublishOptions{expecting, {ExpectLastSeq: new(uint64), TTL: time.Hour}}},
	} {
		check(t, fmt.Sprintf("%+v", o), o.Validate(2), nil)
	}
	checkRefused(t, []refused[jetbus.BatchOptions]{
		{"ExpectLastSeq", jetbus.BatchOptions{ExpectLastSeq: new(uint64)}},
		{"choose one", jetbus.BatchOptions{Atomic: true, Chain: &jetbus.Chain{}}},
		{"AfterID", jetbus.BatchOptions{Chain: &jetbus.Chain{AfterID: "a\x00"}}},
		{"1 options for 2 events", jetbus.BatchOptions{Each: []jetbus.PublishOptions{{}}}},
		{"event 1: invalid option: TTL", jetbus.BatchOptions{Each: []jetbus.PublishOptions{{}, {TTL: 1}}}},
		{"event 0: invalid option: ExpectLastSeq", jetbus.BatchOptions{Chain: &jetbus.Chain{}, Each: []jetbus.PublishOptions{expecting, {}}}},
		{"choose one", jetbus.BatchOptions{Atomic: true, ExpectLastSeq: new(uint64), Each: []jetbus.PublishOptions{expecting, {}}}},
	}, func(o jetbus.BatchOptions) error { return o.Validate(2) })
	check(t, "a later event in a batch", jetbus.BatchOptions{Each: []jetbus.PublishOptions{{DeliverAt: time.Now()}}}.Validate(1), jetbus.ErrUnsupported)
	check(t, "a dry run in a batch", jetbus.BatchOptions{Each: []jetbus.PublishOptions{{DryRun: true}}}.Validate(1), jetbus.ErrUnsupported)

	check(t, "nack", jetbus.NackOptions{AtOnce: true}.Validate(), nil)
	checkRefused(t, []refused[jetbus.NackOptions]{
		{"Delay", jetbus.NackOptions{Delay: -1}}, {"AtOnce", jetbus.NackOptions{Delay: time.Second, AtOnce: true}},
	}, jetbus.NackOptions.Validate)

	check(t, "seek", jetbus.SeekOptions{Wait: 1, Force: true}.Validate(jetbus.Cursor{LastSeq: 7}), nil)
	check(t, "seek to latest", jetbus.SeekOptions{ToLatest: true}.Validate(jetbus.Cursor{Topic: "a"}), nil)
	for _, c := range []jetbus.Cursor{{LastSeq: 1}, {LastID: "i"}, {LastTime: time.UnixMilli(0)}} {
		checkRefused(t, []refused[jetbus.SeekOptions]{{"ToLatest", jetbus.SeekOptions{ToLatest: true}}}, func(o jetbus.SeekOptions) error { return o.Validate(c) })
	}
	checkRefused(t, []refused[jetbus.SeekOptions]{{"Wait", jetbus.SeekOptions{Wait: -1}}}, func(o jetbus.SeekOptions) error { return o.Validate(jetbus.Cursor{}) })
}

func TestTopicConfigDefaults(t *testing.T) {
	got, err := jetbus.TopicConfig{Name: "a"}.Normalize()
	want := jetbus.TopicConfig{
		Name: "a", Retention: 7 * 24 * time.Hour, MaxBytes: 10 << 30, MaxEvents: -1, Discard: jetbus.DiscardOld,
		Storage: jetbus.FileStorage, Replicas: 1, DuplicateWindow: 2 * time.Minute,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if again, err := got.Normalize(); again != got || err != nil {
		t.Errorf("normalized twice: %+v, %v", again, err)
	}
	for retention, window := range map[time.Duration]time.Duration{
		-1: 2 * time.Minute, time.Second: time.Second, 100 * time.Millisecond: 100 * time.Millisecond, time.Hour: 2 * time.Minute,
	} {
		c, err := jetbus.TopicConfig{Name: "a", Retention: retention}.Normalize()
		if err != nil || c.Retention != retention || c.DuplicateWindow != window {
			t.Errorf("retention %v: %+v, %v", retention, c, err)
		}
	}
}

func TestTopicConfigAccepted(t *testing.T) {
	for _, c := range []jetbus.TopicConfig{
		{Retention: -1, MaxBytes: -1, MaxEvents: -1, DuplicateWindow: 1000 * time.Hour},
		{Retention: time.Hour, DuplicateWindow: time.Hour, MaxBytes: 1, MaxEvents: 1, Discard: jetbus.DiscardNew},
		{Storage: jetbus.MemoryStorage, Replicas: 5, Delays: true, KeyInSubject: true},
		{Stream: "EV_A-b"},
		{Stream: strings.Repeat("S", 255)},
		{Description: strings.Repeat("d", 4<<10)},
		{Stream: "S", Subject: "orders"},
		{Stream: "S", Subject: "orders.*.created"},
		{Stream: "S", Subject: "orders.>"},
		{Stream: "S", Subject: ">"},
		{Stream: "S", Subject: "*"},
		{Stream: "S", Subject: "$KV.b.\u00fc"},
	} {
		c.Name = "a"
		if _, err := c.Normalize(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestTopicConfigRefused(t *testing.T) {
	type config = jetbus.TopicConfig
	normalize := func(c config) error {
		c.Name = "a.b"
		_, err := c.Normalize()
		return err
	}
	cases := []refused[config]{
		{"Retention", config{Retention: -2}},
		{"Retention", config{Retention: 99 * time.Millisecond}},
		{"MaxBytes", config{MaxBytes: -2}},
		{"MaxEvents", config{MaxEvents: -2}},
		{"Discard", config{Discard: "none"}},
		{"Delays", config{Delays: true, Discard: jetbus.DiscardNew}},
		{"MaxEvents", config{Delays: true, MaxEvents: 100}},
		{"MaxBytes", config{Delays: true, MaxBytes: 1 << 30}},
		{"Storage", config{Storage: "tape"}},
		{"Replicas", config{Replicas: -1}},
		{"Replicas", config{Replicas: 6}},
		{"DuplicateWindow", config{DuplicateWindow: -1}},
		{"DuplicateWindow", config{DuplicateWindow: 99 * time.Millisecond}},
		{"DuplicateWindow", config{Retention: time.Hour, DuplicateWindow: time.Hour + 1}},
		{"Description", config{Description: strings.Repeat("d", 4<<10+1)}},
		{"Subject", config{Subject: "orders"}},
		{"Stream", config{Stream: strings.Repeat("S", 256)}},
	}
	for _, stream := range []string{"a.b", "a b", "a*", "a>", "a/b", `a\b`, "a\t", "a\x00", "\xff"} {
		cases = append(cases, refused[config]{"Stream", config{Stream: stream}})
	}
	for _, subject := range []string{
		".", ".a", "a.", "a..b", "a b", "a\tb", "a\nb", "a\xff", ">.a", "a.>.b", "a.b*", "a.*b", "a.>>", "a>", strings.Repeat("s", 1025),
	} {
		cases = append(cases, refused[config]{"Subject", config{Stream: "S", Subject: subject}})
	}
	checkRefused(t, cases, normalize)
	_, err := config{Name: "A"}.Normalize()
	check(t, "name", err, jetbus.ErrInvalidTopic)
}

func TestStartValidate(t *testing.T) {
	at := time.UnixMilli(1)
	for _, s := range []jetbus.Start{{}, jetbus.Latest(), jetbus.Earliest(), jetbus.AtTime(at), jetbus.AfterID("i"), jetbus.AfterSeq(0), jetbus.AfterSeq(7)} {
		check(t, s.String(), s.Validate(), nil)
	}
	for _, s := range []jetbus.Start{
		{Kind: "now"},
		{Seq: 1},
		{ID: "i"},
		{Time: at},
		{Kind: jetbus.FromLatest, Time: at},
		{Kind: jetbus.FromEarliest, ID: "i"},
		{Kind: jetbus.FromTime},
		{Kind: jetbus.FromTime, Time: at, ID: "i"},
		{Kind: jetbus.FromTime, Time: at, Seq: 1},
		jetbus.AtTime(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)),
		{Kind: jetbus.FromAfterID},
		{Kind: jetbus.FromAfterID, ID: "i", Seq: 1},
		{Kind: jetbus.FromAfterID, ID: "i", Time: at},
		{Kind: jetbus.FromAfterSeq, Seq: 1, ID: "i"},
		{Kind: jetbus.FromAfterSeq, Time: at},
	} {
		check(t, s.String(), s.Validate(), jetbus.ErrInvalidOption)
	}
}

func TestStartString(t *testing.T) {
	for want, s := range map[string]jetbus.Start{
		"latest": {}, "earliest": jetbus.Earliest(), "ts 1970-01-01T00:00:01.5Z": jetbus.AtTime(time.UnixMilli(1500)),
		"afterId i": jetbus.AfterID("i"), "afterSeq 7": jetbus.AfterSeq(7),
	} {
		if got := s.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if jetbus.Latest().String() != "latest" {
		t.Error("Latest is not latest")
	}
}

func TestBackoff(t *testing.T) {
	b, err := jetbus.Backoff{NoJitter: true}.Normalize()
	if want := (jetbus.Backoff{Min: time.Second, Max: 5 * time.Minute, NoJitter: true}); b != want || err != nil {
		t.Fatalf("defaults: %+v, %v", b, err)
	}
	for attempt, want := range map[int]time.Duration{
		-1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 9: 256 * time.Second, 10: 5 * time.Minute,
		63: 5 * time.Minute, 64: 5 * time.Minute, 65: 5 * time.Minute, 1000: 5 * time.Minute, math.MaxInt: 5 * time.Minute,
	} {
		if got := b.Delay(attempt); got != want {
			t.Errorf("attempt %d: %v, want %v", attempt, got, want)
		}
	}
	for in, want := range map[jetbus.Backoff]jetbus.Backoff{
		{Min: time.Hour}:   {Min: time.Hour, Max: time.Hour},
		{Max: time.Minute}: {Min: time.Second, Max: time.Minute},
		{Max: 1}:           {Min: 1, Max: 1},
	} {
		if got, err := in.Normalize(); got != want || err != nil {
			t.Errorf("%+v: %+v, %v", in, got, err)
		}
	}
	checkRefused(t, []refused[jetbus.Backoff]{
		{"Backoff", jetbus.Backoff{Min: -1}}, {"Backoff", jetbus.Backoff{Max: -1}}, {"Backoff", jetbus.Backoff{Min: 2, Max: 1}},
	}, func(b jetbus.Backoff) error { _, err := b.Normalize(); return err })
	if got := (jetbus.Backoff{}).Delay(1); got != 0 {
		t.Errorf("not normalized: %v", got)
	}
}

// With jitter every wait is above 0 and within the bound, up to the longest
// durations there are.
func TestBackoffJitter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := jetbus.Backoff{Min: time.Duration(rapid.Int64Min(1).Draw(t, "min"))}
		b.Max = time.Duration(rapid.Int64Min(int64(b.Min)).Draw(t, "max"))
		attempt := rapid.IntRange(1, 2000).Draw(t, "attempt")
		whole := jetbus.Backoff{Min: b.Min, Max: b.Max, NoJitter: true}
		bound, got := whole.Delay(attempt), b.Delay(attempt)
		if got <= 0 || got > bound || bound < b.Min || bound > b.Max || bound > whole.Delay(attempt+1) {
			t.Fatalf("%+v, attempt %d: %v within %v", b, attempt, got, bound)
		}
	})
}

func TestFilter(t *testing.T) {
	e := jetbus.Event{Key: "host/1", Headers: map[string]string{"x-a": "1", "x-b": ""}}
	for _, f := range []jetbus.Filter{
		{}, {Key: "host/1"}, {KeyPrefix: "host/"}, {Key: "host/1", KeyPrefix: "host"}, {Headers: map[string]string{"x-a": "1"}}, {Headers: map[string]string{"x-b": ""}},
	} {
		if !f.Match(&e) {
			t.Errorf("%+v does not select the event", f)
		}
	}
	for _, f := range []jetbus.Filter{
		{Key: "host"}, {KeyPrefix: "host/1/"}, {Headers: map[string]string{"x-a": "2"}}, {Headers: map[string]string{"x-c": ""}}, {Key: "host/1", Headers: map[string]string{"x-a": ""}},
	} {
		if f.Match(&e) || f.IsZero() {
			t.Errorf("%+v selects the event, or is zero", f)
		}
	}
	if !(&jetbus.Filter{Headers: map[string]string{}}).IsZero() {
		t.Error("a filter without conditions is not zero")
	}
}
