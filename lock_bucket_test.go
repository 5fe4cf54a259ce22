package jetbus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// api sends a request to the JetStream API of the broker.
func (r *rig) api(subject, request string) {
	r.Helper()
	nc, err := r.broker.Connect()
	r.ok(err)
	defer nc.Close()
	_, err = nc.Request("$JS.API."+subject, []byte(request), 5*time.Second)
	r.ok(err)
}

// losses are ways in which a bucket loses its keys.
var losses = map[string]func(r *rig, bucket string){
	"deleted": func(r *rig, bucket string) { r.api("STREAM.DELETE.KV_"+bucket, "") },
	"purged":  func(r *rig, bucket string) { r.api("STREAM.PURGE.KV_"+bucket, "") },
}

// turnAt is a turn, and when it began.
type turnAt struct {
	jetbus.Held
	at time.Time
}

// holdUntilLost holds the lock until it is lost. It returns when the turn begins, and the channel
// gets the time at which it ends.
func (r *rig) holdUntilLost(k jetbus.Keys) (h turnAt, ended <-chan time.Time) {
	began, end := make(chan turnAt, 1), make(chan time.Time, 1)
	go func() {
		var at time.Time
		r.wantErr(testLock.Hold(r.Context(), k, func(ctx context.Context, h jetbus.Held) (bool, error) {
			began <- turnAt{h, time.Now()}
			<-ctx.Done()
			at = time.Now()
			return false, context.Cause(ctx)
		}), jetbus.ErrLockLost)
		end <- at
	}()
	return <-began, end
}

// A lock whose bucket is deleted or purged while it is held passes on only after its holder is
// canceled, with a higher epoch, also to a process that has not seen the lock before.
func TestLockOutlivesItsBucket(t *testing.T) {
	for how, lose := range losses {
		for name, waits := range map[string]bool{"fresh": false, "waiting": true} {
			t.Run(how+" "+name, func(t *testing.T) {
				inBubble(t, func(r *rig) {
					var epoch uint64
					for range 3 {
						first, ended := r.holdUntilLost(r.bus)
						if first.Epoch <= epoch {
							r.Errorf("epoch %d after %d", first.Epoch, epoch)
						}
						time.Sleep(testLock.TTL / 2)
						other, _ := r.open()
						next := make(chan turnAt, 1)
						var contender sync.WaitGroup
						contend := func() {
							r.ok(testLock.Hold(r.Context(), other, func(_ context.Context, h jetbus.Held) (bool, error) {
								next <- turnAt{h, time.Now()}
								return true, nil
							}))
						}
						if waits {
							contender.Go(contend)
							time.Sleep(time.Second)
						}
						lost := time.Now()
						lose(r, testLock.Bucket)
						if !waits {
							contender.Go(contend)
						}
						second, over := <-next, <-ended
						if over.After(second.at) {
							r.Errorf("held %v after the loss, and until %v after it by the holder before", second.at.Sub(lost), over.Sub(lost))
						}
						r.took("taken over", second.at.Sub(lost), 0, 2*testLock.TTL)
						if second.Epoch <= first.Epoch || second.Clean {
							r.Errorf("got %+v after %+v, whose bucket was %s", second.Held, first.Held, how)
						}
						epoch = second.Epoch
						contender.Wait()
					}
				})
			})
		}
	}
}

// A process that gives up while it waits for the former holder leaves nothing that would let the
// next one take the lock sooner.
func TestLockGivenUpAfterALoss(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, ended := r.holdUntilLost(r.bus)
		r.api("STREAM.PURGE.KV_"+testLock.Bucket, "")
		lost := time.Now()
		other, _ := r.open()
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		r.wantErr(testLock.Hold(ctx, other, func(context.Context, jetbus.Held) (bool, error) {
			r.Error("held at once")
			return true, nil
		}), context.DeadlineExceeded)
		third, _ := r.open()
		r.ok(testLock.Hold(r.Context(), third, func(context.Context, jetbus.Held) (bool, error) {
			r.took("taken over", time.Since(lost), testLock.TTL, 2*testLock.TTL)
			return true, nil
		}))
		if over := <-ended; over.Sub(lost) > testLock.TTL {
			r.Errorf("the first holder stopped %v after the loss", over.Sub(lost))
		}
	})
}

// The first holders of locks do not wait: their bucket is new, and has lost nothing. Nor do they
// wait when many start at the same time.
func TestLockOfANewBucketIsFree(t *testing.T) {
	inBubble(t, func(r *rig) {
		began := time.Now()
		var wg sync.WaitGroup
		for _, key := range []string{"a", "b", "c", "d", "e"} {
			lock := testLock
			lock.Key = key
			other, _ := r.open()
			wg.Go(func() {
				r.ok(lock.Hold(r.Context(), other, func(_ context.Context, h jetbus.Held) (bool, error) {
					if !h.Clean {
						r.Errorf("the first turn of %s is not clean", key)
					}
					return true, nil
				}))
			})
		}
		wg.Wait()
		r.took("taken", time.Since(began), 0, 200*time.Millisecond)
	})
}

// Where the bus's own bucket is lost, too, a process that knew the lock still waits, and others do
// once a watch has looked at the bucket again.
func TestLockOutlivesBothBuckets(t *testing.T) {
	inBubble(t, func(r *rig) {
		first, ended := r.holdUntilLost(r.bus)
		waiter, _ := r.open()
		watching, stop := context.WithCancel(r.Context())
		defer stop()
		go func() { // as a process that waits for some lock of the bucket does
			for _, err := range waiter.KeyWatch(watching, testLock.Bucket, "") {
				if err != nil {
					return
				}
			}
		}()
		r.api("STREAM.DELETE.KV_JETBUS_LOCKS", "")
		time.Sleep(25 * time.Second)
		r.api("STREAM.DELETE.KV_"+testLock.Bucket, "")
		other, _ := r.open()
		r.ok(testLock.Hold(r.Context(), other, func(_ context.Context, h jetbus.Held) (bool, error) {
			select {
			case <-ended:
			default:
				r.Error("two hold the lock")
			}
			if h.Epoch <= first.Epoch {
				r.Errorf("epoch %d after %d", h.Epoch, first.Epoch)
			}
			return true, nil
		}))
	})
}

// fill stores values in the bucket, as a program that does not use the bus, until it is full.
func (r *rig) fill(bucket string, most int) {
	r.Helper()
	nc, err := r.broker.Connect()
	r.ok(err)
	defer nc.Close()
	info, err := nc.Request("$JS.API.STREAM.INFO.KV_"+bucket, nil, 5*time.Second)
	r.ok(err)
	var stream struct {
		Config map[string]any `json:"config"`
	}
	r.ok(json.Unmarshal(info.Data, &stream))
	stream.Config["max_bytes"] = most
	config, err := json.Marshal(stream.Config)
	r.ok(err)
	r.api("STREAM.UPDATE.KV_"+bucket, string(config))
	for size, n := 1000, 0; size > 0; n++ {
		answer, err := nc.Request(fmt.Sprintf("$KV.%s.fill%d", bucket, n), make([]byte, size), 5*time.Second)
		r.ok(err)
		if bytes.Contains(answer.Data, []byte("error")) {
			size /= 2
		}
	}
}

// A lock in a bucket that others have filled to the last byte is kept, and released.
func TestLockInAFullBucket(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, end := r.hold(r.bus)
		time.Sleep(1234567 * time.Nanosecond)
		r.fill(testLock.Bucket, 20_000)
		for range 50 { // over a change of the digits of the revisions, too
			time.Sleep(testLock.TTL/4 + 1234567*time.Nanosecond)
			_, err := r.bus.KeySet(r.Context(), testLock.Bucket, "another", nil, 0, 0)
			r.wantErr(err, jetbus.ErrBucketFull)
		}
		r.ok(end())
	})
}
