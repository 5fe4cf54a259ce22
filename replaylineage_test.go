package jetbus_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
)

func TestReplayLineage(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 1)
		r.waitDead("orders", 1)
		at := func(seq uint64, force bool) jetbus.ReplayOptions {
			return jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "orders", Seqs: []uint64{seq}}, Force: force}
		}
		one := jetbus.ReplayStats{Read: 1, Matched: 1, Replayed: 1}
		r.replay(r.bus, at(1, false), one, nil)
		r.waitDead("orders", 2)
		r.replay(r.bus, at(1, true), one, nil)
		r.waitDead("orders", 3)
		r.replay(r.bus, at(2, false), one, nil)
		var got [][2]uint64
		for _, d := range r.waitDead("orders", 4) {
			got = append(got, [2]uint64{d.ReplayOf, uint64(d.Replays)})
		}
		if diff := cmp.Diff([][2]uint64{{0, 0}, {1, 1}, {1, 2}, {2, 2}}, got); diff != "" {
			r.Error(diff)
		}
	})
}
