package changefeed

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// State is what a feed is doing.
type State string

// The states.
const (
	Starting     State = "starting"     // it has no change stream or no stored position yet, and no other instance is known to lead
	Copying      State = "copying"      // it publishes the existing documents, and changes made during the copy
	Streaming    State = "streaming"    // it follows the changes, and misses none from now on
	Reconnecting State = "reconnecting" // MongoDB or the broker is unavailable or has not answered for a while, or the broker rejects events
	Standby      State = "standby"      // another instance holds the lock
	Failed       State = "failed"       // it has ended with an error
	Stopped      State = "stopped"      // it was stopped
)

// Status is what a feed is doing now.
type Status struct {
	State State     `json:"state"`
	Since time.Time `json:"since"` // of the state
	Error string    `json:"error,omitempty"`
	// Mode is the one in force, never Auto. Where that has to be Serial for want of atomic
	// batches, the first batch shows it.
	Mode Mode `json:"mode"`
	// Token is the position up to which everything is published or filtered.
	Token Token `json:"token,omitempty"`
	// Lag is how far the feed is behind the newest time that MongoDB has told of. A quiet
	// feed has none, although its Token moves every ProgressInterval only. It grows
	// where changes wait, and where MongoDB has lost its majority and shows none.
	Lag time.Duration `json:"-"`
}

// Stats count what this instance did.
type Stats struct {
	Published  uint64 `json:"published"`  // events stored, those of copies and control events included
	Duplicates uint64 `json:"duplicates"` // events that were stored already
	Copied     uint64 `json:"copied"`     // documents read by copies
	Filtered   uint64 `json:"filtered"`   // changes that Filter, or a policy, left out
	Poisoned   uint64 `json:"poisoned"`   // changes that Map or a schema refused
	Oversize   uint64 `json:"oversize"`   // events that were too large for the broker
	Gaps       uint64 `json:"gaps"`       // gap events
	Reopened   uint64 `json:"reopened"`   // change streams opened again
	Fenced     uint64 `json:"fenced"`     // times that another instance was ahead, or the lock was lost
	InFlight   int    `json:"inFlight"`   // changes read and not published now
}

// stalled is how many waits for a change may pass without an answer.
const stalled = 3

type status struct {
	mu       sync.Mutex
	now      Stats
	state    State
	since    time.Time
	err      error // why it failed
	readErr  error // why there is no change stream; nil: there is one
	writeErr error // why nothing is published; nil: it is
	mode     Mode
	noAtomic bool // the broker takes no atomic batches
	leading  bool // the lock is ours
	opened   bool
	copying  bool
	heard    time.Time // when MongoDB answered last
	await    time.Duration
	token    Token
	newest   uint32 // cluster time, in seconds
	position uint32 // cluster time up to which there is no change but those in flight
}

func (s *status) begin() { s.state, s.since = Starting, time.Now() }

// change applies f, and notes when the state has changed.
func (s *status) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.refresh()
}

// refresh works out the state. s.mu is held.
func (s *status) refresh() {
	state := s.state
	switch state { //nolint:exhaustive // the others follow from what is known
	case Failed, Stopped, Standby:
		return
	}
	switch {
	case s.readErr != nil, s.writeErr != nil, s.opened && s.now.InFlight == 0 && time.Since(s.heard) > stalled*s.await+time.Second:
		state = Reconnecting
	case !s.opened:
		state = Starting
	case s.copying:
		state = Copying
	default:
		state = Streaming
	}
	s.enter(state)
}

func (s *status) enter(state State) {
	if s.state != state {
		s.state, s.since = state, time.Now()
	}
}

// lead begins a turn. One that follows a failure is not better off before it has shown that.
func (s *status) lead() {
	s.change(func() {
		if s.writeErr == nil || s.state == Standby {
			s.enter(Starting)
		}
		s.leading, s.opened, s.readErr, s.now.InFlight, s.position = true, false, nil, 0, 0
	})
}

// rest ends a turn.
func (s *status) rest() { s.change(func() { s.leading = false }) }

func (s *status) isLeading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leading
}

// waits records the state while the feed waits for its lock: whether another instance holds
// it, or why that is unknown.
func (s *status) waits(held bool, err error) {
	s.change(func() {
		switch {
		case s.leading || s.state == Failed || s.state == Stopped:
		case err != nil:
			s.writeErr = err
			s.enter(Reconnecting)
		case held:
			s.readErr, s.writeErr = nil, nil
			s.enter(Standby)
		case s.state == Standby:
			s.enter(Starting)
		}
	})
}

// written notes that everything up to t is published.
func (s *status) written(t Token) {
	s.change(func() { s.token, s.writeErr = t, nil })
}
func (s *status) stop() { s.change(func() { s.enter(Stopped) }) }
func (s *status) fail(err error) {
	s.change(func() { s.enter(Failed); s.err = err })
}

// fenced ends a turn that lost its lock, or whose save was refused with err because another
// instance is ahead. waits records later which instance that is, and that all is well.
func (s *status) fenced(err error) {
	s.change(func() {
		s.now.Fenced++
		s.now.InFlight, s.opened, s.readErr = 0, false, nil
		if err != nil {
			s.writeErr = err
		}
	})
}

// use notes the mode in force.
func (s *status) use(m Mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mode = m; m == Atomic && s.noAtomic {
		s.mode = Serial
	}
}

// useSerial notes that there are no atomic batches.
func (s *status) useSerial() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode, s.noAtomic = Serial, true
}

func (s *status) modeNow() Mode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode
}

// open notes a change stream, with how long MongoDB may wait before it answers.
func (s *status) open(await time.Duration, copying bool) {
	s.change(func() { s.opened, s.readErr, s.heard, s.await, s.copying = true, nil, time.Now(), await, copying })
}

// answered notes that MongoDB has answered, at a cluster time.
func (s *status) answered(newest bson.Timestamp) {
	s.change(func() { s.heard, s.newest = time.Now(), max(s.newest, newest.T) })
}

// idle notes the same, and that there is no change up to a position but those in flight.
func (s *status) idle(newest, position bson.Timestamp) {
	s.change(func() { s.heard, s.newest, s.position = time.Now(), max(s.newest, newest.T), position.T })
}

func (s *status) reading(err error) { s.change(func() { s.readErr = err; s.now.Reopened++ }) }
func (s *status) writing(err error) {
	s.change(func() { s.writeErr = err; s.heard = time.Now() })
}

func (s *status) count(f func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.now)
}

func (s *status) stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *status) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Stats returns the counters of this instance.
func (f *Feed) Stats() Stats { return f.status.stats() }

// Status returns what the feed is doing now.
func (f *Feed) Status() Status {
	s := &f.status
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	out := Status{State: s.state, Since: s.since, Mode: s.mode, Token: s.token}
	if err := errors.Join(s.err, s.readErr, s.writeErr); err != nil {
		out.Error = err.Error()
	}
	t := s.token.Timestamp().T
	if s.now.InFlight == 0 {
		t = max(t, s.position)
	}
	if t > 0 && s.newest > t {
		out.Lag = time.Duration(s.newest-t) * time.Second
	}
	return out
}

// Ready returns nil if the feed publishes or another instance holds the lock, and otherwise
// the reason. A feed that has been reconnecting for less than ReadyGrace is ready.
func (f *Feed) Ready() error {
	s := f.Status()
	switch s.State { //nolint:exhaustive // in the others it is not ready
	case Streaming, Copying, Standby:
		return nil
	case Reconnecting:
		if time.Since(s.Since) < f.o.ReadyGrace {
			return nil
		}
	}
	reason := ""
	if s.Error != "" {
		reason = ": " + s.Error
	}
	return fmt.Errorf("change feed %s is %s since %s%s", f.o.Name, s.State, s.Since.UTC().Format(time.RFC3339), reason)
}
