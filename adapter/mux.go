package adapter

import (
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// mux is one subscription for all answers the bus waits for itself. (nats.go has
// one of its own for Request; it cannot be told to call back.)
type mux struct {
	sub    *nats.Subscription
	prefix string

	mu      sync.Mutex
	next    uint64
	waits   map[uint64]func(*nats.Msg)
	batches map[uint64]func(i int, m *nats.Msg)
}

func newMux(nc *nats.Conn) (*mux, error) {
	m := &mux{prefix: nc.NewInbox() + ".", waits: map[uint64]func(*nats.Msg){}, batches: map[uint64]func(int, *nats.Msg){}}
	var err error
	if m.sub, err = nc.Subscribe(m.prefix+"*", m.receive); err != nil {
		return nil, err
	}
	return m, m.sub.SetPendingLimits(-1, -1)
}

// expect returns a reply subject whose first answer goes to f, on the
// subscription's goroutine: f must not block. forget ends the wait.
func (m *mux) expect(f func(*nats.Msg)) (reply string, forget func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	token := m.next
	m.waits[token] = f
	return m.prefix + strconv.FormatUint(token, 36), func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.waits, token)
	}
}

// expectBatch returns the beginning of reply subjects, to which the number of a
// message in base 36 is appended; answers go to f with that number.
func (m *mux) expectBatch(f func(i int, msg *nats.Msg)) (reply string, forget func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	token := m.next
	m.batches[token] = f
	return m.prefix + strconv.FormatUint(token, 36) + "-", func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.batches, token)
	}
}

func (m *mux) receive(msg *nats.Msg) {
	first, second, isBatch := strings.Cut(strings.TrimPrefix(msg.Subject, m.prefix), "-")
	token, err := strconv.ParseUint(first, 36, 64)
	if err != nil {
		return
	}
	if isBatch {
		m.receiveBatch(token, second, msg)
		return
	}
	m.mu.Lock()
	f := m.waits[token]
	delete(m.waits, token)
	m.mu.Unlock()
	if f != nil {
		f(msg)
	}
}

func (m *mux) receiveBatch(token uint64, number string, msg *nats.Msg) {
	i, err := strconv.ParseInt(number, 36, 32)
	if err != nil || i < 0 {
		return
	}
	m.mu.Lock()
	f := m.batches[token]
	m.mu.Unlock()
	if f != nil {
		f(int(i), msg)
	}
}

// stop ends the subscription. Its error, a connection that is closed already,
// means the same.
func (m *mux) stop() { _ = m.sub.Unsubscribe() }
