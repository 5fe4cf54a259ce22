package jetbus_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
)

// drawTime gives the zero time or one in milliseconds, before 1970 too.
func drawTime(t *rapid.T, name string) time.Time {
	if rapid.Bool().Draw(t, name+" zero") {
		return time.Time{}
	}
	return time.UnixMilli(rapid.Int64Range(-1<<40, 1<<45).Draw(t, name)).UTC()
}

// drawTimes gives times to some names.
func drawTimes(t *rapid.T, name string) map[string]time.Time {
	return rapid.MapOf(rapid.String(), rapid.Custom(func(t *rapid.T) time.Time { return drawTime(t, "of one") })).Draw(t, name)
}

// drawDuration gives 0, -1 or whole milliseconds.
func drawDuration(t *rapid.T, name string) time.Duration {
	ms := rapid.Int64Range(-1, math.MaxInt64/int64(time.Millisecond)).Draw(t, name)
	return max(time.Duration(ms)*time.Millisecond, -1)
}

func drawStart(t *rapid.T) jetbus.Start {
	return rapid.OneOf(
		rapid.Just(jetbus.Start{}), rapid.Just(jetbus.Latest()), rapid.Just(jetbus.Earliest()),
		rapid.Map(rapid.Int64Range(-1<<40, 1<<45), func(ms int64) jetbus.Start { return jetbus.AtTime(time.UnixMilli(ms).UTC()) }),
		rapid.Map(rapid.StringN(1, 50, 200), jetbus.AfterID), rapid.Map(rapid.Uint64(), jetbus.AfterSeq),
	).Draw(t, "start")
}

func drawFilter(t *rapid.T) jetbus.Filter {
	return jetbus.Filter{
		Key: rapid.String().Draw(t, "key"), KeyPrefix: rapid.String().Draw(t, "prefix"),
		Headers: rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "headers"),
	}
}

func drawBackoff(t *rapid.T) jetbus.Backoff {
	return jetbus.Backoff{Min: drawDuration(t, "min"), Max: drawDuration(t, "max"), NoJitter: rapid.Bool().Draw(t, "noJitter")}
}

func drawSubscribe(t *rapid.T) jetbus.SubscribeOptions {
	n := rapid.IntMin(-1)
	return jetbus.SubscribeOptions{
		From: drawStart(t), Topics: rapid.SliceOf(rapid.String()).Draw(t, "topics"), Concurrency: n.Draw(t, "concurrency"), BatchSize: n.Draw(t, "batch"),
		MaxInFlight: n.Draw(t, "inFlight"), MaxInFlightBytes: rapid.Int64().Draw(t, "inFlightBytes"), GroupMaxInFlight: n.Draw(t, "groupInFlight"), AckTimeout: drawDuration(t, "ack"), MaxLease: drawDuration(t, "lease"),
		MaxAttempts: n.Draw(t, "attempts"), Backoff: drawBackoff(t), ShutdownTimeout: drawDuration(t, "shutdown"), Filter: drawFilter(t), ManualAck: rapid.Bool().Draw(t, "manual"),
	}
}

func drawTopicConfig(t *rapid.T) jetbus.TopicConfig {
	return jetbus.TopicConfig{
		Name: rapid.String().Draw(t, "name"), Description: rapid.String().Draw(t, "description"), Retention: drawDuration(t, "retention"),
		MaxBytes: rapid.Int64().Draw(t, "maxBytes"), MaxEvents: rapid.Int64().Draw(t, "maxEvents"),
		Discard: rapid.SampledFrom([]jetbus.Discard{"", jetbus.DiscardOld, jetbus.DiscardNew}).Draw(t, "discard"),
		Storage: rapid.SampledFrom([]jetbus.Storage{"", jetbus.FileStorage, jetbus.MemoryStorage}).Draw(t, "storage"), Replicas: rapid.Int().Draw(t, "replicas"),
		DuplicateWindow: drawDuration(t, "window"), KeyInSubject: rapid.Bool().Draw(t, "keyInSubject"), Delays: rapid.Bool().Draw(t, "delays"),
		Stream: rapid.String().Draw(t, "stream"), Subject: rapid.String().Draw(t, "subject"),
	}
}

// roundTrip proves that every value draw gives survives its JSON form.
func roundTrip[T any](t *testing.T, name string, draw func(*rapid.T) T) {
	t.Run(name, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			want := draw(t)
			text, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			if rest := text[1:]; string(rest) == "}" {
				text = []byte(`{"unknown":{"a":1}}`)
			} else {
				text = append([]byte(`{"unknown":{"a":1},`), rest...)
			}
			var got T
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s: %s", text, diff)
			}
		})
	})
}

func TestOptionsRoundTrip(t *testing.T) {
	expect := rapid.Ptr(rapid.Uint64(), true)
	roundTrip(t, "Start", drawStart)
	roundTrip(t, "Filter", drawFilter)
	roundTrip(t, "Backoff", drawBackoff)
	roundTrip(t, "SubscribeOptions", drawSubscribe)
	roundTrip(t, "TopicConfig", drawTopicConfig)
	roundTrip(t, "PublishOptions", func(t *rapid.T) jetbus.PublishOptions {
		return jetbus.PublishOptions{ExpectLastSeq: expect.Draw(t, "expect"), TTL: drawDuration(t, "ttl"), DeliverAt: drawTime(t, "at"), DryRun: rapid.Bool().Draw(t, "dry")}
	})
	roundTrip(t, "BatchOptions", func(t *rapid.T) jetbus.BatchOptions {
		return jetbus.BatchOptions{Atomic: rapid.Bool().Draw(t, "atomic"), ExpectLastSeq: expect.Draw(t, "expect")}
	})
	roundTrip(t, "SeekOptions", func(t *rapid.T) jetbus.SeekOptions {
		return jetbus.SeekOptions{Wait: drawDuration(t, "wait"), Force: rapid.Bool().Draw(t, "force"), ToLatest: rapid.Bool().Draw(t, "latest")}
	})
	roundTrip(t, "NackOptions", func(t *rapid.T) jetbus.NackOptions {
		return jetbus.NackOptions{Delay: drawDuration(t, "delay"), AtOnce: rapid.Bool().Draw(t, "at once"), Reason: rapid.String().Draw(t, "reason")}
	})
	roundTrip(t, "ReceiveOptions", func(t *rapid.T) jetbus.ReceiveOptions {
		return jetbus.ReceiveOptions{
			From: drawStart(t), Max: rapid.Int().Draw(t, "max"), MaxBytes: rapid.Int64().Draw(t, "maxBytes"), Wait: drawDuration(t, "wait"), AckTimeout: drawDuration(t, "ack"), MaxLease: drawDuration(t, "lease"),
			MaxAttempts: rapid.Int().Draw(t, "attempts"),
		}
	})
	roundTrip(t, "ReadOptions", func(t *rapid.T) jetbus.ReadOptions {
		return jetbus.ReadOptions{
			From: drawStart(t), After: rapid.MapOf(rapid.String(), rapid.Uint64()).Draw(t, "after"), Created: drawTimes(t, "created"), Follow: rapid.Bool().Draw(t, "follow"), Filter: drawFilter(t),
		}
	})
	roundTrip(t, "ScanQuery", func(t *rapid.T) jetbus.ScanQuery {
		return jetbus.ScanQuery{From: drawStart(t), Limit: rapid.Int().Draw(t, "limit"), Filter: drawFilter(t)}
	})
	roundTrip(t, "Cursor", func(t *rapid.T) jetbus.Cursor {
		return jetbus.Cursor{Topic: rapid.String().Draw(t, "topic"), LastSeq: rapid.Uint64().Draw(t, "seq"), LastID: rapid.String().Draw(t, "id"), LastTime: drawTime(t, "time")}
	})
	roundTrip(t, "TopicInfo", func(t *rapid.T) jetbus.TopicInfo {
		return jetbus.TopicInfo{
			Config: drawTopicConfig(t), Stream: rapid.String().Draw(t, "stream"), Created: drawTime(t, "created"), Events: rapid.Uint64().Draw(t, "events"),
			Bytes: rapid.Uint64().Draw(t, "bytes"), FirstSeq: rapid.Uint64().Draw(t, "first"), LastSeq: rapid.Uint64().Draw(t, "last"),
			LastTime: drawTime(t, "lastTime"), Groups: rapid.Int().Draw(t, "groups"),
		}
	})
	roundTrip(t, "GroupInfo", func(t *rapid.T) jetbus.GroupInfo {
		return jetbus.GroupInfo{
			Topic: rapid.String().Draw(t, "topic"), Group: rapid.String().Draw(t, "group"), Created: drawTime(t, "created"), AckTimeout: drawDuration(t, "ack"),
			Pending: rapid.Uint64().Draw(t, "pending"), Held: rapid.Int().Draw(t, "held"), Retrying: rapid.Int().Draw(t, "retrying"), AckedSeq: rapid.Uint64().Draw(t, "acked"),
			Waiting: rapid.Int().Draw(t, "waiting"), Paused: rapid.Bool().Draw(t, "paused"), LastAck: drawTime(t, "lastAck"),
			MaxInFlight: rapid.Int().Draw(t, "most"), Inactive: drawDuration(t, "inactive"),
		}
	})
}

// The names are promised to clients in other languages.
func TestOptionsJSONNames(t *testing.T) {
	seven, at := uint64(7), time.UnixMilli(1500)
	start := jetbus.AtTime(at)
	config := jetbus.TopicConfig{
		Name: "a", Description: "d", Retention: -1, MaxBytes: -1, MaxEvents: 5, Discard: jetbus.DiscardNew, Storage: jetbus.MemoryStorage,
		Replicas: 3, DuplicateWindow: time.Minute, KeyInSubject: true, Delays: true, Stream: "S", Subject: "s.>",
	}
	const configText = `{"name":"a","description":"d","maxBytes":-1,"maxEvents":5,"discard":"new","storage":"memory","replicas":3,` +
		`"keyInSubject":true,"delays":true,"stream":"S","subject":"s.\u003e","retentionMs":-1,"duplicateWindowMs":60000}`
	for _, c := range []struct {
		value any
		want  string
	}{
		{jetbus.PublishOptions{}, `{}`},
		{jetbus.PublishOptions{ExpectLastSeq: new(uint64), TTL: time.Second, DeliverAt: at}, `{"expectLastSeq":0,"ttlMs":1000,"deliverAt":1500}`},
		{jetbus.PublishOptions{TTL: time.Second, DryRun: true}, `{"dryRun":true,"ttlMs":1000}`},
		{jetbus.BatchOptions{Atomic: true, ExpectLastSeq: &seven}, `{"atomic":true,"expectLastSeq":7}`},
		{jetbus.BatchOptions{Chain: &jetbus.Chain{AfterID: "i", AfterSeq: 7}}, `{"chain":{"afterId":"i","afterSeq":7}}`},
		{jetbus.Cursor{}, `{"topic":""}`},
		{jetbus.Cursor{Topic: "a", LastSeq: 7, LastID: "i", LastTime: at}, `{"topic":"a","lastSeq":7,"lastId":"i","lastTs":1500}`},
		{jetbus.Cursor{Topic: "a", LastTime: time.UnixMilli(0)}, `{"topic":"a","lastTs":0}`},
		{jetbus.SeekOptions{Wait: time.Second, Force: true, ToLatest: true}, `{"force":true,"toLatest":true,"waitMs":1000}`},
		{jetbus.NackOptions{Delay: time.Second, Reason: "r"}, `{"reason":"r","delayMs":1000}`},
		{jetbus.NackOptions{AtOnce: true}, `{"atOnce":true}`},
		{jetbus.Start{}, `{}`},
		{jetbus.AfterSeq(0), `{"from":"afterSeq","afterSeq":0}`},
		{jetbus.AfterID("i"), `{"from":"afterId","afterId":"i"}`},
		{jetbus.ReceiveOptions{}, `{}`},
		{jetbus.ReceiveOptions{From: start, Max: 1, MaxBytes: 2, Wait: -1, AckTimeout: time.Second, MaxLease: time.Minute, MaxAttempts: -1}, `{"from":"ts","ts":1500,"max":1,"maxBytes":2,"maxAttempts":-1,"waitMs":-1,"ackTimeoutMs":1000,"maxLeaseMs":60000}`},
		{jetbus.ReadOptions{}, `{}`},
		{
			jetbus.ReadOptions{From: start, After: map[string]uint64{"a": 7}, Created: map[string]time.Time{"a": at}, Follow: true, Filter: jetbus.Filter{Key: "k"}},
			`{"from":"ts","ts":1500,"after":{"a":7},"follow":true,"filter":{"key":"k"},"created":{"a":1500}}`,
		},
		{jetbus.ScanQuery{}, `{}`},
		{jetbus.ScanQuery{From: jetbus.AfterSeq(7), Limit: 2, Filter: jetbus.Filter{KeyPrefix: "k", Headers: map[string]string{"x-a": "b"}}}, `{"from":"afterSeq","afterSeq":7,"limit":2,"filter":{"keyPrefix":"k","headers":{"x-a":"b"}}}`},
		{jetbus.SubscribeOptions{FilterFunc: func(*jetbus.Event) bool { return true }}, `{}`},
		{
			jetbus.SubscribeOptions{
				From: jetbus.Earliest(), Topics: []string{"b"}, Concurrency: 1, BatchSize: 2, MaxInFlight: 3, MaxInFlightBytes: 5, GroupMaxInFlight: 4, AckTimeout: time.Second, MaxLease: -1,
				MaxAttempts: -1, Backoff: jetbus.Backoff{Min: time.Second, Max: time.Minute, NoJitter: true}, ShutdownTimeout: time.Second, Filter: jetbus.Filter{Key: "k"}, ManualAck: true,
			},
			`{"from":"earliest","topics":["b"],"concurrency":1,"batchSize":2,"maxInFlight":3,"maxInFlightBytes":5,"groupMaxInFlight":4,"maxAttempts":-1,"backoff":{"minMs":1000,"maxMs":60000,"noJitter":true},` +
				`"filter":{"key":"k"},"manualAck":true,"ackTimeoutMs":1000,"maxLeaseMs":-1,"shutdownTimeoutMs":1000}`,
		},
		{config, configText},
		{
			jetbus.TopicInfo{Config: config, Stream: "S", Created: at, Events: 1, Bytes: 2, FirstSeq: 3, LastSeq: 4, LastTime: at, Groups: 5},
			`{"config":` + configText + `,"stream":"S","events":1,"bytes":2,"firstSeq":3,"lastSeq":4,"groups":5,"created":1500,"lastTs":1500}`,
		},
		{
			jetbus.GroupInfo{Topic: "a", Group: "g", Created: at, AckTimeout: time.Second, Pending: 1, Held: 2, Retrying: 3, AckedSeq: 4, Waiting: 5, LastAck: at},
			`{"topic":"a","group":"g","pending":1,"held":2,"retrying":3,"ackedSeq":4,"waiting":5,"paused":false,"created":1500,"ackTimeoutMs":1000,"lastAck":1500}`,
		},
		{jetbus.Receipt{Event: jetbus.Event{ID: "i", Topic: "a", Seq: 1}, Duplicate: true}, `{"event":{"id":"i","topic":"a","partition":0,"seq":1},"duplicate":true}`},
	} {
		if got, err := json.Marshal(c.value); err != nil || string(got) != c.want {
			t.Errorf("%T:\ngot  %s, %v\nwant %s", c.value, got, err, c.want)
		}
	}
}

// A duration never becomes 0, which is the default, or -1, which is "none".
func TestDurationsInJSON(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1: `{"waitMs":1}`, 1_999_999: `{"waitMs":1}`, time.Minute: `{"waitMs":60000}`, -1: `{"waitMs":-1}`, 0: `{}`,
	} {
		if got, err := json.Marshal(jetbus.ReceiveOptions{Wait: d}); err != nil || string(got) != want {
			t.Errorf("%v: %s, %v", d, got, err)
		}
	}
	for _, d := range []time.Duration{-2, -time.Millisecond, -time.Hour} {
		got, err := json.Marshal(jetbus.ReceiveOptions{Wait: d})
		if !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("%v: %s, %v", d, got, err)
		}
	}
	for _, text := range []string{`{"waitMs":9223372036855}`, `{"waitMs":-9223372036855}`} {
		var o jetbus.ReceiveOptions
		if err := json.Unmarshal([]byte(text), &o); !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("%s: %+v, %v", text, o, err)
		}
	}
	for _, text := range []string{`{"waitMs":"5s"}`, `{"waitMs":1.5}`, `{"waitMs":9223372036854775808}`} {
		var o jetbus.ReceiveOptions
		if err := json.Unmarshal([]byte(text), &o); err == nil {
			t.Errorf("%s was read as %+v", text, o)
		}
	}
}

func TestOptionsJSONRefused(t *testing.T) {
	for _, into := range []any{
		new(jetbus.PublishOptions), new(jetbus.Cursor), new(jetbus.SeekOptions), new(jetbus.NackOptions), new(jetbus.Start), new(jetbus.Backoff), new(jetbus.ReceiveOptions),
		new(jetbus.ReadOptions), new(jetbus.ScanQuery), new(jetbus.SubscribeOptions), new(jetbus.TopicConfig), new(jetbus.TopicInfo), new(jetbus.GroupInfo),
	} {
		if err := json.Unmarshal([]byte(`[]`), into); err == nil || !strings.HasPrefix(err.Error(), "unmarshal ") {
			t.Errorf("%T: %v", into, err)
		}
	}
	for _, into := range []any{new(jetbus.Start), new(jetbus.ReceiveOptions), new(jetbus.ReadOptions), new(jetbus.ScanQuery), new(jetbus.SubscribeOptions)} {
		if err := json.Unmarshal([]byte(`{"from":"afterSeq"}`), into); !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("%T without a sequence: %v", into, err)
		}
	}
}
