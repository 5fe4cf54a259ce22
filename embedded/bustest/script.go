package bustest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
)

// Scripts tests that a bus agrees with a model of it in memory, whatever is done
// and in whatever order: events are published, received and settled in every way, leases
// run out, processes die, the broker restarts and crashes, the group is moved, dead
// letters are replayed. Scripts are drawn by rapid, as many as its flag -rapid.checks says,
// each in a bubble and with a subject of its own; one that fails is made
// shorter and kept in testdata for the runs to come.
//
// The subject must have Open and Broker. Of o.Without only NeedRestart counts.
func Scripts(t *testing.T, o Options, open func(t *testing.T) Subject) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		var failure any
		Run(t, func(t *testing.T) {
			s := &script{run: &run{T: t, Subject: open(t), ctx: t.Context(), prefix: "model", fake: true}, t: rt}
			defer func() {
				failure = recover() // how rapid ends a script
				for _, p := range s.gone {
					_ = p.bus.Close(context.Background()) // its connection is gone
				}
			}()
			s.play(o.Without&NeedRestart == 0)
		})
		switch {
		case failure == nil:
		case fmt.Sprintf("%T", failure) == "rapid.invalidData": // by the line, rapid sees that this is no failure of the script
			panic(failure)
		default:
			panic(failure)
		}
	})
}

// script does to a bus and to the model what is drawn, and compares them.
type script struct {
	*run
	t      *rapid.T
	topic  string
	m      modelBus
	max    int // attempts
	procs  [2]*process
	gone   []*process
	leases []*heldLease
}

// process is one of the bus's instances. It can be killed.
type process struct {
	bus ClosingBus
	nc  *nats.Conn
}

// heldLease is a delivery and what the model knows of it.
type heldLease struct {
	*modelLease
	d *jetbus.Delivery
	p *process
}

const scriptGroup = "g"

func (s *script) play(restarts bool) {
	s.topic = s.run.topic("t")
	s.m.names = map[string]bool{}
	s.max = 3
	for i := range s.procs {
		s.procs[i] = s.open()
	}
	s.receive(s.procs[0], 1) // creates the group
	steps := map[string]func(){
		"publish": s.publish, "duplicate": s.duplicate, "receive": s.receiveSome, "receive more": s.receiveSome,
		"ack": s.ack, "nack": s.nack, "snooze": s.snooze, "reject": s.reject, "extend": s.extend, "give back": s.giveBack,
		"pass": s.pass, "kill": s.kill, "leave": s.leave, "move": s.move, "replay": s.replayOne, "retry": s.retryOne,
		"attempts": func() { s.max = rapid.SampledFrom([]int{1, 2, 3, -1}).Draw(s.t, "max attempts") },
	}
	names := []string{
		"publish", "receive", "nack", "receive more", "ack", "pass", "snooze", "reject", "extend", "give back", "duplicate",
		"kill", "leave", "move", "replay", "retry", "attempts",
	}
	if restarts {
		steps["restart"] = func() { s.restart(s.Broker.Restart) }
		steps["crash"] = func() { s.restart(s.Broker.Kill, s.Broker.Restart) }
		names = append(names, "restart", "crash")
	}
	s.publish()
	s.clear()
	s.receive(s.procs[0], 100)
	for range rapid.IntRange(1, 25).Draw(s.t, "steps") {
		s.clear()
		steps[rapid.SampledFrom(names).Draw(s.t, "step")]()
		s.compare()
	}
	s.finish()
}

// open starts a process.
func (s *script) open() *process {
	nc, err := s.Broker.Connect()
	s.ok("connect", err)
	s.Cleanup(nc.Close)
	bus, err := s.Open(s.ctx, nc)
	s.ok("open", err)
	p := &process{bus, nc}
	s.gone = append(s.gone, p)
	return p
}

// ok ends the script, and not the test, where something fails that may not.
func (s *script) ok(what string, err error) {
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

// wait lets time pass, for the model too.
func (s *script) wait(d time.Duration) {
	linger(s.ctx, d)
	now := time.Now()
	for _, l := range s.leases {
		if !l.settled && !l.lost && !now.Before(l.until.Add(-modelTimeout/10+modelSlack/2)) {
			l.lost = true
			if !l.stale {
				l.item.failed++
				l.item.err = jetbus.ErrLeaseExpired.Error()
			}
		}
	}
}

// clear waits while it depends on the tick of a clock what would happen.
func (s *script) clear() {
	for again := true; again; {
		again = false
		now := time.Now()
		for _, l := range s.leases {
			early := l.until.Add(-modelTimeout / 10)
			if !l.settled && !l.lost && !now.Before(early.Add(-modelSlack/2)) && now.Before(early.Add(modelSlack)) {
				again = true
			}
		}
		for _, i := range s.m.items {
			if s.max > 0 && i.failed >= s.max && !now.Before(i.from) && now.Before(i.sure) {
				again = true
			}
		}
		if again {
			s.wait(time.Second / 2)
		}
	}
	s.wait(time.Millisecond) // what is not answered reaches the server
}

func (s *script) pass() {
	s.wait(rapid.SampledFrom([]time.Duration{time.Second, 10 * time.Second, 40 * time.Second, modelWindow + 10*time.Second}).Draw(s.t, "time"))
}

func (s *script) anyProcess() *process {
	return s.procs[rapid.IntRange(0, len(s.procs)-1).Draw(s.t, "process")]
}

func (s *script) publish() {
	for range rapid.IntRange(1, 3).Draw(s.t, "events") {
		s.publishAs(fmt.Sprint("e", len(s.m.events)+1))
	}
}

func (s *script) duplicate() {
	if n := len(s.m.events); n > 0 {
		s.publishAs(s.m.events[rapid.IntRange(0, n-1).Draw(s.t, "event")].id)
	}
}

func (s *script) publishAs(id string) {
	key := rapid.SampledFrom([]string{"", "a", "b"}).Draw(s.t, "key")
	now := time.Now()
	seq, duplicate, known := s.m.publish(id, key, now)
	if !known {
		return
	}
	receipt, err := s.anyProcess().bus.Publish(s.ctx, jetbus.Event{Topic: s.topic, ID: id, Key: key})
	s.ok("publish", err)
	if receipt.Event.Seq != seq || receipt.Duplicate != duplicate {
		s.t.Fatalf("published %s at %d, duplicate %v; want %d, %v", id, receipt.Event.Seq, receipt.Duplicate, seq, duplicate)
	}
}

func (s *script) receiveSome() { s.receive(s.anyProcess(), rapid.IntRange(1, 4).Draw(s.t, "max")) }

func (s *script) receive(p *process, limit int) {
	now := time.Now()
	sure, maybe, hopeless := s.m.available(now, s.max)
	if hopeless { // which of those are given up first cannot be seen
		limit = 100
	}
	ds, err := p.bus.(jetbus.Receiver).Receive(s.ctx, s.topic, scriptGroup, jetbus.ReceiveOptions{
		From: jetbus.Earliest(), Max: limit, Wait: -1, AckTimeout: modelTimeout, MaxAttempts: s.max,
	})
	s.ok("receive", err)
	if hopeless {
		for _, i := range slices.Clone(s.m.items) {
			if s.max > 0 && i.failed >= s.max && !now.Before(i.sure) {
				s.m.bury(i, jetbus.DeadMaxAttempts, now)
				sure--
			}
		}
	}
	if len(ds) < min(sure, limit) || len(ds) > min(sure+maybe, limit) {
		s.t.Fatalf("received %d of at most %d, where %d must and %d more may come; %s", len(ds), limit, sure, maybe, s.m.String())
	}
	for _, d := range ds {
		mark := string(d.Payload)
		i := s.m.find(d, mark, now)
		if i == nil {
			s.t.Fatalf("received event %d, replay of %d, mark %q, attempt %d, which is not due; %s", d.Seq, d.ReplayOf, mark, d.Attempt, s.m.String())
		}
		if d.Attempt != i.failed+1 || d.MaxAttempts != s.max || d.Redelivered != (i.delivered || i.retry) || d.ID != s.m.events[i.seq-1].id || d.Key != s.m.events[i.seq-1].key {
			s.t.Fatalf("received %s as attempt %d of %d, redelivered %v; want %+v", d.ID, d.Attempt, d.MaxAttempts, d.Redelivered, *i)
		}
		s.leases = append(s.leases, &heldLease{s.m.deliver(i, s.max, now), d, p})
	}
}

// settle does something with a delivery that is drawn, and says whether it had
// an effect; an error that the model does not expect ends the script.
func (s *script) settle(what string, call func(d *jetbus.Delivery) error) *heldLease {
	if len(s.leases) == 0 {
		return nil
	}
	l := s.leases[rapid.IntRange(0, len(s.leases)-1).Draw(s.t, "lease")]
	if l.stale { // what comes of it is for another lease to see: nothing
		_ = l.d.Ack(s.ctx)
		return nil
	}
	var want error
	switch {
	case l.settled:
		want = jetbus.ErrAlreadySettled
	case l.lost:
		want = jetbus.ErrLeaseExpired
	}
	if err := call(l.d); !errors.Is(err, want) || want == nil && err != nil {
		s.t.Fatalf("%s of %s: %v, want %v", what, l.d.ID, err, want)
	}
	if want != nil {
		return nil
	}
	l.settled = what != "extend"
	return l
}

func (s *script) ack() {
	if l := s.settle("ack", func(d *jetbus.Delivery) error { return d.Ack(s.ctx) }); l != nil {
		s.m.done(l.item)
	}
}

func (s *script) nack() {
	delay := rapid.SampledFrom([]time.Duration{-1, 15 * time.Second, 75 * time.Second, 0}).Draw(s.t, "delay")
	l := s.settle("nack", func(d *jetbus.Delivery) error {
		return d.Nack(s.ctx, jetbus.NackOptions{Delay: max(delay, 0), AtOnce: delay < 0, Reason: fmt.Sprint("attempt ", d.Attempt)})
	})
	if l == nil {
		return
	}
	s.m.fail(l.modelLease, fmt.Sprint("attempt ", l.d.Attempt), max(delay, 0), time.Now())
	if delay == 0 { // at any time up to the backoff's
		l.item.sure = l.item.sure.Add(time.Second<<(l.item.failed-1) + modelSlack)
	}
}

func (s *script) snooze() {
	delay := rapid.SampledFrom([]time.Duration{time.Second, 15 * time.Second, 90 * time.Second}).Draw(s.t, "delay")
	if l := s.settle("snooze", func(d *jetbus.Delivery) error { return d.Snooze(s.ctx, delay) }); l != nil {
		s.m.putOff(l.item, delay, time.Now())
	}
}

func (s *script) reject() {
	if l := s.settle("reject", func(d *jetbus.Delivery) error { return d.Reject(s.ctx, "never") }); l != nil {
		l.item.failed++
		l.item.err = "never"
		s.m.bury(l.item, jetbus.DeadRejected, time.Now())
	}
}

func (s *script) extend() {
	now := time.Now()
	if l := s.settle("extend", func(d *jetbus.Delivery) error { return d.Extend(s.ctx, 0) }); l != nil {
		s.m.extend(l.modelLease, now)
	}
}

func (s *script) giveBack() {
	if l := s.settle("give back", func(d *jetbus.Delivery) error { return d.GiveBack(s.ctx) }); l != nil {
		s.m.putOff(l.item, 0, time.Now())
	}
}

// replace ends a process and starts another in its place. Its leases end with it.
func (s *script) replace(end func(p *process), lease func(l *heldLease)) {
	n := rapid.IntRange(0, len(s.procs)-1).Draw(s.t, "process")
	old := s.procs[n]
	end(old)
	var rest []*heldLease
	for _, l := range s.leases {
		switch {
		case l.p != old:
			rest = append(rest, l)
		case !l.settled && !l.lost && !l.stale:
			lease(l)
		}
	}
	s.leases = rest
	s.procs[n] = s.open()
}

// kill ends a process without a word: what it held comes back when the lease is over.
func (s *script) kill() {
	s.replace(func(p *process) { kill(p.nc) }, func(*heldLease) {})
}

// leave ends a process as it should: what it held is free at once.
func (s *script) leave() {
	s.replace(func(p *process) { s.ok("close", p.bus.Close(s.ctx)) }, func(l *heldLease) { s.m.putOff(l.item, 0, time.Now()) })
}

// restart ends the broker and starts it again.
func (s *script) restart(calls ...func(context.Context) error) {
	extended := map[*modelItem]bool{}
	for _, l := range s.leases {
		if !l.settled && !l.lost && !l.stale {
			s.ok("extend", l.d.Extend(s.ctx, 0))
			s.m.extend(l.modelLease, time.Now())
			extended[l.item] = true
		}
	}
	s.wait(time.Second) // it writes what it knows of groups a little later
	for _, call := range calls {
		s.ok("restart", call(s.ctx))
	}
	for _, p := range s.procs {
		_, err := p.bus.Cursor(s.ctx, s.topic, scriptGroup)
		s.ok("cursor after a restart", err)
	}
	s.m.restarted(time.Now(), extended)
}

func (s *script) move() {
	to := uint64(rapid.IntRange(0, len(s.m.events)).Draw(s.t, "position"))
	if s.m.ambiguous(to) {
		return
	}
	o := jetbus.SeekOptions{Wait: time.Second, Force: rapid.Bool().Draw(s.t, "force")}
	busy := s.m.held() > 0 && !o.Force
	err := s.anyProcess().bus.SetCursor(s.ctx, s.topic, scriptGroup, jetbus.Cursor{LastSeq: to, Topic: s.topic}, o)
	s.wait(0)
	if errors.Is(err, jetbus.ErrGroupBusy) != busy || err != nil && !busy {
		s.t.Fatalf("move to %d, force %v: %v; held are %d", to, o.Force, err, s.m.held())
	}
	if busy {
		return
	}
	s.m.move(to)
	for _, l := range s.leases {
		if !l.item.retry {
			l.stale = true
		}
	}
}

func (s *script) replayOne() {
	if len(s.m.dead) == 0 {
		return
	}
	n := rapid.IntRange(0, len(s.m.dead)-1).Draw(s.t, "dead letter")
	d := s.m.dead[n]
	if (n+len(s.m.dead))%2 == 0 { // all, and those that other replays of all know of are not looked at again
		s.replay(jetbus.DeadLetterQuery{Topic: s.topic}, s.m.dead...)
		return
	}
	s.replay(jetbus.DeadLetterQuery{Topic: s.topic, Seqs: []uint64{d.at}}, d)
}

// replay replays what a query selects.
func (s *script) replay(q jetbus.DeadLetterQuery, selected ...*modelDead) {
	want := jetbus.ReplayStats{Matched: len(selected)}
	selected = slices.Clone(selected)
	slices.SortFunc(selected, func(a, b *modelDead) int { return cmp.Compare(a.at, b.at) })
	for _, d := range selected {
		switch {
		case d.replayed:
			want.Already++
		case d.replays >= jetbus.MaxReplays:
			want.Guarded++
		default:
			want.Replayed++
			want.LastSeq = d.at
			d.replayed = true
			s.m.retry(modelItem{seq: d.seq, mark: d.mark, replayOf: d.at, replays: d.replays + 1})
		}
	}
	stats, err := jetbus.Replay(s.ctx, s.Admin, jetbus.ReplayOptions{DeadLetterQuery: q})
	s.ok("replay", err)
	if stats.Read = 0; stats != want {
		s.t.Fatalf("replay of %+v: %+v, want %+v", q, stats, want)
	}
}

func (s *script) retryOne() {
	if len(s.m.events) == 0 {
		return
	}
	seq := uint64(rapid.IntRange(1, len(s.m.events)).Draw(s.t, "event"))
	e := s.m.events[seq-1]
	name := rapid.SampledFrom([]string{"r1", "r2", "r3", "r4"}).Draw(s.t, "name")
	receipt, err := s.anyProcess().bus.(jetbus.Retrier).Retry(s.ctx, scriptGroup, jetbus.Event{
		Topic: s.topic, ID: e.id, Key: e.key, Seq: seq, Payload: []byte(name),
	}, jetbus.RetryOptions{Name: name})
	s.ok("retry", err)
	if receipt.Duplicate != s.m.names[name] {
		s.t.Fatalf("retry %s: %+v", name, receipt)
	}
	if !receipt.Duplicate {
		s.m.names[name] = true
		s.m.retry(modelItem{seq: seq, mark: name})
	}
}

// compare checks what the server has against what the model has.
func (s *script) compare() {
	s.wait(time.Millisecond)
	g, err := s.findGroup(s.topic, scriptGroup)
	s.ok("group", err)
	c, err := s.procs[0].bus.Cursor(s.ctx, s.topic, scriptGroup)
	s.ok("cursor", err)
	if g.Held != s.m.held() || int(g.Pending) != s.m.pending() || c.LastSeq != s.m.settled() {
		s.t.Fatalf("the server has %+v, cursor %d; want %d held, %d pending, settled up to %d", g, c.LastSeq, s.m.held(), s.m.pending(), s.m.settled())
	}
	s.compareDead()
}

func (s *script) compareDead() {
	all := slices.Clone(s.m.dead)
	for d, err := range jetbus.DeadLetters(s.ctx, s.Admin, jetbus.DeadLetterQuery{Topic: s.topic}) {
		if errors.Is(err, jetbus.ErrNoDeadLetters) {
			break
		}
		s.ok("dead letters", err)
		n := slices.IndexFunc(all, func(w *modelDead) bool {
			return w.seq == d.Event.Seq && w.replays == d.Replays && w.replayOf == d.ReplayOf
		})
		if n < 0 {
			s.t.Fatalf("there is a dead letter too many, or twice: %+v", d)
		}
		w := all[n]
		all = slices.Delete(all, n, n+1)
		if !w.agrees(&d) || d.Group != scriptGroup || d.Event.ID != s.m.events[w.seq-1].id || d.Replayed.IsZero() == w.replayed {
			s.t.Fatalf("dead letter %+v, want %+v", d, *w)
		}
	}
	if len(all) > 0 {
		s.t.Fatalf("%d dead letters are missing: %+v", len(all), *all[0])
	}
}

// finish settles everything that is left.
func (s *script) finish() {
	for n := 0; len(s.m.items) > 0; n++ {
		if n > 10 {
			s.t.Fatalf("%d events are left: %+v", len(s.m.items), *s.m.items[0])
		}
		s.wait(2 * time.Minute)
		s.clear()
		before := len(s.leases)
		s.receive(s.procs[0], 100)
		for _, l := range s.leases[before:] {
			s.ok("ack", l.d.Ack(s.ctx))
			l.settled = true
			s.m.done(l.item)
		}
		s.compare()
	}
}
