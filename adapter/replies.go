package adapter

import (
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// replies is one subscription for all answers the bus waits for itself. (nats.go has
// one of its own for Request; it cannot be told to call back.)
type replies struct {
	sub    *nats.Subscription
	prefix string

	mu      sync.Mutex
	next    uint64
	waits   map[uint64]func(*nats.Msg)
	batches map[uint64]func(i int, m *nats.Msg)
}

func newReplies(nc *nats.Conn) (*replies, error) {
	r := &replies{prefix: nc.NewInbox() + ".", waits: map[uint64]func(*nats.Msg){}, batches: map[uint64]func(int, *nats.Msg){}}
	var err error
	if r.sub, err = nc.Subscribe(r.prefix+"*", r.receive); err != nil {
		return nil, err
	}
	return r, r.sub.SetPendingLimits(-1, -1)
}

// expect returns a reply subject whose first answer goes to f, on the
// subscription's goroutine: f must not block. forget ends the wait.
func (r *replies) expect(f func(*nats.Msg)) (reply string, forget func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	token := r.next
	r.waits[token] = f
	return r.prefix + strconv.FormatUint(token, 36), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.waits, token)
	}
}

// expectBatch returns the beginning of reply subjects, to which the number of a
// message in base 36 is appended; answers go to f with that number.
func (r *replies) expectBatch(f func(i int, msg *nats.Msg)) (reply string, forget func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	token := r.next
	r.batches[token] = f
	return r.prefix + strconv.FormatUint(token, 36) + "-", func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.batches, token)
	}
}

func (r *replies) receive(msg *nats.Msg) {
	first, second, isBatch := strings.Cut(strings.TrimPrefix(msg.Subject, r.prefix), "-")
	token, err := strconv.ParseUint(first, 36, 64)
	if err != nil {
		return
	}
	if isBatch {
		r.receiveBatch(token, second, msg)
		return
	}
	r.mu.Lock()
	f := r.waits[token]
	delete(r.waits, token)
	r.mu.Unlock()
	if f != nil {
		f(msg)
	}
}

func (r *replies) receiveBatch(token uint64, number string, msg *nats.Msg) {
	i, err := strconv.ParseInt(number, 36, 32)
	if err != nil || i < 0 {
		return
	}
	r.mu.Lock()
	f := r.batches[token]
	r.mu.Unlock()
	if f != nil {
		f(int(i), msg)
	}
}

// stop ends the subscription. Its error, a connection that is closed already,
// means the same.
func (r *replies) stop() { _ = r.sub.Unsubscribe() }
