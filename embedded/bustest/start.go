package bustest

import (
	"context"
	"slices"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// startBehaviors are about what a group gets at all, and from where on.
var startBehaviors = []Behavior{
	{Name: "a group that starts at the earliest event gets every event, in order", Cases: []int{1}, play: startEarliest},
	{Name: "a group that starts at the latest event gets the new ones and none of the old", Cases: []int{1}, play: startLatest},
	{Name: "a group without members keeps events for those that come later", Cases: []int{1}, play: startIdle},
	{Name: "a start behind an id begins with the event after it, and an unknown id is an error", Cases: []int{2}, play: startAfterID},
	{Name: "a start at a time goes by the time of storage and begins exactly there", Cases: []int{2, 67}, play: startAtTime},
	{Name: "every group gets every event", Cases: []int{3}, Needs: NeedPower, play: twoGroups},
	{Name: "the members of a group share its events without overlap", Cases: []int{3}, play: twoMembers},
	{Name: "one subscription may take several topics, and filters acknowledge unseen", Cases: []int{50}, play: topicsAndFilter},
	{Name: "of several topics none waits for the backlog of another, handled or left out", Cases: []int{50}, play: backlogBeside},
}

func startEarliest(r *run) {
	topic := r.topic("t")
	r.publish(topic, "0", "1", "2")
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{From: jetbus.Earliest()})
	last := r.publish(topic, "3", "4")[1]
	got.wait(r.T, 5)
	r.settled(topic, "g", last.Seq)
	r.inLine(got, keys(5)...)
}

func startLatest(r *run) {
	topic := r.topic("t")
	r.publish(topic, "old", "old")
	for _, from := range []struct {
		group string
		start jetbus.Start
	}{{"default", jetbus.Start{}}, {"latest", jetbus.Latest()}} {
		got := r.newRecord()
		r.subscribe(r.B, topic, from.group, got.handle, jetbus.SubscribeOptions{From: from.start})
		last := r.publish(topic, from.group)[0]
		got.wait(r.T, 1)
		r.settled(topic, from.group, last.Seq)
		got.exactly(r.T, from.group)
	}
}

func startIdle(r *run) {
	topic := r.topic("t")
	r.publish(topic, "old")
	r.stop(r.subscribe(r.A, topic, "g", r.newRecord().handle, jetbus.SubscribeOptions{}))
	last := r.publish(topic, "0", "1")[1]
	r.has(topic, func(g jetbus.GroupInfo) bool {
		lost := g.Held > 0 && r.inbox != nil // what is on its way to the member that stopped is held for its lease
		return (g.Held == 0 || lost) && g.Held+int(g.Pending) == 2
	}, "2 pending")
	got := r.newRecord()
	// From is for a group that does not exist yet.
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{From: jetbus.Earliest()})
	got.wait(r.T, 2)
	r.settled(topic, "g", last.Seq)
	got.exactly(r.T, "0", "1")
}

func startAfterID(r *run) {
	topic := r.topic("t")
	events := r.publish(topic, keys(5)...)
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{From: jetbus.AfterID(events[2].ID)})
	got.wait(r.T, 2)
	r.settled(topic, "g", events[4].Seq)
	got.exactly(r.T, "3", "4")

	for _, id := range []string{jetbus.NewID(), "nobody"} {
		_, err := r.B.Subscribe(r.ctx, topic, "lost", got.handle, jetbus.SubscribeOptions{From: jetbus.AfterID(id)})
		wantErr(r.T, "subscribe behind unknown id "+id, err, jetbus.ErrPositionUnknown)
	}
	if _, err := r.findGroup(topic, "lost"); err == nil {
		r.Error("a failed subscribe left a group behind")
	}
}

func startAtTime(r *run) {
	topic := r.topic("t")
	var at []time.Time
	for i, key := range keys(4) {
		r.pause(20 * time.Millisecond)
		at = append(at, time.Now())
		r.pause(20 * time.Millisecond)
		// The events' own times run the other way, far from now.
		_, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: key, Time: time.UnixMilli(int64(1e12 * (4 - i)))})
		r.must(err)
	}
	info, err := r.Admin.TopicInfo(r.ctx, topic)
	r.must(err)
	for group, c := range map[string]struct {
		start time.Time
		want  []string
	}{
		"between": {at[2], keys(4)[2:]},
		"first":   {at[0], keys(4)},
		"exact":   {info.LastTime, keys(4)[3:]},
	} {
		got := r.newRecord()
		r.subscribe(r.B, topic, group, got.handle, jetbus.SubscribeOptions{From: jetbus.AtTime(c.start)})
		got.wait(r.T, len(c.want))
		r.settled(topic, group, info.LastSeq)
		r.inLine(got, c.want...)
	}
}

func twoGroups(r *run) {
	topic := r.topic("t")
	got := map[string]*record{"g": r.newRecord(), "h": r.newRecord()}
	r.subscribe(r.A, topic, "g", got["g"].handle, jetbus.SubscribeOptions{})
	r.subscribe(r.B, topic, "h", got["h"].handle, jetbus.SubscribeOptions{})
	events := r.publish(topic, keys(20)...)
	for group, c := range got {
		c.wait(r.T, len(events))
		r.settled(topic, group, events[19].Seq)
		c.exactly(r.T, keys(20)...)
	}
}

func twoMembers(r *run) {
	topic := r.topic("t")
	a, b := r.newRecord(), r.newRecord()
	slow := func(ctx context.Context, _ *jetbus.Delivery) error {
		linger(ctx, 2*time.Millisecond)
		return nil
	}
	r.subscribe(r.A, topic, "g", a.then(slow), jetbus.SubscribeOptions{})
	r.subscribe(r.B, topic, "g", b.then(slow), jetbus.SubscribeOptions{})
	events := r.publish(topic, keys(100)...)
	r.settled(topic, "g", events[99].Seq)
	n := 100
	// In real time one member may be done with all before the other's request is there.
	for began := time.Now(); !r.fake && (len(a.keys()) == 0 || len(b.keys()) == 0) && time.Since(began) < awhile(); n += 20 {
		more := r.publish(topic, keys(n + 20)[n:]...)
		r.settled(topic, "g", more[19].Seq)
	}
	union := append(a.keys(), b.keys()...)
	slices.Sort(union)
	if !slices.Equal(union, slices.Sorted(slices.Values(keys(n)))) {
		r.Errorf("the members got %v and %v", a.keys(), b.keys())
	}
	if len(a.keys()) == 0 || len(b.keys()) == 0 {
		r.Errorf("the members do not share: %d and %d events", len(a.keys()), len(b.keys()))
	}
}

func topicsAndFilter(r *run) {
	one, two := r.topic("one"), r.topic("two")
	got := r.newRecord()
	r.subscribe(r.B, one, "g", got.handle, jetbus.SubscribeOptions{Topics: []string{two}, Filter: jetbus.Filter{KeyPrefix: "yes/"}})
	last := r.publish(one, "yes/1", "no/1", "yes/2", "no/2")[3]
	lastTwo := r.publish(two, "no/3", "yes/3", "no/4")[2]
	got.wait(r.T, 3)
	r.settled(one, "g", last.Seq)
	r.settled(two, "g", lastTwo.Seq)
	got.exactly(r.T, "yes/1", "yes/2", "yes/3")
}

func backlogBeside(r *run) {
	one, two := r.topic("one"), r.topic("two")
	const n, most = 150, 10
	behind := 2 * most // what is held already, and what comes while the event is on its way
	if !r.fake {
		behind = 8 * most
	}
	last := r.publish(one, keys(n)...)[n-1]
	slow := func(ctx context.Context, _ *jetbus.Delivery) error {
		linger(ctx, 20*time.Millisecond)
		return ctx.Err()
	}
	all, some := r.newRecord(), r.newRecord()
	o := jetbus.SubscribeOptions{From: jetbus.Earliest(), Topics: []string{two}, MaxInFlight: most}
	r.subscribe(r.A, one, "all", all.then(slow), o)
	o.Filter = jetbus.Filter{KeyPrefix: "urgent"}
	r.subscribe(r.B, one, "some", some.handle, o)
	all.wait(r.T, 2*most)
	urgent := r.publish(two, "urgent")[0]
	before := len(all.list())
	r.settled(two, "all", urgent.Seq)
	if at := slices.Index(all.keys(), "urgent"); at < 0 || at > before+behind {
		r.Errorf("the event of the other topic came as number %d, it was stored when %d had come", at+1, before)
	}
	r.settled(two, "some", urgent.Seq)
	r.settled(one, "some", last.Seq)
	some.exactly(r.T, "urgent")
	r.settled(one, "all", last.Seq)
	all.exactly(r.T, append(keys(n), "urgent")...)
}
