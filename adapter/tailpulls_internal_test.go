package adapter

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// A reader has no more bytes under way than it asked for, however large the events are,
// and those that are larger than that come as well.
func TestTailBytes(t *testing.T) {
	t.Parallel()
	bus, _ := movable(t)
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "k"}); err != nil {
		t.Fatal(err)
	}
	const most = 20_000
	var want []string
	for i, size := range []int{1, 15_000, 15_000, 30_000, 30_000, 1, 19_000, 1, 25_000, 4_000, 4_000, 4_000, 4_000, 4_000, 4_000, 1, 60_000} {
		want = append(want, fmt.Sprint(i))
		if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "k", Key: want[i], Payload: []byte(strings.Repeat("x", size))}); err != nil {
			t.Fatal(err)
		}
	}
	topic, err := bus.lookup(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	requests, err := bus.nc.SubscribeSync("$JS.API.CONSUMER.MSG.NEXT.EV_K.>")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	r := &tail{b: bus, t: topic, next: 1, end: uint64(len(want)), bytes: most}
	if err := r.run(t.Context(), func(e jetbus.Event) bool {
		got = append(got, e.Key)
		return true
	}); err != nil || !slices.Equal(got, want) {
		t.Errorf("read %v, %v", got, err)
	}
	alone := 0
	for n, _, _ := requests.Pending(); n > 0; n-- {
		m, err := requests.NextMsgWithContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch body := string(m.Data); {
		case strings.HasPrefix(body, `{"batch":1,"expires"`):
			alone++
		case !strings.Contains(body, fmt.Sprintf(`"max_bytes":%d,`, most)):
			t.Errorf("asked for %s", body)
		}
	}
	if alone != 4 {
		t.Errorf("asked for %d events alone, want those 4 that are larger", alone)
	}
}

func TestTailPulls(t *testing.T) {
	t.Parallel()
	status := func(code, description string, pending int) *nats.Msg {
		return &nats.Msg{Header: nats.Header{"Status": {code}, "Description": {description}, "Nats-Pending-Messages": {fmt.Sprint(pending)}}}
	}
	full := func(pending int) *nats.Msg { return status("409", "Message Size Exceeds MaxBytes", pending) }
	p := tailPulls{bytes: 100}
	ask := func(want string) {
		t.Helper()
		got := ""
		if o := p.request(); o.events > 0 {
			got = string(o.body())
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("asked for %q, want %q", got, want)
		}
	}
	say := func(m *nats.Msg, want error) {
		t.Helper()
		if _, err := p.status(readPullWord(m)); err != want { //nolint:errorlint // it is returned as it is
			t.Errorf("got error %v, want %v", err, want)
		}
	}
	ask(`{"batch":500,"max_bytes":100,`)
	ask("")
	for range 250 {
		p.event()
	}
	ask(`{"batch":250,"max_bytes":100,`)
	say(status("100", "Idle Heartbeat", 0), nil)
	say(status("409", "Batch Completed", 0), nil)
	say(full(250), nil) // the first request; the second may have room
	ask(`{"batch":250,"max_bytes":100,`)
	say(full(250), nil) // nor has the second; the third is left
	ask("")
	say(full(250), nil)
	ask(`{"batch":1,"expires"`)
	ask("")
	p.event()
	ask(`{"batch":500,"max_bytes":100,`)
	say(status("408", "Request Timeout", 500), nil)
	ask(`{"batch":500,"max_bytes":100,`)
	say(status("409", "Consumer Deleted", 0), errTailBroken)
}
