package bustest

import (
	"fmt"

	"github.com/seed-63e9a637/jetbus"
)

// tableBehaviors are about the live view of a topic's state.
var tableBehaviors = []Behavior{
	{Name: "a table has the state of its topic, and follows it", Cases: []int{66}, Needs: NeedStore, play: liveTable},
	{Name: "a table follows its topic through the end and the crash of the broker", Cases: []int{60, 66}, Needs: NeedStore | NeedRestart, play: tableOverFaults},
}

// table opens a table on A until the end of the test.
func (r *run) table(topic string) *jetbus.Table {
	r.Helper()
	t, err := jetbus.OpenTable(r.ctx, r.A.(jetbus.TableBus), topic, jetbus.TableOptions{})
	r.must(err)
	r.Cleanup(t.Close)
	return t
}

// shows checks what a table has, once it has come to a position.
func (r *run) shows(t *jetbus.Table, seq uint64, want map[string]string) {
	r.Helper()
	r.must(t.WaitFor(r.ctx, seq))
	got := map[string]string{}
	for key, e := range t.All() {
		got[key] = string(e.Payload)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || t.Len() != len(want) {
		r.Errorf("the table has %v, want %v", got, want)
	}
}

func liveTable(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Compact: true})
	r.put(topic, "a", "1")
	last := r.put(topic, "b", "2")
	t := r.table(topic)
	r.shows(t, last.Seq, map[string]string{"a": "1", "b": "2"})
	r.put(topic, "a", "3")
	last = r.put(topic, "c", "4")
	r.shows(t, last.Seq, map[string]string{"a": "3", "b": "2", "c": "4"})
	receipt, err := r.B.Publish(r.ctx, jetbus.Tombstone(topic, "b"))
	r.must(err)
	r.shows(t, receipt.Event.Seq, map[string]string{"a": "3", "c": "4"})
	if _, there := t.Get("b"); there {
		r.Error("the table has a key that was deleted")
	}
}

func tableOverFaults(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Compact: true})
	r.put(topic, "a", "1")
	t := r.table(topic)
	for i := range 2 {
		r.must(r.Broker.Kill(r.ctx))
		r.must(r.Broker.Restart(r.ctx))
		last := r.put(topic, fmt.Sprint(i), "2")
		r.must(t.WaitFor(r.ctx, last.Seq))
	}
	r.shows(t, t.AsOf(), map[string]string{"a": "1", "0": "2", "1": "2"})
}
