package bustest

import (
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// bytesBehaviors are about bounds in bytes.
var bytesBehaviors = []Behavior{
	{Name: "a member holds at most MaxInFlightBytes, and a larger event alone", Cases: []int{48}, play: byteLimits},
	{Name: "what is received has at most MaxBytes, and a larger event comes alone", Cases: []int{48}, Needs: NeedReceive, play: receivedBytes},
}

// mostBytes is the bound, and payloadSizes those of these behaviors: of most two or three
// fit, and one is larger.
const mostBytes = 200_000

var payloadSizes = []int{60_000, 60_000, 60_000, 60_000, 300_000, 60_000, 10}

// publishSized stores events with payloads of those sizes.
func (r *run) publishSized(topic string) (last jetbus.Event) {
	r.Helper()
	for i, size := range payloadSizes {
		receipt, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: keys(len(payloadSizes))[i], Payload: []byte(`{"pad":"` + strings.Repeat("x", size) + `"}`)})
		r.must(err)
		last = receipt.Event
	}
	return last
}

func byteLimits(r *run) {
	topic := r.topic("t")
	got := byHand()
	r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{ManualAck: true, MaxInFlightBytes: mostBytes})
	last := r.publishSized(topic)
	for done := range payloadSizes {
		got.wait(r.T, done+1)
		r.pause(50 * time.Millisecond)
		held, bytes := got.list()[done:], 0
		for _, d := range held {
			bytes += len(d.Payload)
		}
		if len(held) > 1 && bytes > mostBytes {
			r.Errorf("after %d events %d are held, of %d bytes", done, len(held), bytes)
		}
		r.must(held[0].Ack(r.ctx))
	}
	r.settled(topic, "g", last.Seq)
	got.exactly(r.T, keys(len(payloadSizes))...)
}

func receivedBytes(r *run) {
	topic := r.topic("t")
	bus := r.A.(jetbus.Receiver)
	last := r.publishSized(topic)
	o := jetbus.ReceiveOptions{From: jetbus.Earliest(), MaxBytes: mostBytes}
	for came := 0; came < len(payloadSizes); {
		ds, err := bus.Receive(r.ctx, topic, "g", o)
		r.must(err)
		bytes := 0
		for _, d := range ds {
			bytes += len(d.Payload)
			r.must(d.Ack(r.ctx))
		}
		if len(ds) == 0 || len(ds) > 1 && bytes > mostBytes {
			r.Fatalf("received %d events of %d bytes after %d", len(ds), bytes, came)
		}
		came += len(ds)
	}
	r.settled(topic, "g", last.Seq)
}
