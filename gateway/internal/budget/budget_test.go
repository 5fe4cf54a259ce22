package budget_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
	"github.com/seed-63e9a637/jetbus/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func small() *budget.Budget {
	return budget.New(budget.Limit{Bytes: 100, Calls: 4, Scans: 2}, budget.Limit{Bytes: 60, Calls: 3, Scans: 1}, budget.Limit{Bytes: 40, Calls: 2, Scans: 1})
}

// level is the level of a refusal, -1 for none.
func level(t *testing.T, err error) budget.Level {
	t.Helper()
	if err == nil {
		return -1
	}
	e, ok := errors.AsType[*budget.ExceededError](err)
	if !ok || e.RetryAfter <= 0 || e.Error() != fmt.Sprintf("the budget of the %s is used up", e.Level) {
		t.Fatalf("%v", err)
	}
	return e.Level
}

func TestRefusalNamesTheLowestFullLevel(t *testing.T) {
	b := small()
	ann, ann2, bob, eve := b.Account("ann"), b.Account("ann"), b.Account("bob"), b.Account("eve")
	for i, step := range []struct {
		a    *budget.Account
		n    int64
		want budget.Level
	}{
		{ann, 40, -1},
		{ann, 1, budget.Connection},
		{ann2, 20, -1},
		{ann2, 1, budget.Subject},
		{bob, 40, -1},
		{eve, 1, budget.Process},
		{ann, 0, -1},
		{ann, -1, -1},
	} {
		if got := level(t, step.a.TryAcquire(budget.Bytes, step.n)); got != step.want {
			t.Errorf("step %d: refused by %v, want %v", i, got, step.want)
		}
	}
	bob.Release(budget.Bytes, 1000) // no more than it holds
	if got := b.Used(budget.Bytes); got != 60 {
		t.Errorf("%d bytes are held", got)
	}
	for _, a := range []*budget.Account{ann, ann2, bob, eve} {
		a.Close()
		a.Close()
		if err := a.TryAcquire(budget.Bytes, 1); !errors.Is(err, budget.ErrClosed) {
			t.Errorf("%v", err)
		}
		a.Add(budget.Bytes, 5)
		a.Release(budget.Bytes, 5)
	}
	if got := b.Used(budget.Bytes); got != 0 {
		t.Errorf("%d bytes leak", got)
	}
}

func TestIdleLevelGrantsAnyQuantity(t *testing.T) {
	b := small()
	a, other := b.Account("ann"), b.Account("bob")
	if err := a.TryAcquire(budget.Bytes, 1000); err != nil {
		t.Error(err)
	}
	if got := level(t, other.TryAcquire(budget.Bytes, 1)); got != budget.Process {
		t.Errorf("%v", got)
	}
	if err := other.TryAcquire(budget.Scans, 1); err != nil {
		t.Errorf("another kind: %v", err)
	}
}

func TestAcquireWaitsInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := small()
		first := b.Account("ann")
		if err := first.TryAcquire(budget.Scans, 1); err != nil {
			t.Fatal(err)
		}
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				a := b.Account("ann")
				defer a.Close()
				if err := a.Acquire(t.Context(), budget.Scans, 1); err != nil {
					t.Error(err)
				}
				order <- i
				time.Sleep(time.Second)
			}()
			synctest.Wait()
		}
		if got := level(t, first.TryAcquire(budget.Scans, 1)); got != budget.Connection {
			t.Errorf("%v", got)
		}
		if err := b.Account("bob").TryAcquire(budget.Scans, 1); err != nil {
			t.Errorf("another subject waits for ann: %v", err)
		}
		first.Close()
		for i := range 3 {
			if got := <-order; got != i {
				t.Errorf("%d is served, not %d", got, i)
			}
		}
		time.Sleep(2 * time.Second) // the last one closes its account
		if got := b.Used(budget.Scans); got != 1 {
			t.Errorf("%d scans are held", got)
		}
	})
}

func TestWaiterThatGivesUpLetsTheNextPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := small()
		held := b.Account("ann")
		if err := held.TryAcquire(budget.Bytes, 30); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		large, next := b.Account("ann"), b.Account("ann")
		gaveUp, passed := make(chan error, 1), make(chan error, 1)
		go func() { gaveUp <- large.Acquire(ctx, budget.Bytes, 50) }()
		synctest.Wait()
		go func() { passed <- next.Acquire(t.Context(), budget.Bytes, 10) }()
		synctest.Wait()
		if len(passed) > 0 {
			t.Error("a small quantity overtook a large one")
		}
		if got := level(t, <-gaveUp); got != budget.Subject {
			t.Errorf("%v", got)
		}
		if err := <-passed; err != nil {
			t.Error(err)
		}
	})
}

func TestCloseEndsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := small()
		held, a := b.Account("ann"), b.Account("ann")
		if err := held.TryAcquire(budget.Calls, 3); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- a.Acquire(t.Context(), budget.Calls, 1) }()
		synctest.Wait()
		a.Close()
		if err := <-ended; !errors.Is(err, budget.ErrClosed) {
			t.Error(err)
		}
		held.Close()
		if got := b.Used(budget.Calls); got != 0 {
			t.Errorf("%d calls leak", got)
		}
	})
}

// At every level the longest waiter is served first. A waiter that gets room at a lower level joins the end of the next
// line.
func TestLowerLinesDoNotOvertakeHigherOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := budget.Limit{Bytes: 1, Calls: 1, Scans: 1}
		for _, c := range []struct {
			name    string
			subject int // limit of scans
			holder  string
		}{
			{"the line of a subject and that of the process", 1, "subject"},
			{"the line of a connection and that of the process", 2, "connection"},
		} {
			of := limit
			of.Scans = c.subject
			b := budget.New(limit, of, limit)
			held, served := b.Account("ann"), make(chan string, 3)
			if err := held.TryAcquire(budget.Scans, 1); err != nil {
				t.Fatal(err)
			}
			wait := func(name string, a *budget.Account) {
				go func() {
					if err := a.Acquire(t.Context(), budget.Scans, 1); err != nil {
						t.Error(err)
					}
					served <- name
					time.Sleep(time.Second)
					a.Release(budget.Scans, 1)
				}()
				synctest.Wait()
			}
			if c.holder == "connection" {
				wait("ann", held)
			} else {
				wait("ann", b.Account("ann"))
			}
			wait("eve", b.Account("eve"))
			wait("bob", b.Account("bob"))
			held.Release(budget.Scans, 1)
			for _, want := range []string{"eve", "bob", "ann"} {
				if got := <-served; got != want {
					t.Errorf("%s: %s is served, want %s", c.name, got, want)
				}
			}
			time.Sleep(2 * time.Second) // the last one releases its slot
		}
	})
}

// Two subjects that always have many requests in line hold all slots of the process. A third one is served
// as soon as each of them got what it may hold at a time.
func TestCrowdsLeaveOthersTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(budget.Limit{Bytes: 1, Calls: 1, Scans: 2}, budget.Limit{Bytes: 1, Calls: 1, Scans: 1}, budget.Limit{Bytes: 1, Calls: 1, Scans: 1})
		ctx, cancel := context.WithCancel(t.Context())
		var crowd sync.WaitGroup
		for i := range 10 {
			crowd.Go(func() {
				a := b.Account([]string{"ann", "bob"}[i%2])
				defer a.Close()
				time.Sleep(time.Duration(i) * time.Millisecond)
				for ctx.Err() == nil && a.Acquire(ctx, budget.Scans, 1) == nil {
					time.Sleep(time.Second)
					a.Release(budget.Scans, 1)
				}
			})
		}
		time.Sleep(time.Minute)
		for range 10 {
			eve := b.Account("eve")
			began := time.Now()
			waiting, end := context.WithTimeout(ctx, time.Minute)
			if err := eve.Acquire(waiting, budget.Scans, 1); err != nil {
				t.Error(err)
			}
			end()
			if waited := time.Since(began); waited > 2*time.Second {
				t.Errorf("it waited for %v", waited)
			}
			eve.Close()
			time.Sleep(300 * time.Millisecond)
		}
		cancel()
		crowd.Wait()
		if used := b.Used(budget.Scans); used != 0 {
			t.Errorf("%d scans leak", used)
		}
	})
}

// What a waiter has got of lower levels goes back when it gives up, and to the next in line there.
func TestWaiterThatGivesUpReturnsLowerLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := budget.Limit{Bytes: 1, Calls: 1, Scans: 1}
		b := budget.New(one, one, one)
		held := b.Account("bob")
		if err := held.TryAcquire(budget.Scans, 1); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		gaveUp, closed, passed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		closing := b.Account("ann")
		go func() { gaveUp <- b.Account("ann").Acquire(ctx, budget.Scans, 1) }()
		synctest.Wait()
		go func() { closed <- closing.Acquire(t.Context(), budget.Scans, 1) }()
		synctest.Wait()
		next := b.Account("ann")
		go func() { passed <- next.Acquire(t.Context(), budget.Scans, 1) }()
		if got := level(t, <-gaveUp); got != budget.Process {
			t.Errorf("%v", got)
		}
		synctest.Wait()
		closing.Close()
		if err := <-closed; !errors.Is(err, budget.ErrClosed) {
			t.Error(err)
		}
		held.Close()
		if err := <-passed; err != nil {
			t.Error(err)
		}
		next.Close()
		if err := b.Account("ann").TryAcquire(budget.Scans, 1); err != nil {
			t.Errorf("a waiter that gave up still holds a slot of its subject: %v", err)
		}
	})
}

// Whatever accounts do, no level holds more than its limit or one grant, all waiters are served or told in
// the end, and nothing is left.
func TestNoLevelIsExceededAndNothingLeaks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			b := small()
			done := make(chan struct{})
			n := rapid.IntRange(1, 30).Draw(rt, "clients")
			for i := range n {
				subject := rapid.SampledFrom([]string{"ann", "bob", "eve"}).Draw(rt, "subject")
				size := rapid.Int64Range(1, 40).Draw(rt, "size")
				start := time.Duration(rapid.IntRange(0, 20).Draw(rt, "start")) * time.Second
				hold := time.Duration(rapid.IntRange(0, 20).Draw(rt, "hold")) * time.Second
				patience := time.Duration(rapid.IntRange(1, 100).Draw(rt, "patience")) * time.Second
				closes := rapid.Bool().Draw(rt, "closes")
				go func() {
					defer func() { done <- struct{}{} }()
					time.Sleep(start + time.Duration(i)*time.Millisecond)
					a := b.Account(subject)
					defer a.Close()
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					if closes {
						time.AfterFunc(patience/2, a.Close)
					}
					if err := a.Acquire(ctx, budget.Bytes, size); err == nil {
						if used := b.Used(budget.Bytes); used > 100 {
							t.Errorf("the process holds %d", used)
						}
						time.Sleep(hold)
						a.Release(budget.Bytes, size/2)
					}
				}()
			}
			for range n {
				<-done
			}
			if used := b.Used(budget.Bytes); used != 0 {
				t.Errorf("%d bytes leak", used)
			}
			if err := b.Account("ann").TryAcquire(budget.Bytes, 100); err != nil {
				t.Errorf("a waiter stays in line: %v", err)
			}
		})
	})
}

// TestReads: each level has a read for every 4 MiB of its bytes, and at least one.
func TestReads(t *testing.T) {
	at := func(mib int64) budget.Limit { return budget.Limit{Bytes: mib << 20, Calls: 1, Scans: 1} }
	b := budget.New(at(19), at(15), at(11))
	ann, ann2, bob, eve := b.Account("ann"), b.Account("ann"), b.Account("bob"), b.Account("eve")
	for i, step := range []struct {
		a    *budget.Account
		want budget.Level
	}{
		{ann, -1},
		{ann, -1},
		{ann, budget.Connection},
		{ann2, -1},
		{ann2, budget.Subject},
		{bob, -1},
		{eve, budget.Process},
	} {
		if got := level(t, step.a.TryAcquire(budget.Reads, 1)); got != step.want {
			t.Fatalf("step %d: refused by level %d, want %d", i, got, step.want)
		}
	}
}
