package groups_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// attempts are the records of a group's events, as they are at the server.
type attempts struct {
	*rig
	bucket jetstream.KeyValue
	prefix string
}

type attempt struct{ Failed, Known, Started int }

func (r *rig) attempts() *attempts {
	r.Helper()
	names := must(r.JS.Stream(r.Context(), "EV_A"))(r.T).ConsumerNames(r.Context())
	return &attempts{r, must(r.JS.KeyValue(r.Context(), "JETBUS_ATTEMPTS"))(r.T), "EV_A." + <-names.Name() + "."}
}

func (a *attempts) put(seq uint64, of attempt) {
	a.Helper()
	text := fmt.Sprintf(`{"failed":%d,"known":%d,"started":%d,"stored":%d}`, of.Failed, of.Known, of.Started, a.StoredAt("EV_A", seq).UnixNano())
	must(a.bucket.PutString(a.Context(), a.prefix+fmt.Sprint(seq), text))(a.T)
}

func (a *attempts) get(seq uint64) (of attempt) {
	a.Helper()
	entry := must(a.bucket.Get(a.Context(), a.prefix+fmt.Sprint(seq)))(a.T)
	a.OK(json.Unmarshal(entry.Value(), &of))
	return of
}

// A lease that runs out is an attempt, which is added to what somebody else has recorded who
// has the event by then.
func TestLateRecords(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "nobody", "started", "given back", "failed", "dropped")
		ds := r.receive("g", jetbus.ReceiveOptions{Max: 5, AckTimeout: time.Second})
		r.Equal("received", len(ds), 5)
		r.OK(r.Bus.PauseGroup(ctx, "a", "g", time.Now().Add(time.Hour))) // nobody gets them again
		a := r.attempts()
		a.put(2, attempt{Known: 1, Started: 2})
		a.put(3, attempt{Known: 2})
		a.put(4, attempt{Failed: 4, Known: 2})
		a.put(5, attempt{Failed: 1})
		r.OK(a.bucket.Purge(ctx, a.prefix+"5"))
		time.Sleep(10 * time.Second)
		r.Settle()
		for seq, want := range map[uint64]attempt{1: {1, 1, 0}, 2: {1, 1, 2}, 3: {1, 2, 0}, 4: {5, 2, 0}, 5: {1, 1, 0}} {
			r.Equal(fmt.Sprint("record ", seq), a.get(seq), want)
		}
	})
}

// Many leases that run out at once are counted, over a slow link too.
func TestLateRecordsOfMany(t *testing.T) {
	inBubble(t, func(r *rig) {
		const many = 1000
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", many), jetbus.BatchOptions{}))(r.T)
		far := r.OpenDistant(60 * time.Millisecond)
		for _, round := range []int{1, 2} { // of the second one there are records
			var got int
			for got < many {
				ds := must(far.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: many - got, AckTimeout: 5 * time.Second, Wait: time.Minute}))(r.T)
				got += len(ds)
			}
			r.OK(r.Bus.PauseGroup(r.Context(), "a", "g", time.Now().Add(time.Hour)))
			time.Sleep(time.Minute)
			r.Settle()
			a := r.attempts()
			for _, seq := range []uint64{1, many / 2, many} {
				r.Equal(fmt.Sprint("round ", round, ", record ", seq), a.get(seq), attempt{round, round, 0})
			}
			r.OK(r.Bus.ResumeGroup(r.Context(), "a", "g"))
		}
	})
}

// TestAttemptsAreCountedAfterTheirBucketWasDeleted deletes the bucket while a handler runs that fails. The bus creates
// it again, and records the failure.
func TestAttemptsAreCountedAfterTheirBucketWasDeleted(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "k")
		ds := r.receive("g", jetbus.ReceiveOptions{Max: 1})
		r.Equal("received", len(ds), 1)
		r.OK(r.JS.DeleteStream(r.Context(), "KV_JETBUS_ATTEMPTS"))
		deleted := time.Now()
		r.OK(ds[0].Nack(r.Context(), jetbus.NackOptions{Reason: "broken"}))
		r.Settle()
		created := r.Stream("KV_JETBUS_ATTEMPTS").Created
		if after := created.Sub(deleted); after < 500*time.Millisecond || after > time.Second {
			r.Errorf("the bucket was created %v after its deletion", after)
		}
		r.Equal("record", r.attempts().get(1), attempt{Failed: 1, Known: 1})
	})
}
