// Package budget limits the memory and the concurrent work of a gateway's clients.
//
// A [Budget] is a tree of three levels: the process, its subjects, and one account for each connection or
// request of a subject. A quantity counts at all three levels and is granted only if each has room. A level
// that holds nothing of a kind grants any quantity, so that a large request is served alone instead of never.
//
// Acquire takes a quantity from the lowest level first, and waits in line at each level that has no room or has
// other waiters. While it waits, it keeps what it got of lower levels. So a subject has no more requests in the
// process's line than it may hold, and no subject overtakes another one in that line.
//
// TryAcquire fails with an [ExceededError], which names the level that refused. Close releases everything that
// an account still holds, so a broken connection leaks nothing. The package starts no goroutines and no timers.
// Granting and releasing take constant time, and so does each waiter that a release wakes.
package budget

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Kind is a kind of resource. Kinds are counted independently of each other.
type Kind int

// The kinds of resources.
const (
	Bytes Kind = iota // in memory
	Calls             // concurrent requests to the broker
	Scans             // concurrent reads through a topic
	Reads             // concurrent reads for a single client; the limit is one for each 4 MiB of Limit.Bytes
	Work              // large bodies that are being parsed
	kinds
)

// Level is a level of the tree.
type Level int

// The levels, from the leaf to the root.
const (
	Connection Level = iota
	Subject
	Process
	levels
)

// String returns the name of the level.
func (l Level) String() string { return [...]string{"connection", "subject", "process"}[l] }

// RetryAfter is how long a client should wait before it repeats a refused request.
const RetryAfter = time.Second

// ErrClosed is returned by an account that was closed.
var ErrClosed = errors.New("the account is closed")

// ExceededError is returned when a level refuses a quantity.
type ExceededError struct {
	Level      Level         // the lowest level that has no room, or where others wait in line
	RetryAfter time.Duration // how long to wait before the next attempt
}

// Error returns one line that names the level.
func (e *ExceededError) Error() string {
	return fmt.Sprintf("the budget of the %s is used up", e.Level)
}

// Limit is the most that each node of a level may hold. Its fields must be positive. A Work of 0 means 1.
type Limit struct {
	Bytes              int64
	Calls, Scans, Work int
}

func (l Limit) of(k Kind) int64 {
	return [...]int64{l.Bytes, int64(l.Calls), int64(l.Scans), max(1, l.Bytes>>22), max(1, int64(l.Work))}[k]
}

// Budget is the root of the tree. It is safe for concurrent use.
type Budget struct {
	limits [levels]Limit

	mu       sync.Mutex // guards the fields below, and all nodes and accounts of the tree
	process  node
	subjects map[string]*node // the subjects that hold something or have waiters
}

// node is the process, a subject or an account.
type node struct {
	used    [kinds]int64     // held, or taken by waiters in the lines of higher levels
	waiting [kinds]list.List // of *waiter; the first one has no room here
}

// waiter is a waiting call of Acquire. It has taken n from all levels below its own.
type waiter struct {
	account *Account
	n       int64
	level   Level         // the level in whose line it waits; levels: the quantity is granted
	at      *list.Element // in that line
	ready   chan struct{} // closed when the quantity is granted
}

// New returns a budget with a limit for each level.
func New(process, subject, connection Limit) *Budget {
	return &Budget{limits: [levels]Limit{connection, subject, process}, subjects: map[string]*node{}}
}

// Used returns what the process holds of a kind.
func (b *Budget) Used(k Kind) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.process.used[k]
}

// Account is what one connection or request of a subject holds. It is safe for concurrent use. A nil Account
// has no limit and counts nothing. A connection uses it until its subject is known.
type Account struct {
	b       *Budget
	subject string
	over    chan struct{} // closed by Close
	own     node
	held    [kinds]int64 // the part of own.used that is granted
	closed  bool
}

// Account returns a new account of a subject. The caller must close it.
func (b *Budget) Account(subject string) *Account {
	return &Account{b: b, subject: subject, over: make(chan struct{})}
}

// TryAcquire acquires n of a kind without waiting. The error is an [ExceededError] or [ErrClosed]. A quantity
// of 0 or less is always granted.
func (a *Account) TryAcquire(k Kind, n int64) error {
	if a == nil {
		return nil
	}
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	return a.takeLocked(k, n)
}

// Acquire acquires n of a kind and waits in line until there is room. If ctx ends first, the error is the
// [ExceededError] of the level that it waited for. If the account is closed, the error is [ErrClosed].
func (a *Account) Acquire(ctx context.Context, k Kind, n int64) error {
	if a == nil {
		return nil
	}
	b := a.b
	b.mu.Lock()
	err := a.takeLocked(k, n)
	if _, waits := errors.AsType[*ExceededError](err); !waits {
		b.mu.Unlock()
		return err
	}
	w := &waiter{account: a, n: n, ready: make(chan struct{})}
	w.advanceLocked(k)
	b.mu.Unlock()
	select {
	case <-w.ready:
	case <-a.over:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case w.level == levels && !a.closed:
		return nil
	case w.level == levels:
		a.releaseLocked(k, n) // does nothing if Close released it
		return ErrClosed
	}
	w.leaveLocked(k)
	if a.closed {
		return ErrClosed
	}
	return &ExceededError{w.level, RetryAfter}
}

// HasRoom reports whether there is room for n of a kind now. It ignores waiters in line.
func (a *Account) HasRoom(k Kind, n int64) bool {
	if a == nil {
		return true
	}
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	return a.hasRoomLocked(k, n)
}

func (a *Account) hasRoomLocked(k Kind, n int64) bool {
	defer a.forgetLocked()
	for l := range levels {
		if !a.fitsLocked(k, n, l) {
			return false
		}
	}
	return !a.closed
}

// TryAdd is like Add, but only if there is room for n now. It returns whether there was. Unlike TryAcquire it ignores
// waiters in line: a caller that polls would never get ahead of a long line.
func (a *Account) TryAdd(k Kind, n int64) bool {
	if a == nil {
		return true
	}
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	if !a.hasRoomLocked(k, n) {
		return false
	}
	if n > 0 {
		a.addLocked(k, n)
	}
	return true
}

// Add counts n of a kind whether or not there is room. It is for resources that are already in use.
func (a *Account) Add(k Kind, n int64) {
	if a == nil {
		return
	}
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	if !a.closed && n > 0 {
		a.addLocked(k, n)
	}
}

// Release releases n of a kind, or what the account holds if that is less.
func (a *Account) Release(k Kind, n int64) {
	if a == nil {
		return
	}
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	a.releaseLocked(k, n)
}

// Close releases everything that the account holds and ends its waiters with [ErrClosed]. It may be called
// more than once.
func (a *Account) Close() {
	if a == nil {
		return
	}
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	if a.closed {
		return
	}
	a.closed = true
	close(a.over)
	for k := range kinds {
		a.releaseLocked(k, a.held[k])
	}
}

// takeLocked implements TryAcquire.
func (a *Account) takeLocked(k Kind, n int64) error {
	if a.closed {
		return ErrClosed
	}
	if n <= 0 {
		return nil
	}
	if level := a.blockedLocked(k, n, Connection); level < levels {
		a.forgetLocked()
		return &ExceededError{level, RetryAfter}
	}
	a.addLocked(k, n)
	return nil
}

// blockedLocked returns the lowest level from the given one on that has no room for n or has waiters in line. It
// returns levels if there is none.
func (a *Account) blockedLocked(k Kind, n int64, from Level) Level {
	for l := from; l < levels; l++ {
		if a.nodeLocked(l).waiting[k].Len() > 0 || !a.fitsLocked(k, n, l) {
			return l
		}
	}
	return levels
}

// fitsLocked reports whether a level has room for n.
func (a *Account) fitsLocked(k Kind, n int64, l Level) bool {
	used := a.nodeLocked(l).used[k]
	return used == 0 || used+n <= a.b.limits[l].of(k)
}

func (a *Account) addLocked(k Kind, n int64) {
	a.held[k] += n
	for l := range levels {
		a.nodeLocked(l).used[k] += n
	}
}

func (a *Account) releaseLocked(k Kind, n int64) {
	if n = min(n, a.held[k]); n <= 0 {
		return
	}
	a.held[k] -= n
	for l := range levels {
		a.nodeLocked(l).used[k] -= n
	}
	a.wakeLocked(k)
}

// nodeLocked returns the account's node of a level.
func (a *Account) nodeLocked(l Level) *node {
	switch l {
	case Connection:
		return &a.own
	case Subject:
		s := a.b.subjects[a.subject]
		if s == nil {
			s = &node{}
			a.b.subjects[a.subject] = s
		}
		return s
	default:
		return &a.b.process
	}
}

// forgetLocked deletes the node of the account's subject if it holds nothing and has no waiters.
func (a *Account) forgetLocked() {
	s := a.b.subjects[a.subject]
	if s == nil || s.used != [kinds]int64{} {
		return
	}
	for k := range kinds {
		if s.waiting[k].Len() > 0 {
			return
		}
	}
	delete(a.b.subjects, a.subject)
}

// wakeLocked lets the waiters in the lines of the account's nodes advance, until the first in each line has no
// room there. It must be called whenever such a node has more room, or loses the first waiter of its line.
func (a *Account) wakeLocked(k Kind) {
	for l := range levels {
		at := a.nodeLocked(l)
		for at.waiting[k].Len() > 0 {
			w := at.waiting[k].Front().Value.(*waiter) //nolint:forcetypeassert // nothing else is in it
			if !w.account.fitsLocked(k, w.n, l) {
				break
			}
			at.waiting[k].Remove(w.at)
			at.used[k] += w.n
			w.level++
			w.advanceLocked(k)
		}
	}
	a.forgetLocked()
}

// advanceLocked takes the quantity from the waiter's level and those above it, up to the first one that has no
// room or has waiters in line. There the waiter gets in line. If there is none, the quantity is granted.
func (w *waiter) advanceLocked(k Kind) {
	a := w.account
	for next := a.blockedLocked(k, w.n, w.level); w.level < next; w.level++ {
		a.nodeLocked(w.level).used[k] += w.n
	}
	if w.level < levels {
		w.at = a.nodeLocked(w.level).waiting[k].PushBack(w)
		return
	}
	a.held[k] += w.n
	close(w.ready)
}

// leaveLocked ends the waiting of a waiter and returns what it has taken.
func (w *waiter) leaveLocked(k Kind) {
	a := w.account
	a.nodeLocked(w.level).waiting[k].Remove(w.at)
	for l := range w.level {
		a.nodeLocked(l).used[k] -= w.n
	}
	a.wakeLocked(k)
}
