package bustest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// cursorBehaviors are about positions of groups, and moving them.
var cursorBehaviors = []Behavior{
	{Name: "the cursor is where everything before is settled, not what was settled last", Cases: []int{64}, play: ackFloor},
	{Name: "what a member settled out of order before it died stays settled, and the event before it comes again", Cases: []int{16, 64}, Needs: NeedOpen, play: diesOutOfOrder},
	{Name: "a group moves back and forward while its members run", Cases: []int{65}, play: moveRunning},
	{Name: "a group moves by sequence, id and time, to the beginning and to the end", Cases: []int{65}, play: moveBy},
	{Name: "a group whose members hold events is not moved, and nothing has changed", Cases: []int{65}, play: moveBusy},
	{Name: "a move waits for held events to be settled", Cases: []int{65}, play: moveWaits},
	{Name: "a forced move takes held events away: late words have no effect", Cases: []int{65}, play: moveForced},
	{Name: "a forced move ends the handlers of what it takes away", Cases: []int{65}, play: moveEnds},
	{Name: "the cursor of a group that never subscribed is an error", Cases: []int{11}, play: noGroup},
}

func ackFloor(r *run) {
	topic := r.topic("t")
	first, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: "0", Time: time.Now().Add(-time.Hour), Payload: []byte("0")})
	r.must(err)
	events := append([]jetbus.Event{first.Event}, r.publish(topic, keys(5)[1:]...)...)
	ackTimeout := time.Second
	if !r.fake { // none may end while the others are settled, whatever stands still
		ackTimeout = 15 * time.Second
	}
	got := byHand()
	s := r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{
		From: jetbus.Earliest(), ManualAck: true, Concurrency: 5, AckTimeout: ackTimeout, ShutdownTimeout: time.Second,
	})
	for _, d := range got.wait(r.T, 5) {
		if d.Key != "1" {
			r.mustSettle(d.Ack(r.ctx))
		}
	}
	r.reaches(topic, "g", func(g jetbus.GroupInfo) bool {
		if r.inbox != nil { // what was acknowledged may have come again
			for _, d := range got.list()[5:] {
				if d.Key != "1" {
					_ = d.Ack(r.ctx) // if not, it comes once more
				}
			}
		}
		return g.Held == 1 && g.AckedSeq == events[0].Seq
	}, "event 1 held, and 0 settled")
	c, err := r.B.Cursor(r.ctx, topic, "g")
	r.must(err)
	if c.LastSeq != events[0].Seq || c.LastID != events[0].ID || c.Topic != topic {
		r.Errorf("cursor %+v, want that of event 0, %+v", c, events[0])
	}
	if age := c.LastTime.Sub(events[0].Time); age < 59*time.Minute {
		r.Errorf("the cursor's time is %v behind the publisher's, want when it was stored, an hour later", age)
	}
	r.stop(s)
	again := r.newRecord()
	r.subscribe(r.B, topic, "g", again.handle, jetbus.SubscribeOptions{})
	again.wait(r.T, 1)
	r.settled(topic, "g", events[4].Seq)
	if r.inbox == nil { // else the others may come again, which were settled by hand
		again.exactly(r.T, "1")
	}
	c, err = r.A.Cursor(r.ctx, topic, "g")
	r.must(err)
	if c.LastSeq != events[4].Seq || c.LastID != events[4].ID {
		r.Errorf("cursor %+v, want that of event 4", c)
	}
}

// isBetween reports whether a group is behind the first of two events and before the second. Where
// topics share a stream, others' events may lie between them.
func isBetween(g jetbus.GroupInfo, two []jetbus.Event) bool {
	return g.AckedSeq >= two[0].Seq && g.AckedSeq < two[1].Seq
}

// diesOutOfOrder: a cursor that went by what was settled last would skip what was not.
func diesOutOfOrder(r *run) {
	topic := r.topic("t")
	events := r.publish(topic, keys(6)...)
	bus, die := r.dies()
	o := jetbus.SubscribeOptions{From: jetbus.Earliest(), ManualAck: true, Concurrency: 6, AckTimeout: r.lease(time.Second)}
	got := byHand()
	r.subscribe(bus, topic, "g", got.handle, o)
	for _, d := range got.wait(r.T, 6) {
		if d.Key != "4" {
			r.must(d.Ack(r.ctx))
		}
	}
	r.reaches(topic, "g", func(g jetbus.GroupInfo) bool { return g.Held == 1 && isBetween(g, events[3:5]) }, "event 4 held, and 0 to 3 settled")
	die()
	again := r.newRecord()
	r.subscribe(r.B, topic, "g", again.handle, jetbus.SubscribeOptions{})
	again.wait(r.T, 1)
	r.settled(topic, "g", events[5].Seq)
	again.exactly(r.T, "4")
	c, err := r.B.Cursor(r.ctx, topic, "g")
	r.must(err)
	if c.LastSeq != events[5].Seq || c.LastID != events[5].ID {
		r.Errorf("cursor %+v, want that of event 5", c)
	}
}

func moveRunning(r *run) {
	topic := r.topic("t")
	events := r.publish(topic, keys(6)...)
	got := r.newRecord()
	a := r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{From: jetbus.Earliest()})
	b := r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{From: jetbus.Earliest()})
	got.wait(r.T, 6)
	r.settled(topic, "g", events[5].Seq)
	r.again(events[2].Seq)
	r.must(r.move(r.A, topic, jetbus.Cursor{LastSeq: events[2].Seq}, r.moving()))
	all := got.wait(r.T, 9)
	r.settled(topic, "g", events[5].Seq)
	var back []string
	for _, d := range all[6:] {
		back = append(back, d.Key)
		if d.Attempt != 1 {
			r.Errorf("event %s after the move is attempt %d", d.Key, d.Attempt)
		}
	}
	slices.Sort(back)
	if !slices.Equal(back, []string{"3", "4", "5"}) {
		r.Errorf("after moving back: %v", back)
	}
	o := r.moving()
	if r.inbox == nil { // else somebody has to be there who gets what comes again
		o.Wait = time.Second
		a.Pause()
		b.Pause()
	}
	r.pause(50 * time.Millisecond)
	last := r.publish(topic, "6", "7", "8", "9")
	r.must(r.move(r.Admin, topic, jetbus.Cursor{LastSeq: last[2].Seq}, o))
	a.Resume()
	b.Resume()
	r.settled(topic, "g", last[3].Seq)
	if n := got.keys(); !slices.Contains(n, "9") || a.Err() != nil || b.Err() != nil {
		r.Errorf("after moving forward: %v; errors %v, %v", n, a.Err(), b.Err())
	}
}

func moveBy(r *run) {
	topic := r.topic("t")
	var events []jetbus.Event
	var at []time.Time // between an event and the next: it is stored later than its publisher says
	for _, key := range keys(5) {
		events = append(events, r.publish(topic, key)...)
		r.pause(10 * time.Millisecond)
		at = append(at, time.Now())
		r.pause(10 * time.Millisecond)
	}
	r.stop(r.subscribe(r.A, topic, "g", r.newRecord().handle, jetbus.SubscribeOptions{}))
	for _, c := range []struct {
		what   string
		cursor jetbus.Cursor
		o      jetbus.SeekOptions
		want   []string
	}{
		{"the beginning", jetbus.Cursor{}, jetbus.SeekOptions{}, keys(5)},
		{"a sequence", jetbus.Cursor{Topic: topic, LastSeq: events[1].Seq}, jetbus.SeekOptions{}, keys(5)[2:]},
		{"an id", jetbus.Cursor{LastID: events[2].ID}, jetbus.SeekOptions{}, keys(5)[3:]},
		{"a time", jetbus.Cursor{LastTime: at[2]}, jetbus.SeekOptions{}, keys(5)[3:]},
		{"a sequence before an id", jetbus.Cursor{LastSeq: events[0].Seq, LastID: events[3].ID}, jetbus.SeekOptions{}, keys(5)[1:]},
		{"the end", jetbus.Cursor{}, jetbus.SeekOptions{ToLatest: true}, nil},
	} {
		r.again(0)
		c.o.Force = r.inbox != nil // nobody is there who would get what may come again
		if err := r.B.SetCursor(r.ctx, topic, "g", c.cursor, c.o); err != nil {
			r.Errorf("move to %s: %v", c.what, err)
			continue
		}
		r.has(topic, func(g jetbus.GroupInfo) bool { return int(g.Pending) == len(c.want) && !g.Paused },
			fmt.Sprintf("%d pending at %s", len(c.want), c.what))
		got := r.newRecord()
		s := r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{})
		got.wait(r.T, len(c.want))
		r.settled(topic, "g", events[4].Seq)
		r.stop(s)
		r.inLine(got, c.want...)
		if r.Failed() {
			r.Fatalf("moved to %s", c.what)
		}
	}
	err := r.A.SetCursor(r.ctx, topic, "g", jetbus.Cursor{LastID: jetbus.NewID()}, jetbus.SeekOptions{})
	wantErr(r.T, "move to an unknown id", err, jetbus.ErrPositionUnknown)
	if g := r.group(topic, "g"); g.Pending != 0 || g.AckedSeq < events[4].Seq {
		r.Errorf("a failed move moved: %+v", g)
	}
}

func moveBusy(r *run) {
	topic := r.topic("t")
	events := r.publish(topic, keys(3)...)
	g := r.newGate()
	r.subscribe(r.A, topic, "g", g.handle, jetbus.SubscribeOptions{From: jetbus.Earliest()})
	receive(r.T, "the handler's start", g.entered)
	before := r.group(topic, "g")
	same := func(held int) bool { return held == before.Held || r.inbox != nil } // what is given back in an election may be taken again
	began := time.Now()
	err := r.B.SetCursor(r.ctx, topic, "g", jetbus.Cursor{}, jetbus.SeekOptions{Wait: 500 * time.Millisecond})
	r.waited(began, time.Now(), 500*time.Millisecond)
	wantErr(r.T, "move while an event is held", err, jetbus.ErrGroupBusy)
	if busy, ok := errors.AsType[*jetbus.GroupBusyError](err); !ok || busy.Held == 0 || !same(busy.Held) || busy.Group != "g" || busy.Topic != topic {
		r.Errorf("error %#v", err)
	}
	if after := r.group(topic, "g"); after.Paused || after.AckedSeq != before.AckedSeq || !same(after.Held) {
		r.Errorf("the refused move changed %+v to %+v", before, after)
	}
	close(g.leave)
	r.settled(topic, "g", events[2].Seq)
	if n := len(g.entered); n < 2 || n > 2 && r.inbox == nil {
		r.Errorf("%d events after the first", n)
	}
}

func moveWaits(r *run) {
	topic := r.topic("t")
	events := r.publish(topic, keys(3)...)
	g := r.newGate()
	r.subscribe(r.A, topic, "g", g.handle, jetbus.SubscribeOptions{From: jetbus.Earliest()})
	receive(r.T, "the handler's start", g.entered)
	moved := make(chan error, 1)
	o := r.moving()
	o.Wait = max(o.Wait, 10*time.Second)
	go func() { moved <- r.move(r.B, topic, jetbus.Cursor{LastSeq: events[1].Seq}, o) }()
	r.pause(500 * time.Millisecond)
	if len(moved) > 0 {
		r.Fatalf("the move did not wait: %v", <-moved)
	}
	close(g.leave)
	if r.inbox == nil {
		r.must(receive(r.T, "the move", moved))
	} else { // it may take several tries
		r.must(<-moved)
	}
	d := receive(r.T, "the event behind the cursor", g.entered)
	for d.Key != "2" && r.inbox != nil { // one before it came again in an election, or between two tries
		d = receive(r.T, "the event behind the cursor", g.entered)
	}
	if d.Key != "2" {
		r.Errorf("after the move came %s", d.Key)
	}
	r.settled(topic, "g", events[2].Seq)
	r.noMore(g)
}

func moveForced(r *run) {
	topic := r.topic("t")
	got := byHand()
	s := r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{ManualAck: true, MaxInFlight: 1, ShutdownTimeout: time.Millisecond})
	e := r.publish(topic, "k")[0]
	d := got.wait(r.T, 1)[0]
	s.Pause()
	r.must(r.B.SetCursor(r.ctx, topic, "g", jetbus.Cursor{}, jetbus.SeekOptions{Force: true}))
	g := r.newGate()
	r.subscribe(r.B, topic, "g", g.handle, jetbus.SubscribeOptions{})
	receive(r.T, "the event after the move", g.entered)
	_ = d.Ack(r.ctx) // it may be sent; what counts is that the server does not take it
	r.pause(100 * time.Millisecond)
	r.has(topic, func(g jetbus.GroupInfo) bool { return g.Held == 1 && g.AckedSeq < e.Seq }, "1 held, which no ack from before the move has settled")
	close(g.leave)
	r.settled(topic, "g", e.Seq)
	r.noMore(g)
}

func moveEnds(r *run) {
	topic := r.topic("t")
	g := r.newGate()
	s := r.subscribe(r.A, topic, "g", g.handle, jetbus.SubscribeOptions{AckTimeout: time.Second})
	e := r.publish(topic, "k")[0]
	receive(r.T, "the handler's start", g.entered)
	s.Pause()
	r.must(r.B.SetCursor(r.ctx, topic, "g", jetbus.Cursor{}, jetbus.SeekOptions{Force: true}))
	moved := time.Now()
	wantErr(r.T, "cause of the handler's end", receive(r.T, "the handler's end", g.ended), jetbus.ErrLeaseExpired)
	if d := time.Since(moved); r.fake && d > time.Second {
		r.Errorf("it ran on for %v", d)
	}
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{AckTimeout: time.Second})
	if d := got.wait(r.T, 1)[0]; d.Attempt != 1 && r.inbox == nil { // else its lease, which is short, may be lost before
		r.Errorf("attempt %d", d.Attempt)
	}
	r.settled(topic, "g", e.Seq)
}

func noGroup(r *run) {
	topic := r.topic("t")
	_, err := r.A.Cursor(r.ctx, topic, "nobody")
	wantErr(r.T, "cursor", err, jetbus.ErrNoGroup)
	err = r.A.SetCursor(r.ctx, topic, "nobody", jetbus.Cursor{}, jetbus.SeekOptions{})
	wantErr(r.T, "set cursor", err, jetbus.ErrNoGroup)
	unknown := topic + ".unknown"
	for what, call := range map[string]func(context.Context) error{
		"publish": func(ctx context.Context) error { _, err := r.A.Publish(ctx, jetbus.Event{Topic: unknown}); return err },
		"subscribe": func(ctx context.Context) error {
			_, err := r.A.Subscribe(ctx, unknown, "g", r.newRecord().handle, jetbus.SubscribeOptions{})
			return err
		},
		"cursor": func(ctx context.Context) error { _, err := r.A.Cursor(ctx, unknown, "g"); return err },
		"set cursor": func(ctx context.Context) error {
			return r.A.SetCursor(ctx, unknown, "g", jetbus.Cursor{}, jetbus.SeekOptions{})
		},
	} {
		began := time.Now()
		wantErr(r.T, what+" of an unknown topic", call(r.ctx), jetbus.ErrNoTopic)
		r.waited(began, time.Now(), 0)
	}
}
