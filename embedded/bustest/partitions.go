package bustest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// partitionBehaviors are about topics that spread their events over partitions. Those
// that grow have no Retention: see [NeedAging].
var partitionBehaviors = []Behavior{
	{Name: "an event of a topic with partitions lies in that of its key, however it is published and read", Cases: []int{36, 40}, Needs: NeedBatch | NeedStore | NeedPartitions, play: inPartitions},
	{Name: "a declaration of partitions that a topic has or had changes nothing, and any other is a conflict", Cases: []int{70}, Needs: NeedTopics | NeedPartitions, play: partitionDrift},
	{Name: "processes that give a topic more partitions at once all succeed, and it got them once", Cases: []int{69}, Needs: NeedPartitions, play: racingGrowth},
	{Name: "a topic that gets more partitions under load loses nothing, stores nothing twice and keeps every publisher's order", Cases: []int{30, 40}, Needs: NeedBatch | NeedPartitions | NeedPower, play: growUnderLoad},
	{Name: "what a key's last event is, and a condition on it, hold across partitions that came later", Cases: []int{38}, Needs: NeedStore | NeedPartitions, play: keysAcrossGenerations},
}

// partitionOf is where a key belongs among n partitions.
func (r *run) partitionOf(key string, n int) int {
	r.Helper()
	p, err := jetbus.PartitionOf(key, n)
	r.must(err)
	return p
}

// spread is how many partitions the topics have in whose places inPlace looks.
const spread = 7

// inPlace checks that each event lies in the partition of its key.
func (r *run) inPlace(what string, events []jetbus.Event) {
	r.Helper()
	for _, e := range events {
		key := e.Key
		if key == "" {
			key = e.ID
		}
		if want := r.partitionOf(key, spread); e.Partition != want {
			r.Errorf("%s: event %s of key %q is in partition %d, want %d", what, e.ID, e.Key, e.Partition, want)
		}
	}
}

func inPartitions(r *run) {
	for _, keyed := range []bool{false, true} {
		topic := r.declare(fmt.Sprint("keyed-", keyed), jetbus.TopicConfig{Partitions: spread, KeyInSubject: keyed})
		got := r.newRecord()
		r.subscribe(r.B, topic, "plain", got.handle, jetbus.SubscribeOptions{})
		all := append(keys(30), "a.b*c>d", "P1", "S", "\u00fcml\u00e4ut")
		published := r.publish(topic, all[:10]...)
		receipts, err := r.A.(jetbus.Batcher).PublishBatch(r.ctx, batch(topic, all[10:]...), jetbus.BatchOptions{})
		r.must(err)
		for _, receipt := range receipts {
			published = append(published, receipt.Event)
		}
		if !keyed { // else they are those of one key
			receipt, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic})
			r.must(err)
			published, all = append(published, receipt.Event), append(all, "")
		}
		r.inPlace("receipts", published)
		stored := r.stored(topic)
		sameKeys(r.T, "the topic", stored, all)
		r.inPlace("scan", stored)
		var read []jetbus.Event
		for e, err := range r.B.(jetbus.Reader).Read(r.ctx, []string{topic}, jetbus.ReadOptions{}) {
			r.must(err)
			read = append(read, e)
		}
		sameKeys(r.T, "what is read", read, all)
		r.inPlace("read", read)
		var delivered []jetbus.Event
		for _, d := range got.wait(r.T, len(all)) {
			delivered = append(delivered, d.Event)
		}
		r.inPlace("deliveries", delivered)
	}
}

func partitionDrift(r *run) {
	c := jetbus.TopicConfig{Name: r.prefix + ".t", Partitions: 4, Retention: -1}
	topics := r.A.(jetbus.Topics)
	made, err := topics.EnsureTopic(r.ctx, c)
	r.must(err)
	_, err = r.B.(jetbus.Partitions).Repartition(r.ctx, c.Name, 6)
	r.must(err)
	want := []jetbus.Generation{{Generation: 1, Partitions: 4, Stream: made.Stream}, {Generation: 2, Partitions: 6, Stream: made.Stream}}
	for _, n := range []int{0, 4, 6} {
		c.Partitions = n
		info, err := topics.EnsureTopic(r.ctx, c)
		r.must(err)
		if info.Config.Partitions != 6 || fmt.Sprint(info.Generations) != fmt.Sprint(want) {
			r.Errorf("declared with %d: %+v", n, info)
		}
	}
	for _, n := range []int{5, 8} {
		c.Partitions = n
		_, err := topics.EnsureTopic(r.ctx, c)
		wantErr(r.T, fmt.Sprint("declaring ", n, " partitions"), err, jetbus.ErrConflict)
	}
	plain := r.topic("plain")
	_, err = topics.EnsureTopic(r.ctx, jetbus.TopicConfig{Name: plain, Partitions: 4})
	wantErr(r.T, "partitions for a topic that has none", err, jetbus.ErrConflict)
	partitions := r.A.(jetbus.Partitions)
	for what, c := range map[string]struct {
		topic string
		n     int
		want  error
	}{
		"fewer partitions": {c.Name, 5, jetbus.ErrConflict},
		"no partitions":    {c.Name, 0, jetbus.ErrInvalidOption},
		"too many":         {c.Name, jetbus.MaxPartitions + 1, jetbus.ErrInvalidOption},
		"a plain topic":    {plain, 4, jetbus.ErrNoPartitions},
		"no topic":         {r.prefix + ".none", 4, jetbus.ErrNoTopic},
	} {
		_, err := partitions.Repartition(r.ctx, c.topic, c.n)
		wantErr(r.T, what, err, c.want)
	}
	if got, err := partitions.Generations(r.ctx, c.Name); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("generations %v, %v", got, err)
	}
}

func racingGrowth(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Partitions: 2, Retention: -1})
	var wg sync.WaitGroup
	for i := range 6 {
		bus := []jetbus.Bus{r.A, r.B}[i%2].(jetbus.Partitions)
		wg.Go(func() {
			got, err := bus.Repartition(r.ctx, topic, 5)
			r.wantNil(err)
			if err == nil && len(got) != 2 {
				r.Errorf("generations %v", got)
			}
		})
	}
	wg.Wait()
	info, err := r.Admin.TopicInfo(r.ctx, topic)
	r.must(err)
	if len(info.Generations) != 2 || info.Config.Partitions != 5 {
		r.Errorf("info %+v", info)
	}
}

func growUnderLoad(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Partitions: 2, Retention: -1})
	const names = 5 // keys of each publisher
	var over atomic.Bool
	var wg sync.WaitGroup
	var mu sync.Mutex
	acked := map[string]bool{}
	for i, o := range []*jetbus.BatchOptions{nil, {}, {Atomic: true}} {
		bus := []jetbus.Bus{r.A, r.B}[i%2]
		wg.Go(func() {
			for n := 0; !over.Load(); n += 2 * names {
				events := make([]jetbus.Event, 2*names)
				for j := range events {
					events[j] = jetbus.Event{Topic: topic, Key: fmt.Sprint(i, "-", j%names), ID: fmt.Sprintf("%d-%06d", i, n+j)}
				}
				receipts, err := publishAll(r, bus, events, o)
				r.wantNil(err)
				if err != nil {
					return
				}
				mu.Lock()
				for _, receipt := range receipts {
					acked[receipt.Event.ID] = true
				}
				mu.Unlock()
				linger(r.ctx, 2*time.Millisecond)
			}
		})
	}
	for n := 3; n <= 6; n++ {
		r.pause(10 * time.Millisecond)
		_, err := []jetbus.Bus{r.A, r.B}[n%2].(jetbus.Partitions).Repartition(r.ctx, topic, n)
		r.must(err)
	}
	r.pause(10 * time.Millisecond)
	over.Store(true)
	wg.Wait()
	last, stored := map[string]string{}, map[string]bool{}
	for _, e := range r.stored(topic) {
		if stored[e.ID] || !acked[e.ID] || e.ID <= last[e.Key] {
			r.Errorf("%s of key %s is stored behind %s, or twice, or was not acknowledged", e.ID, e.Key, last[e.Key])
		}
		last[e.Key], stored[e.ID] = e.ID, true
	}
	if len(stored) != len(acked) {
		r.Errorf("%d events are stored, %d were acknowledged", len(stored), len(acked))
	}
}

// publishAll publishes events one by one, or as a batch.
func publishAll(r *run, bus jetbus.Bus, events []jetbus.Event, o *jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	if o != nil {
		return bus.(jetbus.Batcher).PublishBatch(r.ctx, events, *o)
	}
	var out []jetbus.Receipt
	for _, e := range events {
		receipt, err := bus.Publish(r.ctx, e)
		if err != nil {
			return out, errors.Join(err, r.ctx.Err())
		}
		out = append(out, receipt)
	}
	return out, nil
}

func keysAcrossGenerations(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Partitions: 3, KeyInSubject: true, Retention: -1})
	r.publish(topic, keys(20)...)
	_, err := r.B.(jetbus.Partitions).Repartition(r.ctx, topic, 11)
	r.must(err)
	r.publish(topic, keys(10)...)
	latest, err := r.store().LatestByKey(r.ctx, topic, keys(20)...)
	r.must(err)
	stored := r.stored(topic)
	for i, key := range keys(20) {
		want := stored[i]
		if i < 10 {
			want = stored[20+i]
		}
		if got := latest[key]; got.Seq != want.Seq || got.Partition != want.Partition {
			r.Errorf("key %s: the last event is %d in partition %d, want %d in %d", key, got.Seq, got.Partition, want.Seq, want.Partition)
		}
		for _, expect := range []uint64{0, want.Seq + 1000} {
			_, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: key}, jetbus.PublishOptions{ExpectLastSeq: &expect})
			wantErr(r.T, fmt.Sprint("a wrong condition on key ", key), err, jetbus.ErrWrongSequence)
		}
		_, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: key}, jetbus.PublishOptions{ExpectLastSeq: &want.Seq})
		r.wantNil(err)
	}
	if n := len(r.stored(topic)); n != 50 {
		r.Errorf("the topic holds %d events, want 50", n)
	}
}
