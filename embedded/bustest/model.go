package bustest

import (
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
)

// modelBehaviors are properties, which hold for whatever is drawn.
var modelBehaviors = []Behavior{
	{Name: "any valid event comes back from its topic as it was", Cases: []int{36, 72}, play: roundTrip},
}

// modelChecks is how many scripts are drawn.
const modelChecks = 25

// check is rapid.Check for a bubble: it hides t.Deadline, and draws no more than
// modelChecks times.
func (r *run) check(property func(t *rapid.T)) {
	n := 0
	rapid.Check(struct{ rapid.TB }{r.T}, func(t *rapid.T) {
		if n++; n <= modelChecks {
			property(t)
		}
	})
}

// text draws strings that an event may hold.
func text(bytes int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		s := rapid.StringN(0, bytes/4, bytes).Draw(t, "text")
		if (&jetbus.Event{Topic: "t", ID: s, Key: s}).Validate() != nil {
			s = fmt.Sprintf("%q", rapid.StringMatching(`[ -~]{0,20}`).Draw(t, "plain"))
		}
		return s
	})
}

// payloads draws any bytes, or JSON with the white space around it that encoders leave.
var payloads = rapid.OneOf(
	rapid.SliceOfN(rapid.Byte(), 0, 300),
	rapid.Map(rapid.StringMatching(`[ \t\r\n]{0,2}(\{"a":  ?[0-9]\}|"[a-z ]{0,9}"|[0-9])[ \t\r\n]{0,2}`), func(s string) []byte { return []byte(s) }),
)

// anyEvent draws a valid event of a topic.
func anyEvent(t *rapid.T, topic string) jetbus.Event {
	items := rapid.SliceOfN(rapid.StringMatching(`[ -~\x{e9}\x{2603}]{1,20}`), 0, 4)
	e := jetbus.Event{
		Topic: topic, Key: text(100).Draw(t, "key"), ID: jetbus.NewID() + text(60).Draw(t, "id"), SID: text(60).Draw(t, "sid"),
		Time:    time.UnixMilli(rapid.Int64Range(-1e12, 1e13).Draw(t, "time")).UTC(),
		Payload: payloads.Draw(t, "payload"),
		Tags:    items.Draw(t, "tags"), CausedBy: items.Draw(t, "caused by"), Headers: map[string]string{},
	}
	for name, value := range rapid.MapOfN(rapid.StringMatching(`x-[a-z0-9_.-]{1,10}`), text(80), 0, 4).Draw(t, "headers") {
		if jetbus.ValidHeader(name, value) == nil {
			e.Headers[name] = value
		}
	}
	if e.Validate() != nil {
		e.ID = jetbus.NewID()
	}
	return e
}

func roundTrip(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{})
	n := 0
	r.check(func(t *rapid.T) {
		e := anyEvent(t, topic)
		receipt, err := r.A.Publish(r.ctx, e)
		if err != nil {
			t.Fatal(err)
		}
		if receipt.Duplicate { // the same event, drawn again to make it simpler
			return
		}
		want := e
		want.Seq, want.Partition = receipt.Event.Seq, jetbus.NoPartition
		if want.SID == "" {
			want.SID = receipt.Event.SID
		}
		n++
		if diff := cmp.Diff(want, got.wait(r.T, n)[n-1].Event, cmpopts.EquateEmpty(), notStored); diff != "" {
			t.Fatal(diff)
		}
	})
	r.settled(topic, "g", uint64(n))
}
