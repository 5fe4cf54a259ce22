package bustest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// retryBehaviors are about events that one group gets once more.
var retryBehaviors = []Behavior{
	{Name: "a retry goes to one group, beside the events of its topic", Cases: []int{27}, Needs: NeedRetry, play: retried},
	{Name: "a retry that is refused stores nothing", Cases: []int{11, 27}, Needs: NeedRetry, play: badRetries},
	{Name: "a retry fails, waits and is a dead letter as its original would be", Cases: []int{20, 27}, Needs: NeedRetry, play: retryFails},
	{Name: "a replayed event that fails again has another dead letter, and at last is left alone", Cases: []int{27}, play: replayFails},
	{Name: "a replay that is repeated replays nothing twice", Cases: []int{27}, play: replayTwice},
	{Name: "a replay waits for a group without members, and outlasts a move of it", Cases: []int{27, 65}, play: replayWaits},
	{Name: "a group that is deleted has no retries left, and others have", Cases: []int{27, 59}, Needs: NeedRetry, play: retriesDeleted},
	{Name: "what waits among the retries does not take the place of another", Cases: []int{25, 27}, Needs: NeedRetry | NeedFakeTime | NeedPower, play: waitBeside},
	{Name: "received events may be retries", Cases: []int{27}, Needs: NeedRetry | NeedReceive, play: retriesReceived},
}

// retry puts an event before a group again.
func (r *run) retry(group string, e jetbus.Event, name string) jetbus.Receipt {
	r.Helper()
	r.again(e.Seq - 1)
	receipt, err := r.A.(jetbus.Retrier).Retry(r.ctx, group, e, jetbus.RetryOptions{Name: name})
	r.must(err)
	return receipt
}

func retried(r *run) {
	topic := r.topic("t")
	got := map[string]*record{"g": r.newRecord(), "h": r.newRecord()}
	for group, c := range got {
		r.subscribe(r.B, topic, group, c.handle, jetbus.SubscribeOptions{})
	}
	e := r.publish(topic, "k")[0]
	got["g"].wait(r.T, 1)
	if receipt := r.retry("g", e, "once"); receipt.Duplicate || receipt.Event.ID != e.ID {
		r.Errorf("receipt %+v", receipt)
	}
	d := got["g"].wait(r.T, 2)[1]
	if d.ID != e.ID || d.Seq != e.Seq || d.Topic != topic || d.Attempt != 1 || !d.Redelivered || d.ReplayOf != 0 || string(d.Payload) != string(e.Payload) {
		r.Errorf("retry %+v", d.Delivery)
	}
	if receipt := r.retry("g", e, "once"); !receipt.Duplicate {
		r.Errorf("the same again: %+v", receipt)
	}
	if receipt := r.retry("h", e, "once"); receipt.Duplicate {
		r.Errorf("the same name in another group: %+v", receipt)
	}
	r.retry("g", e, "twice")
	got["h"].wait(r.T, 2)
	got["g"].wait(r.T, 3)
	r.pause(time.Second)
	got["g"].exactly(r.T, "k", "k", "k")
	got["h"].exactly(r.T, "k", "k")
	r.settled(topic, "g", e.Seq)
	since, err := r.B.(jetbus.Retrier).Retried(r.ctx, topic, "g", "once", "twice", "never")
	r.must(err)
	if len(since) != 2 || since["once"].IsZero() || since["twice"].Before(since["once"]) {
		r.Errorf("retried %v", since)
	}
	if n := len(r.stored(topic)); n != 1 {
		r.Errorf("the topic has %d events", n)
	}
}

func badRetries(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{})
	retrier := r.B.(jetbus.Retrier)
	e := jetbus.Event{Topic: topic, ID: "i", Seq: 1}
	for what, c := range map[string]struct {
		group string
		e     jetbus.Event
		name  string
		want  error
	}{
		"unknown group": {"nobody", e, "n", jetbus.ErrNoGroup},
		"unknown topic": {"g", jetbus.Event{Topic: topic + ".unknown", Seq: 1}, "n", jetbus.ErrNoTopic},
		"bad group":     {"a b", e, "n", jetbus.ErrInvalidGroup},
		"no name":       {"g", e, "", jetbus.ErrInvalidOption},
		"bad name":      {"g", e, "a.b", jetbus.ErrInvalidOption},
		"upper case":    {"g", e, "S", jetbus.ErrInvalidOption},
		"bad event":     {"g", jetbus.Event{Topic: topic, Seq: 1, Key: "\x00"}, "n", jetbus.ErrInvalidEvent},
		"too large":     {"g", jetbus.Event{Topic: topic, Seq: 1, Payload: make([]byte, r.MaxPayload)}, "n", jetbus.ErrPayloadTooLarge},
	} {
		_, err := retrier.Retry(r.ctx, c.group, c.e, jetbus.RetryOptions{Name: c.name})
		wantErr(r.T, what, err, c.want)
	}
	r.pause(time.Second)
	got.exactly(r.T)
	since, err := retrier.Retried(r.ctx, topic, "g", "n")
	if len(since) != 0 || err != nil {
		r.Errorf("retried %v, %v", since, err)
	}
}

func retryFails(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	o := jetbus.SubscribeOptions{MaxAttempts: 3, Backoff: jetbus.Backoff{Min: 50 * time.Millisecond, Max: 50 * time.Millisecond, NoJitter: true}}
	r.subscribe(r.A, topic, "g", got.then(func(ctx context.Context, d *jetbus.Delivery) error {
		if !d.Redelivered {
			return nil
		}
		return deadly(ctx, d)
	}), o)
	e := r.publish(topic, "bad")[0]
	got.wait(r.T, 1)
	r.retry("g", e, "again")
	all := r.dead(topic, 1)
	calls := got.wait(r.T, 4)
	for i, d := range calls[1:] {
		if d.Attempt != i+1 {
			r.Errorf("call %d of the retry is attempt %d", i+1, d.Attempt)
		}
		if i > 0 {
			r.waited(calls[i].at, d.at, o.Backoff.Min)
		}
	}
	if d := all[0]; len(all) != 1 || len(calls) != 4 || d.Event.Seq != e.Seq || d.Event.ID != e.ID || d.Attempts != 3 || d.Replays != 0 {
		r.Errorf("%d calls, dead letters %+v", len(calls), all)
	}
}

// replay replays dead letters of a topic.
func (r *run) replay(topic string) jetbus.ReplayStats {
	r.Helper()
	stats, err := jetbus.Replay(r.ctx, r.Admin, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: topic}})
	r.must(err)
	return stats
}

func replayFails(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.then(deadly), jetbus.SubscribeOptions{MaxAttempts: 2, Backoff: quick})
	e := r.publish(topic, "bad")[0]
	for n := range jetbus.MaxReplays + 1 {
		all := r.dead(topic, n+1)
		d := all[len(all)-1]
		if len(all) != n+1 || d.Replays != n || d.Attempts != 2 || d.Event.Seq != e.Seq || d.Event.ID != e.ID {
			r.Errorf("after %d replays: %d dead letters, the last %+v", n, len(all), d)
		}
		calls := got.wait(r.T, 2*(n+1))
		var of uint64
		if n > 0 {
			of = all[n-1].Seq
		}
		for i, call := range calls[2*n:] {
			if call.ReplayOf != of || call.Attempt != i+1 {
				r.Errorf("replay %d, call %d: attempt %d of dead letter %d", n, i, call.Attempt, call.ReplayOf)
			}
		}
		stats := r.replay(topic)
		if n < jetbus.MaxReplays && stats.Replayed != 1 || n == jetbus.MaxReplays && (stats.Replayed != 0 || stats.Guarded != 1) || stats.Already != n {
			r.Errorf("replay %d: %+v", n+1, stats)
		}
	}
}

func replayTwice(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.then(func(ctx context.Context, d *jetbus.Delivery) error {
		if d.ReplayOf > 0 {
			return nil
		}
		return deadly(ctx, d)
	}), jetbus.SubscribeOptions{MaxAttempts: 1})
	other := r.newRecord()
	r.subscribe(r.B, topic, "other", other.handle, jetbus.SubscribeOptions{})
	r.publish(topic, "bad1", "good", "bad2")
	r.dead(topic, 2)
	if stats := r.replay(topic); stats.Replayed != 2 || stats.Already != 0 {
		r.Errorf("first: %+v", stats)
	}
	got.wait(r.T, 5)
	if stats := r.replay(topic); stats.Replayed != 0 || stats.Already != 2 {
		r.Errorf("second: %+v", stats)
	}
	r.pause(time.Second)
	r.called(got, map[string]int{"bad1": 2, "bad2": 2, "good": 1})
	r.called(other, map[string]int{"bad1": 1, "bad2": 1, "good": 1})
	if n := r.findDead(topic); n != 2 {
		r.Errorf("%d dead letters", n)
	}
}

func replayWaits(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.then(deadly), jetbus.SubscribeOptions{MaxAttempts: 1})
	e := r.publish(topic, "bad")[0]
	d := r.dead(topic, 1)[0]
	r.settled(topic, "g", e.Seq)
	r.stop(s)
	if stats := r.replay(topic); stats.Replayed != 1 {
		r.Errorf("%+v", stats)
	}
	// Nobody is there who would get what comes again in an election.
	r.must(r.Admin.SetCursor(r.ctx, topic, "g", jetbus.Cursor{}, jetbus.SeekOptions{ToLatest: true, Force: r.inbox != nil}))
	r.pause(time.Second)
	again := r.newRecord()
	r.subscribe(r.B, topic, "g", again.handle, jetbus.SubscribeOptions{})
	if back := again.wait(r.T, 1)[0]; back.ReplayOf != d.Seq || back.Attempt != 1 || back.Seq != e.Seq {
		r.Errorf("replay %+v", back.Delivery)
	}
	r.pause(time.Second)
	again.exactly(r.T, "bad")
}

func retriesDeleted(r *run) {
	topic := r.topic("t")
	groups := []string{"g", "g.more", "G", "h"}
	e := r.publish(topic, "k")[0]
	for _, group := range groups {
		r.stop(r.subscribe(r.A, topic, group, r.newRecord().handle, jetbus.SubscribeOptions{}))
		r.retry(group, e, "n")
	}
	r.must(r.Admin.DeleteGroup(r.ctx, topic, "g"))
	for _, group := range groups {
		got := r.newRecord()
		r.subscribe(r.B, topic, group, got.handle, jetbus.SubscribeOptions{})
		if !r.fake && group != "g" { // a slow machine takes longer than a second
			got.wait(r.T, 1)
		}
		r.pause(time.Second)
		if n := len(got.list()); n != 1 && group != "g" || n != 0 && group == "g" {
			r.Errorf("group %s got %d retries", group, n)
		}
	}
	if receipt := r.retry("g", e, "n"); receipt.Duplicate {
		r.Errorf("the new group has the retry of the old: %+v", receipt)
	}
}

// waitBeside puts off an event and a retry that have the same sequence, the one in its
// topic, the other among the retries.
func waitBeside(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	began := time.Now()
	r.subscribe(r.A, topic, "g", got.then(func(context.Context, *jetbus.Delivery) error {
		if time.Since(began) < time.Minute {
			return jetbus.Snooze(5 * time.Minute)
		}
		return nil
	}), jetbus.SubscribeOptions{})
	events := r.publish(topic, "0", "1", "2")
	for i, e := range events {
		e.Key = fmt.Sprint("again", i)
		r.retry("g", e, fmt.Sprint("n", i))
	}
	got.wait(r.T, 6)
	r.pause(15 * time.Minute) // thrice the wait
	r.called(got, map[string]int{"0": 2, "1": 2, "2": 2, "again0": 2, "again1": 2, "again2": 2})
	r.settled(topic, "g", events[2].Seq)
}

func retriesReceived(r *run) {
	topic := r.topic("t")
	bus := r.B.(jetbus.Receiver)
	o := jetbus.ReceiveOptions{Max: 2, Wait: time.Second, MaxAttempts: 2}
	_, err := bus.Receive(r.ctx, topic, "g", o)
	r.must(err)
	events := r.publish(topic, keys(3)...)
	for i := range 2 {
		r.retry("g", jetbus.Event{Topic: topic, Key: fmt.Sprint("again", i), ID: events[0].ID, Seq: events[0].Seq}, fmt.Sprint("n", i))
	}
	var got []string
	for len(got) < 6 {
		ds, err := bus.Receive(r.ctx, topic, "g", o)
		r.must(err)
		if len(ds) == 0 {
			r.Fatalf("received no more than %v", got)
		}
		for _, d := range ds {
			got = append(got, fmt.Sprint(d.Key, "/", d.Attempt))
			if d.Key == "again0" && d.Attempt == 1 {
				r.must(d.Nack(r.ctx, jetbus.NackOptions{AtOnce: true}))
			} else {
				r.must(d.Ack(r.ctx))
			}
		}
	}
	if all := strings.Join(got, " "); all != "again0/1 again1/1 again0/2 0/1 1/1 2/1" {
		r.Errorf("received %s", all)
	}
	r.settled(topic, "g", events[2].Seq)
}

func longNames(r *run) {
	name := r.prefix + "." + strings.Repeat("long.", 40)
	topic := name[:jetbus.MaxTopicBytes-1] + "z"
	_, err := r.Admin.EnsureTopic(r.ctx, jetbus.TopicConfig{Name: topic})
	r.must(err)
	groups := []string{strings.Repeat("G", jetbus.MaxGroupBytes), strings.Repeat("G", jetbus.MaxGroupBytes-1) + "g", "Team.Billing", "team.billing", "team_billing"}
	got := map[string]*record{}
	for _, group := range groups {
		got[group] = r.newRecord()
		r.subscribe(r.A, topic, group, got[group].then(func(_ context.Context, d *jetbus.Delivery) error {
			if d.ReplayOf > 0 {
				return nil
			}
			return jetbus.Reject(errHandler)
		}), jetbus.SubscribeOptions{})
	}
	e := r.publish(topic, strings.Repeat("k", jetbus.MaxKeyBytes))[0]
	all := r.dead(topic, len(groups))
	seqs := map[string]uint64{}
	for _, d := range all {
		seqs[d.Group] = d.Seq
	}
	for _, group := range groups {
		r.settled(topic, group, e.Seq)
		if seqs[group] == 0 || len(all) != len(groups) {
			r.Errorf("%d dead letters, of group %s at %d", len(all), group, seqs[group])
		}
	}
	_, err = jetbus.Replay(r.ctx, r.Admin, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: topic, Group: groups[2]}})
	r.must(err)
	if again := got[groups[2]].wait(r.T, 2)[1]; again.ReplayOf != seqs[groups[2]] || again.Group != groups[2] || again.ID != e.ID {
		r.Errorf("replay %+v", again.Delivery)
	}
	r.pause(time.Second)
	for _, group := range groups {
		if n := len(got[group].list()); group != groups[2] && n != 1 {
			r.Errorf("group %s got %d events", group, n)
		}
	}
}

func removed(r *run) {
	topic, other := r.topic("t"), r.topic("other")
	events := r.publish(topic, keys(5)...)
	r.publish(other, keys(5)...)
	remover := r.A.(jetbus.Remover)
	n, err := remover.RemoveEvents(r.ctx, topic, events[1].Seq, events[3].Seq, events[1].Seq, 0, 1_000_000)
	r.must(err)
	if n != 2 {
		r.Errorf("removed %d", n)
	}
	sameKeys(r.T, "what is left", r.stored(topic), []string{"0", "2", "4"})
	sameKeys(r.T, "the other topic", r.stored(other), keys(5))
	_, err = remover.RemoveEvents(r.ctx, topic+".unknown", 1)
	wantErr(r.T, "remove from an unknown topic", err, jetbus.ErrNoTopic)

	r.subscribe(r.A, topic, "g", deadly, jetbus.SubscribeOptions{MaxAttempts: 1})
	r.publish(topic, "bad1", "bad2", "bad3")
	all := r.dead(topic, 3)
	letters := jetbus.DeadLetterTopic(topic)
	if n, err = remover.RemoveEvents(r.ctx, letters, all[1].Seq); n != 1 || err != nil {
		r.Errorf("removed %d dead letters: %v", n, err)
	}
	if n, err = remover.RemoveEvents(r.ctx, jetbus.DeadLetterTopic(other), all[0].Seq); n != 0 {
		r.Errorf("removed %d dead letters of another topic: %v", n, err)
	}
	if left := r.dead(topic, 2); len(left) != 2 || left[0].Seq != all[0].Seq || left[1].Seq != all[2].Seq {
		r.Errorf("left are %+v", left)
	}
}
