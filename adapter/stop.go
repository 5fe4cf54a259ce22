package adapter

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

// cancelGrace is how long Stop waits for handlers that it canceled. One that
// ignores its context longer is left behind, and Stop says so.
const cancelGrace = 10 * time.Second

// Pause implements jetbus.Subscription. It waits for what is on its way, and a Resume
// waits for it: between the two of them some topics would be left without an inbox.
func (s *subscription) Pause() {
	s.pausing <- struct{}{}
	defer func() { <-s.pausing }()
	s.mu.Lock()
	s.paused = true
	for _, o := range s.owners {
		o.quitLocked("paused") // it gives its topic to another member
	}
	s.mu.Unlock()
	for _, p := range s.pullers {
		if s.owners != nil {
			break
		}
		p.drain(s.life) // a request that is open would bring more
	}
}

// Resume implements jetbus.Subscription.
func (s *subscription) Resume() {
	s.pausing <- struct{}{}
	defer func() { <-s.pausing }()
	s.mu.Lock()
	was := s.paused && !s.stopping
	s.paused = false
	s.mu.Unlock()
	if !was {
		return
	}
	for _, o := range s.owners {
		notify(o.changed, struct{}{})
	}
	for _, p := range s.pullers {
		if s.owners != nil {
			break
		}
		err := p.open() // without the lock, and Stop may come first: open looks whether the puller has ended
		s.mu.Lock()
		if err != nil {
			s.failLocked(fmt.Errorf("subscribe %s/%s: %w", p.t.name(), s.group, err))
		} else {
			p.rejoinLocked() // its settings may have changed while this member did not ask
		}
		s.mu.Unlock()
	}
}

// Done implements jetbus.Subscription.
func (s *subscription) Done() <-chan struct{} { return s.done }

// Err implements jetbus.Subscription.
func (s *subscription) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Stats implements jetbus.Subscription.
func (s *subscription) Stats() jetbus.SubscriptionStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Held, stats.Running, stats.Paused = s.count, s.running, s.paused
	for _, o := range s.owners {
		o.countLocked(&stats)
	}
	return stats
}

// Stop implements jetbus.Subscription.
func (s *subscription) Stop(ctx context.Context) error {
	inside := ctx.Value(insideKey{}) == s
	s.mu.Lock()
	if !s.stopping {
		s.stopLocked(nil)
	}
	s.mu.Unlock()
	if inside { // the handler cannot wait for itself
		return nil
	}
	ctx, release := shutdown.Context(ctx, 0)
	defer release()
	select {
	case <-s.done:
		return s.stragglers()
	case <-ctx.Done():
	}
	s.die(jetbus.ErrStopped) // shutdown sees it and cancels the handlers
	<-s.done
	return s.stragglers()
}

// failLocked ends the subscription because of err.
func (s *subscription) failLocked(err error) {
	if !s.stopping {
		s.stopLocked(err)
	}
}

// stopLocked begins the end. From here on no worker takes another event, no puller asks and no
// owner starts a term: all of them look at stopping under the lock that is held now.
func (s *subscription) stopLocked(err error) {
	s.stopping, s.err = true, err
	for _, o := range s.owners {
		o.quitLocked("stopping")
	}
	go s.shutdown() // ends with s.done, which Stop and Close wait for
}

// shutdown brings everything to an end, in the order that loses nothing: no more
// requests, no more events, back with what waits, then the handlers.
func (s *subscription) shutdown() {
	defer close(s.done)
	for _, unwatch := range s.takeUnwatch() {
		unwatch()
	}
	if s.owners != nil {
		s.disown()
	} else {
		s.letGo()
	}
	s.die(jetbus.ErrStopped)
	s.dropAll()
	s.end()
	if s.Stats().Running == 0 {
		s.work.Wait()
	}
	s.b.mu.Lock()
	delete(s.b.members, s)
	s.b.mu.Unlock()
	if s.ended != nil {
		s.ended(s.Err())
	}
}

// letGo brings the leases of a group without order to their end.
func (s *subscription) letGo() {
	s.endPullers()
	s.giveBack(s.ctx, s.takeQueue(), "stopping")
	if !s.await(s.life, s.o.ShutdownTimeout, true) {
		s.cancelHandlers()
		if !s.await(s.ctx, cancelGrace, false) {
			s.leftBehind()
		}
	}
	s.giveBack(s.ctx, s.all(), "stopping") // ManualAck: nobody settled them
}

// endPullers waits for a Pause under way, too: what that one still has on its way would come
// behind the others, to a queue that nobody looks at any more.
func (s *subscription) endPullers() {
	select {
	case s.pausing <- struct{}{}:
		defer func() { <-s.pausing }() // a handler that runs may call Pause
	case <-s.life.Done(): // which ends the Pause as well
	}
	for _, p := range s.pullers {
		p.end(s.life)
	}
}

func (s *subscription) leftBehind() {
	s.b.cfg.Logger.Error("handlers ignore their context; left behind", slog.String("group", s.group), slog.Int("handlers", s.Stats().Running))
}

func (s *subscription) takeUnwatch() []func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.unwatch
	s.unwatch = nil
	return taken
}

// takeQueue empties the queue. Where the subscription stops, what is exposed is taken, too: it
// comes to no worker any more.
func (s *subscription) takeQueue() []*lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*lease
	for l := s.queue.pop(0); l != nil; l = s.queue.pop(0) {
		out = append(out, l)
	}
	out = append(out, s.parked...)
	s.parked = nil
	for l := s.first.next; l != &s.first; l = l.next {
		if s.stopping && l.isExposed() {
			out = append(out, l)
		}
	}
	return out
}

// await waits until no handler runs and, with leases set, no lease is held. It
// reports false when the timeout has passed or ctx is over.
func (s *subscription) await(ctx context.Context, timeout time.Duration, leases bool) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		s.mu.Lock()
		busy := s.workers > 0 || leases && s.count > 0 && s.err == nil
		s.mu.Unlock()
		if !busy {
			return true
		}
		select {
		case <-s.idle:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// cancelHandlers cancels the contexts of the handlers that run.
func (s *subscription) cancelHandlers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := s.first.next; l != &s.first; l = l.next {
		if l.run != nil {
			l.run.cancel(jetbus.ErrStopped)
		}
	}
}

// dropAll forgets the leases that could not be given back; the server will
// deliver their events again when their time is over.
func (s *subscription) dropAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.count > 0 {
		s.removeLocked(s.first.next, leaseLost)
	}
}

// stragglers reports handlers that outlived the subscription.
func (s *subscription) stragglers() error {
	if n := s.Stats().Running; n > 0 {
		return fmt.Errorf("stop %s: %d handlers ignore their canceled context and are left behind", s.group, n)
	}
	return nil
}

// patience is how long a subscription that stops still waits for its owners.
type patience int

const (
	waitsForAll      patience = iota // for events that are in somebody's hands, too
	waitsForHandlers                 // which are canceled
	waitsForNobody
)

// disown waits for the owners to stand down, with less and less patience.
func (s *subscription) disown() {
	over := make(chan struct{})
	go func() { // ends with the owners, for which disown waits
		s.owning.Wait()
		close(over)
	}()
	if s.awaitOwners(s.life, over, s.o.ShutdownTimeout) {
		return
	}
	s.setPatience(waitsForHandlers)
	s.cancelHandlers()
	if !s.awaitOwners(s.ctx, over, cancelGrace) {
		s.setPatience(waitsForNobody)
		s.leftBehind()
	}
	<-over
}

func (s *subscription) awaitOwners(ctx context.Context, over <-chan struct{}, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-over:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (s *subscription) setPatience(p patience) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patience = p
	for _, o := range s.owners {
		notify(o.changed, struct{}{})
	}
}
