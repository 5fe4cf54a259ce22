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

// TestDryRunAgreesWithPublish sends 2,000 random events, valid and not, first as dry runs and then to be
// stored: the answers have the same status and the same codes, and only the publishes store events.
func TestDryRunAgreesWithPublish(t *testing.T) {
	const events = 2_000
	bustest.Run(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) })     // as inBubble
		h := newHall(t, rand.New(rand.NewPCG(events, 1))) //nolint:gosec // repeatable
		for h.events < events {
			h.try()
		}
		for code, atLeast := range map[string]int{
			"": 400, "bad_json": 20, "bad_request": 20, "unauthorized": 5, "forbidden": 20, "unknown_topic": 10, "seq_conflict": 10,
			"too_large": 20, "unsupported_encoding": 5, "schema_invalid": 20, "unsupported": 20, "no_state": 2,
		} {
			if h.codes[code] < atLeast {
				t.Errorf("code %q: %d answers, want at least %d", code, h.codes[code], atLeast)
			}
		}
		if h.duplicates < 20 || h.scheduled < 5 {
			t.Errorf("%d duplicates and %d scheduled events: too few", h.duplicates, h.scheduled)
		}
		for topic, n := range h.stored {
			if info, err := h.bus.TopicInfo(t.Context(), topic); err != nil || info.LastSeq != n {
				t.Errorf("%s has %d events, %v; %d publishes stored one", topic, info.LastSeq, err, n)
			}
		}
	})
}

// hall has topics of all kinds, and makes requests to publish to them. The gateway's connection may not
// publish to the topic "secret".
type hall struct {
	*wsRig
	*rand.Rand

	last                          map[string]float64 // the sequence of the last event, by topic and key
	stored                        map[string]uint64  // events, by topic without delays
	codes                         map[string]int     // answers for events; "": stored
	events, duplicates, scheduled int
}

// The limits of the hall: of headers and payload together by the broker and by the adopted stream, and of the
// payload by the gateway.
const (
	hallMessage = 16 << 10
	hallStream  = 4 << 10
	hallPayload = 12 << 10
)

func newHall(t *testing.T, random *rand.Rand) *hall {
	t.Helper()
	s := adaptertest.StartServer(t, &server.Options{JetStream: true, MaxPayload: hallMessage, Users: []*server.User{
		{Username: "root", Password: "root"},
		{Username: "gateway", Password: "gateway", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{">"}, Deny: []string{"ev.secret.>"}}}},
	}})
	root := adaptertest.Dial(t, s, nats.UserInfo("root", "root"))
	open := func(nc *nats.Conn) *adapter.Bus {
		b := adaptertest.Must(adapter.Open(t.Context(), nc, adapter.Config{}))(t)
		t.Cleanup(func() { adaptertest.CloseBus(t, b) })
		return b
	}
	h := &hall{wsRig: &wsRig{T: t, bus: open(root)}, Rand: random, last: map[string]float64{}, codes: map[string]int{}}
	h.stored = map[string]uint64{"free": 0, "typed": 0, "adopted": 0, "secret": 0, "parts": 0}
	js := adaptertest.Must(jetstream.New(root))(t)
	adaptertest.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "IN", Subjects: []string{"in"}, MaxMsgSize: hallStream}))(t)
	for _, c := range []jetbus.TopicConfig{
		{Name: "free"},
		{Name: "typed"},
		{Name: "secret"},
		{Name: "parts", Partitions: 4},
		{Name: "state", Compact: true, Delays: true},
		{Name: "typed.state", Compact: true, Delays: true},
		{Name: "log", KeyInSubject: true},
		{Name: "log.snapshot", SnapshotOf: "log"},
	} {
		h.ensure(c)
	}
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
	for _, b := range []*adapter.Bus{h.bus, bus} { // each bus adopts a stream itself
		adaptertest.Must(b.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "adopted", Stream: "IN", Subject: "in"}))(t)
	}
	h.serveBus(registry.Validated(bus, reg, registry.ValidatedOptions{}), gateway.Config{
		Auth: tokens{}, Headers: []string{"X-Schema-Version", "X-Tombstone"}, Limits: gateway.Limits{FrameBytes: hallPayload, Rate: -1},
	})
	return h
}

// pick returns one of several values.
func pick[T any](h *hall, of ...T) T { return of[h.IntN(len(of))] }

// once reports true one time in n.
func (h *hall) once(n int) bool { return h.IntN(n) == 0 }

// trial is a request to publish.
type trial struct {
	topic, key, body string
	query, header    []string
	events           int
}

// try sends a random request twice, first as a dry run, and compares the answers.
func (h *hall) try() {
	h.Helper()
	t := h.trial()
	path := "/v1/topics/" + t.topic
	dry := h.do("POST", path+"?"+strings.Join(append([]string{"dry_run=1"}, t.query...), "&"), t.body, t.header...)
	stored := h.do("POST", path+"?"+strings.Join(t.query, "&"), t.body, t.header...)
	h.events += t.events
	what := fmt.Sprintf("%s %v %q %.200q", path, t.query, t.header, t.body)
	if dry.status != stored.status || (dry.text == "") != (stored.text == "") {
		h.Fatalf("%.3000s\ndry run: %d %s\npublish: %d %s", what, dry.status, dry.text, stored.status, stored.text)
	}
	if stored.text == "" { // Prefer: return=minimal
		h.codes[""]++
		h.count(t.topic)
		return
	}
	trials, results := h.results(dry), h.results(stored)
	for i, result := range results {
		was := trials[i]
		for _, member := range []string{"code", "duplicate", "scheduled", "stored"} {
			if was[member] != result[member] {
				h.Fatalf("%.3000s\nevent %d, %s:\ndry run: %s\npublish: %s", what, i, member, dry.text, stored.text)
			}
		}
		if code, ok := result["code"].(string); ok {
			h.codes[code]++
			continue
		}
		h.codes[""]++
		switch {
		case was["dry_run"] != true || result["dry_run"] != nil:
			h.Fatalf("%.3000s\ndry run: %s\npublish: %s", what, dry.text, stored.text)
		case result["duplicate"] == true:
			h.duplicates++
			if was["seq"] != result["seq"] {
				h.Fatalf("%.3000s\ndry run: %s\npublish: %s", what, dry.text, stored.text)
			}
		case result["scheduled"] == true:
			h.scheduled++
		default:
			h.count(t.topic)
			h.last[t.topic+"|"+t.key], _ = result["seq"].(float64)
		}
	}
}

// count counts a stored event.
func (h *hall) count(topic string) {
	if _, ok := h.stored[topic]; ok {
		h.stored[topic]++
	}
}

// results are the results of an answer, one for each event.
func (h *hall) results(p reply) []map[string]any {
	h.Helper()
	var batch struct {
		Results []map[string]any `json:"results"`
	}
	if p.into(&batch); batch.Results != nil {
		return batch.Results
	}
	return []map[string]any{object(h.T, p.text)}
}

// trial makes a request.
func (h *hall) trial() trial {
	t := trial{events: 1, topic: pick(h, "free", "typed", "typed", "state", "typed.state", "log", "parts", "adopted")}
	if h.once(8) {
		t.topic = pick(h, "secret", "none", "log.snapshot", "dlq.free", "a%20b", "free.*")
	}
	token := "ann topic:write:>"
	if h.once(25) {
		token = pick(h, "bob topic:read:>", "bob topic:write:other", "bad", "")
	}
	t.header = append(t.header, "Authorization", "Bearer "+token)
	switch h.IntN(10) {
	case 0, 1:
		h.makeBatch(&t)
		return t
	case 2:
		h.makeCloudEvent(&t)
	default:
		h.makePlain(&t)
	}
	h.instruct(&t)
	if h.once(20) {
		t.header = append(t.header, "Prefer", "return=minimal", "X-Evt-Id", fmt.Sprintf("new-%d", h.events)) // not a duplicate
	}
	return t
}

// instruct adds to a request what the query says.
func (h *hall) instruct(t *trial) {
	if h.once(3) {
		seq := fmt.Sprint(h.last[t.topic+"|"+t.key])
		if h.once(2) {
			seq = pick(h, "0", "1", "3", "x", "-1", "18446744073709551616")
		}
		t.query = append(t.query, "expectLastSeq="+seq)
	}
	if h.once(12) {
		t.query = append(t.query, "ttlMs="+pick(h, "60000", "3600000", "1500", "-1", "x"))
	}
	if h.once(15) || strings.HasSuffix(t.topic, "state") && h.once(4) { // the topics with delays
		at := time.Now().Add(pick(h, time.Hour, time.Hour, -time.Hour, 2*365*24*time.Hour))
		t.query = append(t.query, "deliverAt="+pick(h, fmt.Sprint(at.UnixMilli()), at.Format(time.RFC3339), "soon"))
	}
}

// payload makes a payload: most of them follow the schema.
func (h *hall) payload() string {
	text := pick(h, `{"n":1}`, `{"n":2}`, `{"n":3,"s":"a"}`)
	if h.once(5) {
		text = pick(h, `{"n":1.5}`, `{}`, `[]`, `null`, `"text"`, `{"n":1,"other":2}`, `{"n":"1"}`)
	}
	if h.once(15) {
		text = pick(h, ``, `{`, `1 2`, "\xff", strings.Repeat("[", 3_000)+strings.Repeat("]", 3_000))
	}
	if h.once(6) { // white space around JSON changes its size alone
		size := pick(h, hallStream, 8<<10, hallPayload, hallPayload) + h.IntN(1_000) - 500
		text += strings.Repeat(" ", max(size-len(text), 0))
	}
	return text
}

// makePlain makes an event whose payload is the body.
func (h *hall) makePlain(t *trial) {
	t.body = h.payload()
	if h.once(2) {
		t.key = pick(h, "k", "l", "m", "a b", "\u00fc")
		if h.once(20) {
			t.key = strings.Repeat("k", jetbus.MaxKeyBytes+h.IntN(2))
		}
		t.header = append(t.header, "X-Evt-Key", t.key)
	}
	if h.once(3) {
		t.header = append(t.header, "X-Evt-Id", pick(h, fmt.Sprintf("id-%d", h.IntN(200)), fmt.Sprintf("id-%d", h.IntN(200)), strings.Repeat("i", jetbus.MaxIDBytes+h.IntN(2))))
	}
	if h.once(10) {
		t.header = append(t.header, "Idempotency-Key", fmt.Sprintf("id-%d", h.IntN(200)))
	}
	if h.once(12) {
		t.header = append(t.header, "Content-Type", pick(h, "application/json", "application/problem+json", "text/plain", "application/octet-stream",
			"application/x-www-form-urlencoded", "application/json; charset=latin1", ";;", "application/cloudevents+xml"))
	}
	if h.once(12) {
		t.header = append(t.header, "X-Schema-Version", pick(h, "1", "2", "9", "x", "0"))
	}
	if h.once(12) {
		t.header = append(t.header, "X-Tombstone", "1")
		t.body = pick(h, t.body, "null", "null", "null")
	}
	if h.once(12) {
		for i := range pick(h, 1, 3, 70) { // an event has at most 64
			t.header = append(t.header, fmt.Sprintf("X-Evt-Fill-%d", i), strings.Repeat("x", pick(h, 10, 1_000, 4_000)))
		}
	}
	if h.once(25) {
		t.header = append(t.header, pick(h, "X-Evt-Ts", "X-Evt-Tags", "X-Evt-Caused-By", "Nats-Rollup", "Traceparent", "Content-Encoding"), pick(h, "1700000000000", "a,b", "noon", "gzip"))
	}
}

// makeCloudEvent makes a CloudEvent in binary or structured mode.
func (h *hall) makeCloudEvent(t *trial) {
	t.key = pick(h, "k", "l", "m")
	version, id := pick(h, "1.0", "1.0", "1.0", "0.3"), fmt.Sprintf("ce-%d", h.IntN(80))
	if h.once(2) {
		t.header = append(t.header, "Ce-Specversion", version, "Ce-Id", id, "Ce-Source", pick(h, "/a", "s", ""), "Ce-Type", "t", "Ce-Partitionkey", t.key)
		t.body = h.payload()
		return
	}
	t.header = append(t.header, "Content-Type", "application/cloudevents+json")
	t.body = h.cloudEvent(version, id, t.key)
}

func (h *hall) cloudEvent(version, id, key string) string {
	data := `"data":` + h.payload()
	if h.once(6) {
		data = fmt.Sprintf(`"data_base64":%q`, base64.StdEncoding.EncodeToString([]byte(h.payload())))
	}
	return fmt.Sprintf(`{"specversion":%q,"id":%q,"source":"/a","type":"t","partitionkey":%q,%s}`, version, id, key, data)
}

// makeBatch makes a batch of up to 5 events. Without a broken line, each event has a result of its own.
func (h *hall) makeBatch(t *trial) {
	if t.topic == "adopted" { // the broker refuses large events: after the first, a batch may end
		t.topic = "free"
	}
	t.key = "batch"
	t.events = 1 + h.IntN(5)
	items := make([]string, t.events)
	if h.once(2) {
		t.header = append(t.header, "Content-Type", "application/cloudevents-batch+json")
		for i := range items {
			items[i] = h.cloudEvent(pick(h, "1.0", "1.0", "1.0", "0.3"), fmt.Sprintf("b-%d", h.IntN(200)), t.key)
		}
		t.body = "[" + strings.Join(items, ",") + "]"
	} else {
		t.header = append(t.header, "Content-Type", "application/x-ndjson")
		for i := range items {
			items[i] = fmt.Sprintf(`{"id":"b-%d","key":%q,"payload":%s}`, h.IntN(200), t.key, h.payload())
		}
		t.body = strings.Join(items, "\n")
	}
	if h.once(20) {
		t.query = append(t.query, pick(h, "expectLastSeq=0", "ttlMs=60000"))
	}
}
