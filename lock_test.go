package jetbus_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

var testLock = jetbus.Lock{Bucket: "locks", Key: "mailer", TTL: 6 * time.Second}

// turn holds the lock once, for as long as f says, and returns what it was told.
func (r *rig) turn(k jetbus.Keys, clean bool) jetbus.Held {
	r.Helper()
	var got jetbus.Held
	r.ok(testLock.Hold(r.Context(), k, func(_ context.Context, h jetbus.Held) (bool, error) {
		got = h
		return clean, nil
	}))
	return got
}

// hold holds the lock on another goroutine until end is called, which returns
// what Hold returned. It returns when the lock is held.
func (r *rig) hold(k jetbus.Keys) (h jetbus.Held, end func() error) {
	r.Helper()
	held, over, result := make(chan jetbus.Held, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		result <- testLock.Hold(r.Context(), k, func(ctx context.Context, h jetbus.Held) (bool, error) {
			held <- h
			select {
			case <-over:
				return true, nil
			case <-ctx.Done():
				return false, context.Cause(ctx)
			}
		})
	}()
	end = sync.OnceValue(func() error {
		close(over)
		return <-result
	})
	r.Cleanup(func() { _ = end() })
	return <-held, end
}

func TestLockExcludes(t *testing.T) {
	inBubble(t, func(r *rig) {
		const contenders, turns = 5, 6
		var holders atomic.Int64
		var mu sync.Mutex
		var epochs []uint64
		var wg sync.WaitGroup
		for i := range contenders {
			bus, _ := r.open()
			wg.Go(func() {
				for n := range turns {
					err := testLock.Hold(r.Context(), bus, func(ctx context.Context, h jetbus.Held) (bool, error) {
						if holders.Add(1) != 1 {
							r.Error("two hold the lock")
						}
						defer holders.Add(-1)
						mu.Lock()
						epochs = append(epochs, h.Epoch)
						mu.Unlock()
						if !h.Clean {
							r.Errorf("turn %d of %d is not clean", n, i)
						}
						time.Sleep(time.Duration(i*n) * time.Second) // up to several TTLs
						return true, ctx.Err()
					})
					if err != nil {
						r.Errorf("turn %d of %d: %v", n, i, err)
					}
				}
			})
		}
		wg.Wait()
		if len(epochs) != contenders*turns || !slices.IsSorted(epochs) || len(slices.Compact(epochs)) != contenders*turns {
			r.Errorf("epochs %v, want %d that ascend", epochs, contenders*turns)
		}
	})
}

func TestLockPassesOn(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, clean := range []bool{true, false} {
			first, end := r.hold(r.bus)
			time.Sleep(time.Minute) // many renewals
			next := make(chan jetbus.Held)
			other, _ := r.open()
			go func() { next <- r.turn(other, clean) }()
			time.Sleep(testLock.TTL)
			select {
			case <-next:
				r.Fatal("the lock was taken from its holder")
			default:
			}
			released := time.Now()
			r.ok(end())
			second := <-next
			r.took("taken over", time.Since(released), 0, 100*time.Millisecond)
			if !second.Clean || second.Epoch <= first.Epoch {
				r.Errorf("got %+v after %+v", second, first)
			}
			if third := r.turn(r.bus, true); third.Clean != clean || third.Epoch <= second.Epoch {
				r.Errorf("got %+v after %+v, which ended with clean %t", third, second, clean)
			}
		}
	})
}

func TestLockOfTheDead(t *testing.T) {
	inBubble(t, func(r *rig) {
		mortal, cut := r.open()
		first, end := r.hold(mortal)
		if !first.Clean {
			r.Error("the first turn ever is not clean")
		}
		time.Sleep(testLock.TTL / 3) // until a renewal is due
		died := time.Now()
		cut()
		heir := r.turn(r.bus, true)
		r.took("taken over", time.Since(died), testLock.TTL*2/3, testLock.TTL+2*time.Second)
		if heir.Clean || heir.Epoch <= first.Epoch {
			r.Errorf("got %+v after %+v, which died", heir, first)
		}
		r.wantErr(end(), jetbus.ErrLockLost)
		if next := r.turn(r.bus, true); !next.Clean {
			r.Error("the turn after one that ended in order is not clean")
		}

		// Long after the death, when nobody remembers the expiry.
		mortal, cut = r.open()
		_, end = r.hold(mortal)
		cut()
		time.Sleep(48 * time.Hour)
		if late := r.turn(r.bus, true); late.Clean {
			r.Error("the turn after one that died long ago is clean")
		}
		r.wantErr(end(), jetbus.ErrLockLost)
	})
}

// While the broker is away for longer than the TTL, the holder gives up before
// anybody else could have the lock; who waits goes on waiting.
func TestLockOutage(t *testing.T) {
	inBubble(t, func(r *rig) {
		var canceled, taken time.Time
		result := make(chan error, 2)
		began := make(chan struct{})
		go func() {
			result <- testLock.Hold(r.Context(), r.bus, func(ctx context.Context, _ jetbus.Held) (bool, error) {
				close(began)
				<-ctx.Done()
				canceled = time.Now()
				if cause := context.Cause(ctx); !errors.Is(cause, jetbus.ErrLockLost) {
					r.Errorf("canceled with cause %v", cause)
				}
				time.Sleep(time.Second)
				return true, io.EOF
			})
		}()
		<-began
		other, _ := r.open()
		next := make(chan jetbus.Held, 1)
		go func() {
			result <- testLock.Hold(r.Context(), other, func(_ context.Context, h jetbus.Held) (bool, error) {
				taken = time.Now()
				next <- h
				return true, nil
			})
		}()
		time.Sleep(testLock.TTL)
		down := time.Now()
		r.ok(r.broker.Kill(r.Context()))
		err := <-result
		r.wantErr(err, jetbus.ErrLockLost)
		r.wantErr(err, io.EOF)
		r.took("canceled", canceled.Sub(down), testLock.TTL/2-time.Second/2, testLock.TTL*4/5)
		r.took("ended", time.Since(canceled), time.Second, time.Second+time.Millisecond)
		time.Sleep(2 * testLock.TTL)
		r.ok(r.broker.Restart(r.Context()))
		if h := <-next; h.Clean {
			r.Error("the turn after one that was lost is clean")
		}
		r.ok(<-result)
		r.took("taken over", taken.Sub(canceled), testLock.TTL/5, time.Hour)
	})
}

// An outage shorter than what is left of the lease is not noticed.
func TestLockShortOutage(t *testing.T) {
	inBubble(t, func(r *rig) {
		first, end := r.hold(r.bus)
		for range 5 {
			r.ok(r.broker.Restart(r.Context()))
			time.Sleep(testLock.TTL)
		}
		r.ok(end())
		if next := r.turn(r.bus, true); !next.Clean || next.Epoch <= first.Epoch {
			r.Errorf("got %+v after %+v", next, first)
		}
	})
}

func TestLockCanceled(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, end := r.hold(r.bus)
		ctx, cancel := context.WithCancelCause(r.Context())
		time.AfterFunc(time.Minute, func() { cancel(io.EOF) })
		began := time.Now()
		err := testLock.Hold(ctx, r.bus, func(context.Context, jetbus.Held) (bool, error) {
			r.Error("called without the lock")
			return true, nil
		})
		r.wantErr(err, io.EOF)
		r.took("canceled", time.Since(began), time.Minute, time.Minute+100*time.Millisecond)
		r.ok(end())

		// The end of ctx ends a turn, and the lock is released all the same.
		ctx, cancel = context.WithCancelCause(r.Context())
		time.AfterFunc(time.Minute, func() { cancel(io.EOF) })
		err = testLock.Hold(ctx, r.bus, func(ctx context.Context, _ jetbus.Held) (bool, error) {
			<-ctx.Done()
			time.Sleep(time.Minute) // which is as long as f may take
			return true, context.Cause(ctx)
		})
		r.wantErr(err, io.EOF)
		began = time.Now()
		if h := r.turn(r.bus, true); !h.Clean {
			r.Error("the turn after one that was canceled and ended in order is not clean")
		}
		r.took("released", time.Since(began), 0, 100*time.Millisecond)
	})
}

func TestLockFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.turn(r.bus, true)
		err := testLock.Hold(r.Context(), r.bus, func(context.Context, jetbus.Held) (bool, error) { panic(io.EOF) })
		r.wantErr(err, io.EOF)
		if p, ok := errors.AsType[*jetbus.PanicError](err); !ok || len(p.Stack) == 0 {
			r.Errorf("got %v", err)
		}
		if h := r.turn(r.bus, true); h.Clean {
			r.Error("the turn after a panic is clean")
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = testLock.Hold(r.Context(), r.bus, func(context.Context, jetbus.Held) (bool, error) {
				runtime.Goexit()
				return true, nil
			})
		}()
		<-done
		began := time.Now()
		if h := r.turn(r.bus, true); h.Clean {
			r.Error("the turn after a goroutine that ended is clean")
		}
		r.took("released", time.Since(began), 0, 100*time.Millisecond)
		for _, l := range []jetbus.Lock{
			{},
			{Key: strings.Repeat("k", 241)},
			{Key: "a\n"},
			{Key: "a#held"}, // where the mark of lock a is
			{Key: "k", TTL: 2 * time.Second},
			{Key: "k", TTL: 3500 * time.Millisecond},
			{Key: "k", TTL: time.Hour + time.Second},
			{Key: "k", Owner: "a\n"},
			{Key: "k", Bucket: "a.b"},
		} {
			r.wantErr(l.Hold(r.Context(), r.bus, nil), jetbus.ErrInvalidOption)
		}
		closed, cut := r.open()
		cut()
		r.wantErr(testLock.Hold(r.Context(), closed, nil), jetbus.ErrClosed)
	})
}

// Who gives up while the broker is away is told so.
func TestLockBrokerAway(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.turn(r.bus, true)
		r.ok(r.broker.Kill(r.Context()))
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := testLock.Hold(ctx, r.bus, nil)
		r.wantErr(err, context.DeadlineExceeded)
		r.wantErr(err, jetbus.ErrUnavailable)
		r.took("given up", time.Since(began), time.Minute, time.Minute+2*time.Second)
		r.ok(r.broker.Restart(r.Context()))
	})
}

// A key that somebody deletes by hand is a lock that is lost; one that somebody
// else wrote is never taken.
func TestLockTamperedWith(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, end := r.hold(r.bus)
		entry, err := r.bus.KeyGet(r.Context(), testLock.Bucket, testLock.Key)
		r.ok(err)
		if !strings.Contains(string(entry.Value), `"state":"held"`) {
			r.Errorf("value %s", entry.Value)
		}
		r.ok(r.bus.KeyDelete(r.Context(), testLock.Bucket, testLock.Key, entry.Revision))
		h := r.turn(r.bus, true)
		if h.Clean {
			r.Error("the turn after one that was cut off is clean")
		}
		time.Sleep(testLock.TTL)
		r.wantErr(end(), jetbus.ErrLockLost)

		entry, err = r.bus.KeyGet(r.Context(), testLock.Bucket, testLock.Key)
		r.ok(err)
		_, err = r.bus.KeySet(r.Context(), testLock.Bucket, testLock.Key, []byte("not a lock"), entry.Revision, 0)
		r.ok(err)
		ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
		defer cancel()
		r.wantErr(testLock.Hold(ctx, r.bus, nil), context.DeadlineExceeded)
	})
}

// badKeys loses answers, or delays requests until after the caller gave up.
type badKeys struct {
	jetbus.Keys
	set func(value string) (stored bool, err error) // nil error: all is well
}

func (k *badKeys) KeySet(ctx context.Context, bucket, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	stored, err := k.set(string(value))
	if err == nil {
		return k.Keys.KeySet(ctx, bucket, key, value, revision, ttl)
	}
	if stored {
		if _, err := k.Keys.KeySet(context.WithoutCancel(ctx), bucket, key, value, revision, ttl); err != nil {
			return 0, err
		}
	}
	return 0, err
}

// Of every write each second answer is lost, whether it was stored or not.
func TestLockAnswersLost(t *testing.T) {
	for _, stored := range []bool{true, false} {
		for _, lost := range []error{jetbus.ErrUnavailable, jetbus.ErrWrongSequence} {
			t.Run(fmt.Sprintf("stored %t %v", stored, lost), func(t *testing.T) {
				inBubble(t, func(r *rig) {
					n := 0
					var mu sync.Mutex
					keys := &badKeys{Keys: r.bus, set: func(string) (bool, error) {
						mu.Lock()
						defer mu.Unlock()
						if n++; n%2 == 1 {
							return stored, lost
						}
						return true, nil
					}}
					var last uint64
					for i := range 3 {
						began := time.Now()
						h, end := r.hold(keys)
						r.took("taken", time.Since(began), 0, 2*time.Second)
						if !h.Clean || h.Epoch <= last {
							r.Errorf("turn %d: got %+v after epoch %d", i, h, last)
						}
						last = h.Epoch
						time.Sleep(time.Minute)
						r.ok(end())
					}
				})
			})
		}
	}
}

// A caller who gives up while its write is on its way leaves no lock behind.
func TestLockGivenUpWhileTaking(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.turn(r.bus, true)
		ctx, cancel := context.WithCancel(r.Context())
		keys := &badKeys{Keys: r.bus, set: func(value string) (bool, error) {
			if strings.Contains(value, `"held"`) {
				defer cancel()
				return true, jetbus.ErrUnavailable
			}
			return true, nil
		}}
		r.wantErr(testLock.Hold(ctx, keys, nil), context.Canceled)
		began := time.Now()
		if h := r.turn(r.bus, true); !h.Clean {
			r.Error("not clean, though nothing was done under it")
		}
		r.took("taken", time.Since(began), 0, 100*time.Millisecond)
	})
}

// blindKeys cannot be watched.
type blindKeys struct {
	jetbus.Keys
	why error
}

func (k blindKeys) KeyWatch(context.Context, string, string) iter.Seq2[jetbus.KeyEntry, error] {
	return func(yield func(jetbus.KeyEntry, error) bool) { yield(jetbus.KeyEntry{}, k.why) }
}

// Who waits for a lock and may not watch it is told so; one whose watch fails otherwise looks for itself.
func TestLockBlind(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, end := r.hold(r.bus)
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		r.wantErr(testLock.Hold(ctx, blindKeys{r.bus, jetbus.ErrDenied}, nil), jetbus.ErrDenied)
		r.took("told", time.Since(began), 0, time.Second)

		next := make(chan jetbus.Held)
		go func() { next <- r.turn(blindKeys{r.bus, jetbus.ErrUnavailable}, true) }()
		time.Sleep(time.Minute)
		released := time.Now()
		r.ok(end())
		<-next
		r.took("taken over", time.Since(released), 0, testLock.TTL/2+time.Second)
	})
}
