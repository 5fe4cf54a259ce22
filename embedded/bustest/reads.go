package bustest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-63e9a637/jetbus"
)

// readBehaviors are about reading topics without a group.
var readBehaviors = []Behavior{
	{Name: "pages of a topic that grows are complete and do not overlap", Cases: []int{66}, Needs: NeedStore | NeedPower, play: scanPages},
	{Name: "the latest event of each key is found, and only that", Cases: []int{66}, Needs: NeedStore, play: latestByKey},
	{Name: "a reader that follows gets old and new events in order, without gaps", Cases: []int{66}, Needs: NeedStore, play: follow},
	{Name: "a reader that does not follow ends at what there was when it began", Cases: []int{66}, Needs: NeedStore, play: readEnds},
	{Name: "a start at a time in the future gets nothing stored before it", Cases: []int{66, 67}, Needs: NeedStore, play: startInFuture},
	{Name: "what is read and what is delivered say the same of when it was stored", Cases: []int{66}, Needs: NeedStore, play: storedTimes},
	{Name: "a position is one of the topic as it was made, not of one that is made anew", Cases: []int{66}, Needs: NeedStore, play: readAnew},
	{Name: "a reader that follows goes on after a crash of the broker, without gaps", Cases: []int{32, 66}, Needs: NeedStore | NeedRestart, play: followOverCrash},
}

func scanPages(r *run) {
	topic := r.topic("t")
	store := r.A.(jetbus.Store)
	const total, page = 400, 30
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := range total {
			_, err := r.B.Publish(r.ctx, jetbus.Event{Topic: topic, Key: fmt.Sprint(i)})
			r.wantNil(err)
		}
	}()
	defer func() { <-published }()
	var got []jetbus.Event
	after := uint64(0)
	for last := false; ; {
		n := 0
		for e, err := range store.Scan(r.ctx, topic, jetbus.ScanQuery{From: jetbus.AfterSeq(after), Limit: page}) {
			r.must(err)
			got, after = append(got, e), e.Seq
			n++
		}
		if n > page {
			r.Fatalf("a page of %d events", n)
		}
		if n > 0 {
			continue
		}
		if last { // a page behind the last event
			break
		}
		select {
		case <-published:
			last = true
		case <-time.After(time.Millisecond):
		}
	}
	sameKeys(r.T, "pages", got, keys(total))
}

// notStored leaves out of a comparison when an event was stored, which not every bus knows.
var notStored = cmpopts.IgnoreFields(jetbus.Event{}, "Stored")

// storedTimes compares the times of storage of three events, which is none where the bus
// does not know them.
func storedTimes(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{})
	r.publish(topic, keys(3)...)
	delivered := map[uint64]time.Time{}
	for _, d := range got.wait(r.T, 3) {
		delivered[d.Seq] = d.Stored
	}
	var last time.Time
	compare := func(what string, e jetbus.Event, err error) {
		r.must(err)
		if at, ok := delivered[e.Seq]; !ok || !e.Stored.Equal(at) || e.Stored.Before(last) {
			r.Errorf("%s: event %d was stored at %v, and by its delivery at %v; the one before it at %v", what, e.Seq, e.Stored, at, last)
		}
		last = e.Stored
	}
	for e, err := range r.A.(jetbus.Store).Scan(r.ctx, topic, jetbus.ScanQuery{}) {
		compare("scan", e, err)
	}
	last = time.Time{}
	for e, err := range r.A.(jetbus.Reader).Read(r.ctx, []string{topic}, jetbus.ReadOptions{From: jetbus.Earliest()}) {
		compare("read", e, err)
	}
}

func latestByKey(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{KeyInSubject: true})
	store := r.A.(jetbus.Store)
	r.publish(topic, "a", "b", "x.y *>", "a", "b")
	last := r.publish(topic, "a", "x.y *>", "")
	got, err := store.LatestByKey(r.ctx, topic, "a", "x.y *>", "none", "")
	r.must(err)
	if len(got) != 3 || got["a"].Seq != last[0].Seq || got["x.y *>"].Seq != last[1].Seq || got[""].Seq != last[2].Seq {
		r.Errorf("latest: %+v", got)
	}
	_, err = store.LatestByKey(r.ctx, r.topic("plain"), "a")
	wantErr(r.T, "without KeyInSubject", err, jetbus.ErrNeedsKeySubject)
}

// following reads topics until n events came, and calls at before each.
func (r *run) following(topics []string, n int, at func(i int)) []jetbus.Event {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, 10*awhile())
	defer cancel()
	var got []jetbus.Event
	for e, err := range r.A.(jetbus.Reader).Read(ctx, topics, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		if err != nil {
			r.Fatalf("after %d events: %v", len(got), err)
		}
		got = append(got, e)
		if len(got) == n {
			break
		}
		at(len(got))
	}
	return got
}

// startInFuture publishes events before and after the time at which readers and a group start.
func startInFuture(r *run) {
	topic := r.topic("t")
	r.publish(topic, "old")
	at := time.Now().Add(3 * time.Second)
	store, reader := r.A.(jetbus.Store), r.A.(jetbus.Reader)
	for e, err := range store.Scan(r.ctx, topic, jetbus.ScanQuery{From: jetbus.AtTime(at)}) {
		r.Errorf("scan from a time in the future: %v, %v", e, err)
	}
	for e, err := range reader.Read(r.ctx, []string{topic}, jetbus.ReadOptions{From: jetbus.AtTime(at)}) {
		r.Errorf("read from a time in the future: %v, %v", e, err)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	read := make(chan jetbus.Event, 10)
	go func() {
		defer close(read)
		for e, err := range reader.Read(ctx, []string{topic}, jetbus.ReadOptions{From: jetbus.AtTime(at), Follow: true}) {
			if ctx.Err() != nil {
				return
			}
			r.wantNil(err)
			read <- e
		}
	}()
	defer func() {
		cancel()
		for range read { // until the reader has ended
		}
	}()
	early := make(chan struct{})
	go func() {
		defer close(early)
		linger(r.ctx, time.Second)
		_, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: "early"})
		r.wantNil(err)
	}()
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{From: jetbus.AtTime(at)})
	<-early
	r.pause(time.Until(at) + 10*time.Millisecond)
	last := r.publish(topic, "late", "later")[1]
	got.wait(r.T, 2)
	r.settled(topic, "g", last.Seq)
	r.inLine(got, "late", "later")
	for _, want := range []string{"late", "later"} {
		select {
		case e := <-read:
			if e.Key != want {
				r.Errorf("read event %q, want %q", e.Key, want)
			}
		case <-time.After(10 * awhile()):
			r.Fatalf("event %q is not read", want)
		}
	}
	_, err := r.A.Subscribe(r.ctx, topic, "never", got.handle, jetbus.SubscribeOptions{From: jetbus.AtTime(time.Now().Add(time.Hour))})
	wantErr(r.T, "subscribe from a time in the future", err, jetbus.ErrInvalidOption)
	if _, err := r.findGroup(topic, "never"); err == nil {
		r.Error("a failed subscribe left a group behind")
	}
}

func follow(r *run) {
	one, two := r.topic("one"), r.topic("two")
	r.publish(one, keys(3)...)
	got := r.following([]string{one, two}, 300, func(i int) {
		if i == 3 {
			r.publish(two, keys(100)...)
			r.publish(one, keys(200)[3:]...)
		}
	})
	for topic, n := range map[string]int{one: 200, two: 100} {
		of := slices.DeleteFunc(slices.Clone(got), func(e jetbus.Event) bool { return e.Topic != topic })
		sameKeys(r.T, topic, of, keys(n))
	}
	var rest []jetbus.Event
	for e, err := range r.A.(jetbus.Reader).Read(r.ctx, []string{one}, jetbus.ReadOptions{After: map[string]uint64{one: got[1].Seq}}) {
		r.must(err)
		rest = append(rest, e)
	}
	sameKeys(r.T, "read behind a sequence", rest, keys(200)[2:])
	for _, err := range r.A.(jetbus.Reader).Read(r.ctx, []string{one + ".unknown"}, jetbus.ReadOptions{}) {
		wantErr(r.T, "read of an unknown topic", err, jetbus.ErrNoTopic)
	}
}

// readEnds publishes for each event that it reads.
func readEnds(r *run) {
	topics := []string{r.topic("one"), r.topic("two")}
	const n = 10
	for _, topic := range topics {
		r.publish(topic, keys(n)...)
	}
	got := 0
	for e, err := range r.A.(jetbus.Reader).Read(r.ctx, topics, jetbus.ReadOptions{From: jetbus.Earliest()}) {
		r.must(err)
		if got++; got > 10*n {
			break
		}
		r.publish(e.Topic, e.Key)
	}
	if got != 2*n {
		r.Errorf("read %d events, want the %d that were there", got, 2*n)
	}
}

// readAnew goes on at positions in a topic that is deleted and made anew meanwhile.
func readAnew(r *run) {
	topic := r.topic("t")
	created := func() time.Time {
		info, err := r.Admin.TopicInfo(r.ctx, topic)
		r.must(err)
		return info.Created
	}
	read := func(seq uint64, made time.Time, follow bool) (n int, err error) {
		o := jetbus.ReadOptions{After: map[string]uint64{topic: seq}, Created: map[string]time.Time{topic: made}, Follow: follow}
		for _, err := range r.A.(jetbus.Reader).Read(r.ctx, []string{topic}, o) {
			if err != nil {
				return n, err
			}
			if n++; n == 2 {
				break
			}
		}
		return n, nil
	}
	r.publish(topic, keys(3)...)
	was := created()
	for _, follow := range []bool{false, true} {
		if n, err := read(1, was, follow); n != 2 || err != nil {
			r.Errorf("read %d events, %v", n, err)
		}
	}
	r.must(r.Admin.DeleteTopic(r.ctx, topic))
	time.Sleep(2 * time.Millisecond) // to the millisecond
	r.topic("t")
	r.publish(topic, keys(5)...)
	for _, follow := range []bool{false, true} {
		_, err := read(3, was, follow)
		wantErr(r.T, "a position in the topic before", err, jetbus.ErrPositionUnknown)
		if n, err := read(3, created(), follow); n != 2 || err != nil {
			r.Errorf("read %d events of the new one, %v", n, err)
		}
	}
	o := jetbus.ReadOptions{Created: map[string]time.Time{topic + ".other": was}}
	for _, err := range r.A.(jetbus.Reader).Read(r.ctx, []string{topic}, o) {
		wantErr(r.T, "Created of a topic that is not read", err, jetbus.ErrInvalidOption)
	}
}

func followOverCrash(r *run) {
	topic := r.topic("t")
	r.publish(topic, keys(10)...)
	got := r.following([]string{topic}, 40, func(i int) {
		if i%10 == 0 {
			r.must(r.Broker.Kill(r.ctx))
			r.must(r.Broker.Restart(r.ctx))
			r.publish(topic, keys(i + 10)[i:]...)
		}
	})
	sameKeys(r.T, "the reader", got, keys(40))
}
