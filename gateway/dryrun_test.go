package gateway_test

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
	"github.com/seed-63e9a637/jetbus/registry"
)

func TestDryRun(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true, Delays: true})
		const path = "/v1/topics/state?dry_run=1"
		later := fmt.Sprintf("&deliverAt=%d", time.Now().Add(time.Hour).UnixMilli())
		got := r.do("POST", path, `1`, "X-Evt-Id", "a", "X-Evt-Key", "k").is(201)
		if got["dry_run"] != true || got["id"] != "a" || got["seq"] != nil || got["duplicate"] != nil {
			r.Errorf("%v", got)
		}
		if got := r.do("POST", path+later, `1`, "X-Evt-Key", "k").is(201); got["scheduled"] != true || got["dry_run"] != true {
			r.Errorf("%v", got)
		}
		if got := r.do("POST", path, `1`, "Prefer", "return=minimal"); got.status != 204 || got.text != "" {
			r.Errorf("%+v", got)
		}
		r.do("POST", path+"&expectLastSeq=7", `1`, "X-Evt-Key", "k").refused(gateway.CodeSeqConflict)
		r.do("POST", path+"&expectLastSeq=0", `1`, "X-Evt-Key", "k").is(201)
		r.do("POST", ordersPath+"?dry_run=1&expectLastSeq=0", `1`).refused(gateway.CodeUnsupported)
		r.do("POST", ordersPath+"?dry_run=1"+later, `1`).refused(gateway.CodeUnsupported)
		if info, err := r.bus.TopicInfo(r.Context(), "state"); err != nil || info.LastSeq != 0 {
			r.Errorf("dry runs stored %d events, %v", info.LastSeq, err)
		}
		r.do("POST", "/v1/topics/state", `1`, "X-Evt-Id", "a", "X-Evt-Key", "k").is(201)
		if got := r.do("POST", path, `1`, "X-Evt-Id", "a", "X-Evt-Key", "k").is(201); got["duplicate"] != true || got["seq"] != 1.0 || got["dry_run"] != true {
			r.Errorf("%v", got)
		}
	})
}

func TestDryRunOfBatch(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.do("POST", ordersPath, `1`, "X-Evt-Id", "a").is(201)
		var got struct{ Results []map[string]any }
		headers := make([]string, 20)
		for i := range headers {
			headers[i] = fmt.Sprintf(`"x-a%d":"%s"`, i, strings.Repeat("a", 4<<10))
		}
		large := `{"id":"c","payload":1,"headers":{` + strings.Join(headers, ",") + `}}`
		res := r.do("POST", ordersPath+"?dry_run=1", `{"id":"a","payload":1}`+"\n"+`{"id":"b","payload":1}`+"\nx\n"+large, "Content-Type", "application/x-ndjson")
		res.is(207)
		res.into(&got)
		for i, want := range []string{"<nil> true 1", "<nil> <nil> <nil>", "bad_json <nil> <nil>", "too_large <nil> <nil>"} {
			if is := fmt.Sprintf("%v %v %v", got.Results[i]["code"], got.Results[i]["duplicate"], got.Results[i]["seq"]); is != want {
				r.Errorf("event %d: %v, want %s", i, got.Results[i], want)
			}
		}
		res = r.do("POST", "/v1/topics/none?dry_run=1", `{"payload":1}`, "Content-Type", "application/x-ndjson")
		res.is(207)
		if res.into(&got); got.Results[0]["code"] != string(gateway.CodeUnknownTopic) {
			r.Errorf("%s", res.text)
		}
		if e := r.last(); e.Seq != 1 {
			r.Errorf("a dry run stored %+v", e)
		}
	})
}

// A dry run of an adopted topic would deliver a message to the subscribers of its subject.
func TestDryRunOfAdoptedTopic(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		nc := adaptertest.Must(r.broker.Connect())(r.T)
		r.Cleanup(nc.Close)
		js := adaptertest.Must(jetstream.New(nc))(r.T)
		adaptertest.Must(js.CreateStream(r.Context(), jetstream.StreamConfig{Name: "IN", Subjects: []string{"in"}}))(r.T)
		r.ensure(jetbus.TopicConfig{Name: "adopted", Stream: "IN", Subject: "in"})
		r.do("POST", "/v1/topics/adopted?dry_run=1", `1`).refused(gateway.CodeUnsupported)
		r.do("POST", "/v1/topics/adopted", `1`).is(201)
	})
}

// A request that means a dry run and is not understood is refused: the event would be stored.
func TestDryRunIsNotMisunderstood(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		ndjson := []string{"Content-Type", "application/x-ndjson"}
		for query, want := range map[string]gateway.Code{
			"dryRun=1": gateway.CodeBadRequest, "dryrun=1": gateway.CodeBadRequest, "dry-run=1": gateway.CodeBadRequest, "DRY_RUN=1": gateway.CodeBadRequest,
			"ttlMs=60000;dry_run=1": gateway.CodeBadRequest, "dry_run=1%zz": gateway.CodeBadRequest, "dry_run=0&dry_run=1": gateway.CodeBadRequest,
			"dry_run=yes": gateway.CodeBadRequest, "dry_run": gateway.CodeBadRequest,
		} {
			r.do("POST", ordersPath+"?"+query, `1`).refused(want)
			r.do("POST", ordersPath+"?"+query, `{"payload":1}`, ndjson...).refused(want)
			r.do("POST", "/publish/orders?"+query, `1`).refused(want)
		}
		r.do("POST", "/publish/orders?dry_run=1", `1`).refused(gateway.CodeUnsupported)
		c := r.dial()
		c.next(frame.Hello)
		for _, opts := range []string{`{"dryRun":true}`, `{"dry_run":true}`} {
			if m := c.ask(`{"op":"PUBLISH","topic":"orders","payload":1,"opts":`+opts+`}`, frame.Err); m.Code != string(gateway.CodeUnsupported) {
				r.Errorf("PUBLISH with %s: %+v", opts, m)
			}
			event := `{"topic":"orders","payload":1,"opts":` + opts + `}`
			if m := c.ask(`{"op":"PUBLISH_BATCH","events":[`+event+`]}`, frame.OK); len(m.Results) != 1 || m.Results[0].Code != string(gateway.CodeUnsupported) {
				r.Errorf("PUBLISH_BATCH with %s: %+v", opts, m)
			}
			if m := c.ask(`{"op":"PUBLISH_BATCH","atomic":true,"events":[`+event+`]}`, frame.Err); m.Code != string(gateway.CodeUnsupported) {
				r.Errorf("atomic PUBLISH_BATCH with %s: %+v", opts, m)
			}
		}
		if e := r.last(); e.Seq != 0 {
			r.Errorf("%+v is stored", e)
		}
		c.ask(`{"op":"PUBLISH","topic":"orders","payload":1,"opts":{"dryRun":false}}`, frame.OK)
		r.do("POST", "/publish/orders?dry_run=0", `1`).is(200)
		if e := r.last(); e.Seq != 2 {
			r.Errorf("without a dry run: %+v", e)
		}
	})
}

// TestDryRunAgreesWithPublish sends 2,000 random events, valid and not, first as dry runs and then to be
// stored: the answers have the same status and the same codes, and only the publishes store events.
func TestDryRunAgreesWithPublish(t *testing.T) {
	const events = 2_000
	bustest.Run(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) })          // as inBubble
		r := newDryRunRig(t, rand.New(rand.NewPCG(events, 1))) //nolint:gosec // repeatable
		for r.events < events {
			r.try()
		}
		for code, atLeast := range map[string]int{
			"": 400, "bad_json": 20, "bad_request": 20, "unauthorized": 5, "forbidden": 20, "unknown_topic": 10, "seq_conflict": 10,
			"too_large": 20, "unsupported_encoding": 5, "schema_invalid": 20, "unsupported": 20, "no_state": 2,
		} {
			if r.codes[code] < atLeast {
				t.Errorf("code %q: %d answers, want at least %d", code, r.codes[code], atLeast)
			}
		}
		if r.duplicates < 20 || r.scheduled < 5 {
			t.Errorf("%d duplicates and %d scheduled events: too few", r.duplicates, r.scheduled)
		}
		for topic, n := range r.stored {
			if info, err := r.bus.TopicInfo(t.Context(), topic); err != nil || info.LastSeq != n {
				t.Errorf("%s has %d messages, %v; %d publishes stored one", topic, info.LastSeq, err, n)
			}
		}
	})
}

// dryRunRig has topics of all kinds, and makes requests to publish to them. The gateway's connection may not
// publish to the topic "secret".
type dryRunRig struct {
	*wsRig
	*rand.Rand

	last                          map[string]float64 // the sequence of the last event, by topic and key
	stored                        map[string]uint64  // messages, by topic
	codes                         map[string]int     // answers for events; "": stored
	events, duplicates, scheduled int
}

// The limits of the rig: of headers and payload together by the broker and by the stream of the topic "small", and of
// the payload by the gateway.
const (
	maxMessage = 16 << 10
	maxSmall   = 4 << 10
	maxPayload = 12 << 10
)

func newDryRunRig(t *testing.T, random *rand.Rand) *dryRunRig {
	t.Helper()
	s := adaptertest.StartServer(t, &server.Options{JetStream: true, MaxPayload: maxMessage, Users: []*server.User{
		{Username: "root", Password: "root"},
		{Username: "gateway", Password: "gateway", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{">"}, Deny: []string{"ev.secret.>"}}}},
	}})
	root := adaptertest.Dial(t, s, nats.UserInfo("root", "root"))
	open := func(nc *nats.Conn) *adapter.Bus {
		b := adaptertest.Must(adapter.Open(t.Context(), nc, adapter.Config{}))(t)
		t.Cleanup(func() { adaptertest.CloseBus(t, b) })
		return b
	}
	r := &dryRunRig{wsRig: &wsRig{T: t, bus: open(root)}, Rand: random, last: map[string]float64{}, codes: map[string]int{}}
	r.stored = map[string]uint64{"secret": 0}
	for _, c := range []jetbus.TopicConfig{
		{Name: "free"},
		{Name: "small"},
		{Name: "typed"},
		{Name: "secret"},
		{Name: "parts", Partitions: 4},
		{Name: "state", Compact: true, Delays: true},
		{Name: "typed.state", Compact: true, Delays: true},
		{Name: "log", KeyInSubject: true},
		{Name: "log.snapshot", SnapshotOf: "log"},
	} {
		r.ensure(c)
	}
	js := adaptertest.Must(jetstream.New(root))(t)
	small := adaptertest.Must(js.Stream(t.Context(), "EV_SMALL"))(t).CachedInfo().Config
	small.MaxMsgSize = maxSmall
	adaptertest.Must(js.UpdateStream(t.Context(), small))(t)
	reg := adaptertest.Must(registry.Open(t.Context(), root, registry.Config{}))(t)
	t.Cleanup(func() {
		if err := reg.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for _, topic := range []string{"typed", "typed.state"} {
		for _, text := range []string{
			`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`,
			`{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"}},"required":["n"],"additionalProperties":false}`,
		} {
			adaptertest.Must(reg.Register(t.Context(), topic, text, registry.RegisterOptions{}))(t)
		}
	}
	bus := open(adaptertest.Dial(t, s, nats.UserInfo("gateway", "gateway")))
	r.serveBus(registry.Validated(bus, reg, registry.ValidatedOptions{}), gateway.Config{
		Auth: tokens{}, Headers: []string{"X-Schema-Version", "X-Tombstone"}, Limits: gateway.Limits{FrameBytes: maxPayload, Rate: -1},
	})
	return r
}

// pick returns one of several values.
func pick[T any](r *dryRunRig, of ...T) T { return of[r.IntN(len(of))] }

// once reports true one time in n.
func (r *dryRunRig) once(n int) bool { return r.IntN(n) == 0 }

// trial is a request to publish.
type trial struct {
	topic, key, body string
	query, header    []string
	events           int
}

// try sends a random request twice, first as a dry run, and compares the answers.
func (r *dryRunRig) try() {
	r.Helper()
	t := r.trial()
	path := "/v1/topics/" + t.topic
	dry := r.do("POST", path+"?"+strings.Join(append([]string{"dry_run=1"}, t.query...), "&"), t.body, t.header...)
	stored := r.do("POST", path+"?"+strings.Join(t.query, "&"), t.body, t.header...)
	r.events += t.events
	what := fmt.Sprintf("%s %v %q %.200q", path, t.query, t.header, t.body)
	if dry.status != stored.status || (dry.text == "") != (stored.text == "") {
		r.Fatalf("%.3000s\ndry run: %d %s\npublish: %d %s", what, dry.status, dry.text, stored.status, stored.text)
	}
	if stored.text == "" { // Prefer: return=minimal
		r.codes[""]++
		r.stored[t.topic]++
		return
	}
	trials, results := r.results(dry), r.results(stored)
	for i, result := range results {
		was := trials[i]
		for _, member := range []string{"code", "duplicate", "scheduled", "stored"} {
			if was[member] != result[member] {
				r.Fatalf("%.3000s\nevent %d, %s:\ndry run: %s\npublish: %s", what, i, member, dry.text, stored.text)
			}
		}
		if code, ok := result["code"].(string); ok {
			r.codes[code]++
			continue
		}
		r.codes[""]++
		switch {
		case was["dry_run"] != true || result["dry_run"] != nil:
			r.Fatalf("%.3000s\ndry run: %s\npublish: %s", what, dry.text, stored.text)
		case result["duplicate"] == true:
			r.duplicates++
			if was["seq"] != result["seq"] {
				r.Fatalf("%.3000s\ndry run: %s\npublish: %s", what, dry.text, stored.text)
			}
		case result["scheduled"] == true:
			r.scheduled++
			r.stored[t.topic]++
		default:
			r.stored[t.topic]++
			r.last[t.topic+"|"+t.key], _ = result["seq"].(float64)
		}
	}
}

// results are the results of an answer, one for each event.
func (r *dryRunRig) results(p reply) []map[string]any {
	r.Helper()
	var batch struct {
		Results []map[string]any `json:"results"`
	}
	if p.into(&batch); batch.Results != nil {
		return batch.Results
	}
	return []map[string]any{object(r.T, p.text)}
}

// trial makes a request.
func (r *dryRunRig) trial() trial {
	t := trial{events: 1, topic: pick(r, "free", "typed", "typed", "state", "typed.state", "log", "parts", "small")}
	if r.once(8) {
		t.topic = pick(r, "secret", "none", "log.snapshot", "dlq.free", "a%20b", "free.*")
	}
	token := "ann topic:write:>"
	if r.once(25) {
		token = pick(r, "bob topic:read:>", "bob topic:write:other", "bad", "")
	}
	t.header = append(t.header, "Authorization", "Bearer "+token)
	switch r.IntN(10) {
	case 0, 1:
		r.makeBatch(&t)
		return t
	case 2:
		r.makeCloudEvent(&t)
	default:
		r.makePlain(&t)
	}
	r.instruct(&t)
	if r.once(20) {
		t.header = append(t.header, "Prefer", "return=minimal", "X-Evt-Id", fmt.Sprintf("new-%d", r.events)) // not a duplicate
	}
	return t
}

// instruct adds to a request what the query says.
func (r *dryRunRig) instruct(t *trial) {
	if r.once(3) {
		seq := fmt.Sprint(r.last[t.topic+"|"+t.key])
		if r.once(2) {
			seq = pick(r, "0", "1", "3", "x", "-1", "18446744073709551616")
		}
		t.query = append(t.query, "expectLastSeq="+seq)
	}
	if r.once(12) {
		t.query = append(t.query, "ttlMs="+pick(r, "60000", "3600000", "1500", "-1", "x"))
	}
	if r.once(15) || strings.HasSuffix(t.topic, "state") && r.once(4) { // the topics with delays
		at := time.Now().Add(pick(r, time.Hour, time.Hour, -time.Hour, 2*365*24*time.Hour))
		t.query = append(t.query, "deliverAt="+pick(r, fmt.Sprint(at.UnixMilli()), at.Format(time.RFC3339), "soon"))
	}
}

// payload makes a payload: most of them follow the schema.
func (r *dryRunRig) payload() string {
	text := pick(r, `{"n":1}`, `{"n":2}`, `{"n":3,"s":"a"}`)
	if r.once(5) {
		text = pick(r, `{"n":1.5}`, `{}`, `[]`, `null`, `"text"`, `{"n":1,"other":2}`, `{"n":"1"}`)
	}
	if r.once(15) {
		text = pick(r, ``, `{`, `1 2`, "\xff", strings.Repeat("[", 3_000)+strings.Repeat("]", 3_000))
	}
	if r.once(6) { // white space around JSON changes its size alone
		size := pick(r, maxSmall, 8<<10, maxPayload, maxPayload) + r.IntN(1_000) - 500
		text += strings.Repeat(" ", max(size-len(text), 0))
	}
	return text
}

// makePlain makes an event whose payload is the body.
func (r *dryRunRig) makePlain(t *trial) {
	t.body = r.payload()
	if r.once(2) {
		t.key = pick(r, "k", "l", "m", "a b", "\u00fc")
		if r.once(20) {
			t.key = strings.Repeat("k", jetbus.MaxKeyBytes+r.IntN(2))
		}
		t.header = append(t.header, "X-Evt-Key", t.key)
	}
	if r.once(3) {
		t.header = append(t.header, "X-Evt-Id", pick(r, fmt.Sprintf("id-%d", r.IntN(200)), fmt.Sprintf("id-%d", r.IntN(200)), strings.Repeat("i", jetbus.MaxIDBytes+r.IntN(2))))
	}
	if r.once(10) {
		t.header = append(t.header, "Idempotency-Key", fmt.Sprintf("id-%d", r.IntN(200)))
	}
	if r.once(12) {
		t.header = append(t.header, "Content-Type", pick(r, "application/json", "application/problem+json", "text/plain", "application/octet-stream",
			"application/x-www-form-urlencoded", "application/json; charset=latin1", ";;", "application/cloudevents+xml"))
	}
	if r.once(12) {
		t.header = append(t.header, "X-Schema-Version", pick(r, "1", "2", "9", "x", "0"))
	}
	if r.once(12) {
		t.header = append(t.header, "X-Tombstone", "1")
		t.body = pick(r, t.body, "null", "null", "null")
	}
	if r.once(12) {
		for i := range pick(r, 1, 3, 70) { // an event has at most 64
			t.header = append(t.header, fmt.Sprintf("X-Evt-Fill-%d", i), strings.Repeat("x", pick(r, 10, 1_000, 4_000)))
		}
	}
	if r.once(25) {
		t.header = append(t.header, pick(r, "X-Evt-Ts", "X-Evt-Tags", "X-Evt-Caused-By", "Nats-Rollup", "Traceparent", "Content-Encoding"), pick(r, "1700000000000", "a,b", "noon", "gzip"))
	}
}

// makeCloudEvent makes a CloudEvent in binary or structured mode.
func (r *dryRunRig) makeCloudEvent(t *trial) {
	t.key = pick(r, "k", "l", "m")
	version, id := pick(r, "1.0", "1.0", "1.0", "0.3"), fmt.Sprintf("ce-%d", r.IntN(80))
	if r.once(2) {
		t.header = append(t.header, "Ce-Specversion", version, "Ce-Id", id, "Ce-Source", pick(r, "/a", "s", ""), "Ce-Type", "t", "Ce-Partitionkey", t.key)
		t.body = r.payload()
		return
	}
	t.header = append(t.header, "Content-Type", "application/cloudevents+json")
	t.body = r.cloudEvent(version, id, t.key)
}

func (r *dryRunRig) cloudEvent(version, id, key string) string {
	data := `"data":` + r.payload()
	if r.once(6) {
		data = fmt.Sprintf(`"data_base64":%q`, base64.StdEncoding.EncodeToString([]byte(r.payload())))
	}
	return fmt.Sprintf(`{"specversion":%q,"id":%q,"source":"/a","type":"t","partitionkey":%q,%s}`, version, id, key, data)
}

// makeBatch makes a batch of up to 5 events. Without a broken line, each event has a result of its own.
func (r *dryRunRig) makeBatch(t *trial) {
	if t.topic == "small" { // the broker refuses large events: after the first, a batch may end
		t.topic = "free"
	}
	t.key = "batch"
	t.events = 1 + r.IntN(5)
	items := make([]string, t.events)
	if r.once(2) {
		t.header = append(t.header, "Content-Type", "application/cloudevents-batch+json")
		for i := range items {
			items[i] = r.cloudEvent(pick(r, "1.0", "1.0", "1.0", "0.3"), fmt.Sprintf("b-%d", r.IntN(200)), t.key)
		}
		t.body = "[" + strings.Join(items, ",") + "]"
	} else {
		t.header = append(t.header, "Content-Type", "application/x-ndjson")
		for i := range items {
			items[i] = fmt.Sprintf(`{"id":"b-%d","key":%q,"payload":%s}`, r.IntN(200), t.key, r.payload())
		}
		t.body = strings.Join(items, "\n")
	}
	if r.once(20) {
		t.query = append(t.query, pick(r, "expectLastSeq=0", "ttlMs=60000"))
	}
}
