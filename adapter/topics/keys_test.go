package topics_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

func (r *rig) set(key, value string, revision uint64, ttl time.Duration) uint64 {
	r.Helper()
	return must(r.Bus.KeySet(r.Context(), "b", key, []byte(value), revision, ttl))(r.T)
}

func (r *rig) get(key string) jetbus.KeyEntry {
	r.Helper()
	return must(r.Bus.KeyGet(r.Context(), "b", key))(r.T)
}

func TestKeysConditional(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		if e := r.get("k"); e.Revision != 0 || e.Value != nil || e.Key != "k" {
			r.Errorf("a key that does not exist: %+v", e)
		}
		_, err := r.Bus.KeySet(ctx, "b", "k", nil, 3, 0)
		r.WantErr(err, jetbus.ErrWrongSequence)
		r.WantErr(r.Bus.KeyDelete(ctx, "b", "k", 3), jetbus.ErrWrongSequence)
		first := r.set("k", "1", 0, 0)
		_, err = r.Bus.KeySet(ctx, "b", "k", []byte("x"), 0, 0)
		r.WantErr(err, jetbus.ErrWrongSequence)
		_, err = r.Bus.KeySet(ctx, "b", "k", []byte("x"), first+1, 0)
		r.WantErr(err, jetbus.ErrWrongSequence)
		second := r.set("k", "2", first, 0)
		if e := r.get("k"); string(e.Value) != "2" || e.Revision != second || second <= first || e.Deleted {
			r.Errorf("got %+v", e)
		}
		r.WantErr(r.Bus.KeyDelete(ctx, "b", "k", first), jetbus.ErrWrongSequence)
		r.WantErr(r.Bus.KeyDelete(ctx, "b", "k", 0), jetbus.ErrWrongSequence)
		r.OK(r.Bus.KeyDelete(ctx, "b", "k", second))
		r.Equal("revision of a deleted key", r.get("k").Revision, 0)
		_, err = r.Bus.KeySet(ctx, "b", "k", nil, second, 0)
		r.WantErr(err, jetbus.ErrWrongSequence)
		r.set("k", "", 0, 0)
		if e := r.get("k"); e.Revision <= second || len(e.Value) != 0 {
			r.Errorf("got %+v", e)
		}
	})
}

func TestKeysRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, c := range []struct {
			bucket, key string
			ttl         time.Duration
		}{{"", "k", 0}, {"a.b", "k", 0}, {"a/b", "k", 0}, {strings.Repeat("b", 101), "k", 0}, {"b", "", 0}, {"b", "a\n", 0}, {"b", strings.Repeat("k", 257), 0}, {"b", "k", time.Millisecond}, {"b", "k", -time.Second}} {
			_, err := r.Bus.KeySet(r.Context(), c.bucket, c.key, nil, 0, c.ttl)
			r.WantErr(err, jetbus.ErrInvalidOption)
		}
		_, err := r.Bus.KeySet(r.Context(), "b", "k", make([]byte, 2<<20), 0, 0)
		r.WantErr(err, jetbus.ErrPayloadTooLarge)
		r.Equal("connected", r.NC.IsConnected(), true)
		r.Equal("revision", r.get("k").Revision, 0)
	})
}

func TestKeysExpire(t *testing.T) {
	inBubble(t, func(r *rig) {
		rev := r.set("k", "1", 0, 10*time.Second)
		time.Sleep(8 * time.Second)
		rev = r.set("k", "2", rev, 10*time.Second) // begins anew
		time.Sleep(8 * time.Second)
		r.Equal("value", string(r.get("k").Value), "2")
		time.Sleep(4 * time.Second)
		r.Equal("revision", r.get("k").Revision, 0)
		_, err := r.Bus.KeySet(r.Context(), "b", "k", nil, rev, 0)
		r.WantErr(err, jetbus.ErrWrongSequence)
		rev = r.set("k", "3", 0, 10*time.Second)
		r.set("k", "4", rev, 0) // without a time it stays
		time.Sleep(10 * time.Minute)
		r.Equal("value", string(r.get("k").Value), "4")
	})
}

// Also while the key is deleted and expires: that is when writers meet a marker.
func TestKeysOneWins(t *testing.T) {
	inBubble(t, func(r *rig) {
		const writers, rounds = 8, 30
		buses := []*adapter.Bus{r.Bus}
		for range 3 {
			_, b := r.Open(adapter.Config{})
			buses = append(buses, b)
		}
		for round := range rounds {
			var won atomic.Int64
			var winner atomic.Uint64
			var wg sync.WaitGroup
			for i := range writers {
				wg.Go(func() {
					rev, err := buses[i%len(buses)].KeySet(r.Context(), "b", "k", fmt.Append(nil, i), 0, time.Minute)
					if err == nil {
						won.Add(1)
						winner.Store(rev)
						return
					}
					r.WantErr(err, jetbus.ErrWrongSequence)
				})
			}
			wg.Wait()
			if won.Load() != 1 || r.get("k").Revision != winner.Load() {
				r.Fatalf("round %d: %d writers won", round, won.Load())
			}
			if round%2 == 0 {
				r.OK(r.Bus.KeyDelete(r.Context(), "b", "k", winner.Load()))
			} else {
				time.Sleep(2 * time.Minute)
			}
		}
	})
}

// A holder that adds one at a time, and gives the key up in between, is never
// joined by a second.
func TestKeysAsLock(t *testing.T) {
	inBubble(t, func(r *rig) {
		var holders, turns atomic.Int64
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for range 5 {
					for {
						rev, err := r.Bus.KeySet(r.Context(), "b", "lock", nil, 0, time.Minute)
						if err == nil {
							if holders.Add(1) != 1 {
								r.Error("two hold the lock")
							}
							time.Sleep(time.Millisecond)
							holders.Add(-1)
							turns.Add(1)
							r.WantNil(r.Bus.KeyDelete(r.Context(), "b", "lock", rev))
							break
						}
						r.WantErr(err, jetbus.ErrWrongSequence)
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
		r.Equal("turns", turns.Load(), 50)
	})
}

// A write that was stored while its answer got lost succeeded.
func TestKeysAnswerLost(t *testing.T) {
	inBubble(t, func(r *rig) {
		w, b := r.OpenCabled(adapter.Config{})
		rev := must(b.KeySet(r.Context(), "b", "k", []byte("1"), 0, 0))(r.T)
		w.Deaf.Store(true)
		time.AfterFunc(100*time.Millisecond, w.Cut)
		rev, err := b.KeySet(r.Context(), "b", "k", []byte("2"), rev, 0)
		r.OK(err)
		if e := r.get("k"); string(e.Value) != "2" || e.Revision != rev {
			r.Errorf("got %+v, want revision %d", e, rev)
		}
		// Somebody else's write of the same value meanwhile is somebody else's.
		w.Budget.Store(1)
		time.AfterFunc(time.Millisecond, func() { r.set("k", "3", rev, 0) })
		_, err = b.KeySet(r.Context(), "b", "k", []byte("3"), rev, 0)
		r.WantErr(err, jetbus.ErrWrongSequence)
		w.Deaf.Store(true)
		time.AfterFunc(100*time.Millisecond, w.Cut)
		r.OK(b.KeyDelete(r.Context(), "b", "k", rev+1))
		r.Equal("revision", r.get("k").Revision, 0)
	})
}

// A bucket that gives no answer for a while, as one without a leader, is asked again
// until the call's time is over; a write that it took in unheard succeeded.
func TestKeysUnanswered(t *testing.T) {
	inBubble(t, func(r *rig) {
		w, b := r.OpenCabled(adapter.Config{Timeout: 30 * time.Second})
		must(b.KeySet(r.Context(), "b", "other", nil, 0, 0))(r.T)
		silent := func(d time.Duration) {
			w.Deaf.Store(true)
			time.AfterFunc(d, func() { w.Deaf.Store(false) })
		}
		silent(7 * time.Second)
		rev := must(b.KeySet(r.Context(), "b", "k", []byte("1"), 0, 0))(r.T) // asks first
		silent(7 * time.Second)
		rev = must(b.KeySet(r.Context(), "b", "k", []byte("2"), rev, 0))(r.T)
		if e := r.get("k"); string(e.Value) != "2" || e.Revision != rev {
			r.Errorf("got %+v, want revision %d", e, rev)
		}
		silent(7 * time.Second)
		r.Equal("asked", must(b.KeyGet(r.Context(), "b", "k"))(r.T).Revision, rev)
		began := time.Now()
		silent(time.Hour)
		_, err := b.KeySet(r.Context(), "b", "k", nil, rev, 0)
		r.WantErr(err, jetbus.ErrUnavailable)
		r.Equal("waited", time.Since(began).Round(time.Second), 30*time.Second)
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		_, err = b.KeyGet(ctx, "b", "k")
		r.WantErr(err, jetbus.ErrUnavailable)
		r.Equal("waited", time.Since(began).Round(time.Second), 90*time.Second)
		w.Cut()
	})
}

func TestKeyWatch(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set("p/1", "a", 0, 0)
		rev := r.set("p/2", "b", 0, 0)
		r.set("q", "other", 0, 0)
		gone := r.set("p/0", "gone", 0, 0)
		r.OK(r.Bus.KeyDelete(r.Context(), "b", "p/0", gone))
		ctx, cancel := context.WithCancel(r.Context())
		updates := make(chan string, 100)
		ended := make(chan error, 1)
		go func() {
			var last error
			for e, err := range r.Bus.KeyWatch(ctx, "b", "p/") {
				last = err
				if err == nil {
					updates <- fmt.Sprintf("%s=%s %t %t", e.Key, e.Value, e.Deleted, e.Synced)
				}
				if e.Revision == 0 && !e.Synced && err == nil {
					updates <- "no revision"
				}
			}
			ended <- last
		}()
		next := func(want string) {
			r.Helper()
			if got := <-updates; got != want {
				r.Errorf("got %q, want %q", got, want)
			}
		}
		next("p/1=a false false")
		next("p/2=b false false")
		next("= false true")
		rev = r.set("p/2", "c", rev, 0)
		next("p/2=c false false")
		r.set("q2", "other", 0, 0)
		r.OK(r.Bus.KeyDelete(r.Context(), "b", "p/2", rev))
		next("p/2= true false")
		r.set("p/ä b", "d", 0, 10*time.Second)
		next("p/ä b=d false false")
		before := time.Now()
		next("p/ä b= true false")
		if took := time.Since(before); took < 8*time.Second || took > 12*time.Second {
			r.Errorf("expired after %v", took)
		}
		r.set("p/3", "e", 0, 0)
		next("p/3=e false false")
		time.Sleep(10 * time.Minute)
		r.Equal("further updates", len(updates), 0)
		cancel()
		r.WantErr(<-ended, context.Canceled)
		time.Sleep(10 * time.Minute)
		r.Equal("consumers", r.Stream("KV_b").State.Consumers, 0)
	})
}

// TestKeyWatchNarrow: a prefix with a dot is selected by at the server.
func TestKeyWatchNarrow(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, key := range []string{"a/.m/1", "a/.", "a/", "a/m", "ab/.m/1", "a/.l/2"} {
			r.set(key, key, 0, 0)
		}
		var got []string
		for e, err := range r.Bus.KeyWatch(r.Context(), "b", "a/.") {
			r.OK(err)
			if e.Synced {
				break
			}
			got = append(got, e.Key)
		}
		r.Equal("keys", strings.Join(got, " "), "a/.m/1 a/. a/.l/2")
	})
}

// TestKeyWatchBesideUpdates: a key that is written again while a watch begins is there all the same
// when the watch has seen what is present.
func TestKeyWatchBesideUpdates(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, writer := r.Open(adapter.Config{})
		keys := []string{"m/0", "m/1", "m/2", "m/3"}
		revisions := make([]uint64, len(keys))
		for i, key := range keys {
			revisions[i] = r.set(key, "", 0, 0)
		}
		stop := make(chan struct{})
		var writing sync.WaitGroup
		writing.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				var err error
				i := n % len(keys)
				if revisions[i], err = writer.KeySet(r.Context(), "b", keys[i], nil, revisions[i], time.Hour); err != nil {
					r.Error(err)
					return
				}
			}
		})
		for range 300 {
			seen := map[string]bool{}
			for e, err := range r.Bus.KeyWatch(r.Context(), "b", "m/") {
				r.OK(err)
				if e.Synced {
					break
				}
				seen[e.Key] = true
			}
			if len(seen) != len(keys) {
				r.Errorf("of %d keys a watch has seen %v", len(keys), seen)
			}
		}
		close(stop)
		writing.Wait()
	})
}

// TestKeysOfAnOldBucket: one whose keys cannot expire says so.
func TestKeysOfAnOldBucket(t *testing.T) {
	inBubble(t, func(r *rig) {
		must(r.JS.CreateKeyValue(r.Context(), jetstream.KeyValueConfig{Bucket: "b", History: 1}))(r.T)
		r.set("k", "v", 0, 0)
		_, err := r.Bus.KeySet(r.Context(), "b", "session", nil, 0, 15*time.Second)
		r.WantErr(err, jetbus.ErrUnsupported)
		r.Equal("names the remedy", strings.Contains(err.Error(), "made without limit markers"), true)
	})
}

// A bucket is as nats.go makes one, and open to more watches than a server allows by default.
func TestBucket(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set("k", "v", 0, 0)
		other := must(r.JS.CreateKeyValue(r.Context(), jetstream.KeyValueConfig{
			Bucket: "other", History: 1, LimitMarkerTTL: time.Minute, MaxBytes: 64 << 20, Description: "JetBus",
		}))(r.T)
		must(other.Put(r.Context(), "k", nil))(r.T)
		got, want := r.Stream("KV_b").Config, r.Stream("KV_other").Config
		r.Equal("watches", got.MaxConsumers >= 10_000, true)
		r.Equal("storage and replicas", []any{got.Storage, got.Replicas}, []any{want.Storage, want.Replicas})
		got.Name, got.Subjects, got.MaxConsumers, got.SubjectDeleteMarkerTTL = want.Name, want.Subjects, want.MaxConsumers, want.SubjectDeleteMarkerTTL
		r.Equal("the rest", fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
		kv := must(r.JS.KeyValue(r.Context(), "b"))(r.T)
		r.Equal("read by nats.go", string(must(kv.Get(r.Context(), "k"))(r.T).Value()), "v")
	})
}

// A bucket that is full refuses what it has no room for, and nothing else.
func TestKeysOfAFullBucket(t *testing.T) {
	inBubble(t, func(r *rig) {
		must(r.JS.CreateKeyValue(r.Context(), jetstream.KeyValueConfig{Bucket: "b", History: 1, LimitMarkerTTL: time.Second, MaxBytes: 2200}))(r.T)
		old := r.set("old", strings.Repeat("v", 800), 0, 0)
		r.set("k", strings.Repeat("v", 800), 0, 0)
		_, err := r.Bus.KeySet(r.Context(), "b", "new", make([]byte, 800), 0, 0)
		r.WantErr(err, jetbus.ErrBucketFull)
		r.Equal("names the stream", strings.Contains(err.Error(), "max_bytes of stream KV_b"), true)
		r.Equal("revision of what was refused", r.get("new").Revision, 0)
		old = r.set("old", strings.Repeat("w", 800), old, 0) // in place of what was there
		r.OK(r.Bus.KeyDelete(r.Context(), "b", "old", old))
		r.set("new", strings.Repeat("v", 800), 0, 0)
	})
}

func TestKeyWatchStops(t *testing.T) {
	inBubble(t, func(r *rig) {
		for e, err := range r.Bus.KeyWatch(r.Context(), "new", "") { // creates the bucket
			r.OK(err)
			r.Equal("synced", e.Synced, true)
			break
		}
		nc, b := r.Open(adapter.Config{})
		ended := make(chan error, 1)
		go func() { ended <- adaptertest.FirstErr(b.KeyWatch(r.Context(), "new", "")) }()
		synctest.Wait()
		nc.Close()
		r.WantErr(<-ended, jetbus.ErrClosed)
		_, c := r.Open(adapter.Config{})
		go func() { ended <- adaptertest.FirstErr(c.KeyWatch(r.Context(), "new", "")) }()
		synctest.Wait()
		adaptertest.CloseBus(r.T, c)
		r.WantErr(<-ended, jetbus.ErrClosed)
	})
}

// TestKeyWatchEnds: a watch that may have missed something does not go on as if it had not, as
// it would with the next connection, and in a bucket that was made anew.
func TestKeyWatchEnds(t *testing.T) {
	for name, harm := range map[string]func(r *rig, w *adaptertest.Cable){
		"connection lost":          func(_ *rig, w *adaptertest.Cable) { w.Cut() },
		"connection lost for long": func(r *rig, _ *adaptertest.Cable) { r.OK(r.Broker.Kill(r.Context())) },
		"broker restarts":          func(r *rig, _ *adaptertest.Cable) { r.OK(r.Broker.Restart(r.Context())) },
		"bucket deleted":           func(r *rig, _ *adaptertest.Cable) { r.OK(r.JS.DeleteKeyValue(r.Context(), "b")) },
		"bucket made anew": func(r *rig, _ *adaptertest.Cable) {
			r.OK(r.JS.DeleteKeyValue(r.Context(), "b"))
			r.set("p/3", "c", 0, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.set("p/1", "a", 0, 0)
				r.set("p/2", "b", 0, 0)
				w, b := r.OpenCabled(adapter.Config{})
				ended := make(chan error, 1)
				go func() { ended <- adaptertest.FirstErr(b.KeyWatch(r.Context(), "b", "p/")) }()
				time.Sleep(time.Minute)
				synctest.Wait()
				limit := 20 * time.Second // the next look at the bucket
				if strings.HasPrefix(name, "connection") {
					limit = time.Second
				}
				harm(r, w)
				select {
				case err := <-ended:
					r.WantErr(err, jetbus.ErrUnavailable)
				case <-time.After(limit):
					r.Error("the watch goes on")
				}
			})
		})
	}
}

// TestKeyWatchBeginsAnew: where the connection is lost before all that is present has come, a
// watch begins with it again, and says each key once.
func TestKeyWatchBeginsAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i := range 1000 {
			r.set(fmt.Sprint(i), strings.Repeat("v", 100), 0, 0)
		}
		lost := 0
		for budget := int64(1); ; budget += 200 { // bytes of a watch's requests, until there are more than it has
			w, b := r.OpenCabled(adapter.Config{})
			w.Budget.Store(budget)
			seen := map[string]int{}
			for e, err := range b.KeyWatch(r.Context(), "b", "") {
				r.OK(err)
				if e.Synced {
					break
				}
				seen[e.Key]++
			}
			r.Equal("keys", len(seen), 1000)
			for key, n := range seen {
				if n != 1 {
					r.Errorf("key %s came %d times", key, n)
				}
			}
			if w.Budget.Load() > 0 {
				break
			}
			lost++
		}
		if lost < 3 {
			r.Errorf("the connection was lost in %d watches, want each of their requests", lost)
		}
	})
}

// TestKeyWatchStopsEarly: a watch of many keys that ends at the first one leaves nothing behind
// that waits to say the others.
func TestKeyWatchStopsEarly(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i := range 1000 {
			r.set(fmt.Sprint(i), "v", 0, 0)
		}
		for _, err := range r.Bus.KeyWatch(r.Context(), "b", "") {
			r.OK(err)
			synctest.Wait() // all that there is room for has come
			break
		}
	})
}

// Any key comes back as it was, through get and watch.
func TestAnyKey(t *testing.T) {
	inRealTime(t, func(r *rig) {
		keys := map[string]bool{}
		gen := rapid.OneOf(rapid.StringN(1, -1, 80), rapid.StringMatching(`[.=/%A-Za-z0-9_* >-]{1,20}`)).
			Filter(func(s string) bool { return s != "" && jetbus.ValidKey(s) == nil })
		rapid.Check(r.T, func(t *rapid.T) {
			key := gen.Draw(t, "key")
			if keys[key] {
				return
			}
			keys[key] = true
			if _, err := r.Bus.KeySet(r.Context(), "b", key, []byte(key), 0, 0); err != nil {
				t.Fatal(err)
			}
			if e, err := r.Bus.KeyGet(r.Context(), "b", key); err != nil || e.Key != key || string(e.Value) != key {
				t.Fatalf("%+v, %v", e, err)
			}
		})
		seen := 0
		for e, err := range r.Bus.KeyWatch(r.Context(), "b", "") {
			r.OK(err)
			if e.Synced {
				break
			}
			if !keys[e.Key] || string(e.Value) != e.Key {
				r.Errorf("got %+v", e)
			}
			seen++
		}
		r.Equal("keys", seen, len(keys))
	})
}
