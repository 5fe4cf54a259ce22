package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
)

// rawWindow is how many publishes the raw publishers have on their way.
const rawWindow = 4096

// windowed is a hand-written publisher: a window of messages, one subscription
// for all acknowledgements, nothing kept for a message.
type windowed struct {
	nc     *nats.Conn
	sub    *nats.Subscription
	prefix string

	mu   sync.Mutex
	cond *sync.Cond
	sent uint64
	got  uint64
	err  error
}

func newWindowed(nc *nats.Conn) (*windowed, error) {
	w := &windowed{nc: nc, prefix: nc.NewInbox() + "."}
	w.cond = sync.NewCond(&w.mu)
	var err error
	if w.sub, err = nc.Subscribe(w.prefix+"*", w.acknowledged); err != nil {
		return nil, err
	}
	return w, w.sub.SetPendingLimits(-1, -1)
}

func (w *windowed) acknowledged(m *nats.Msg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got++
	if len(m.Data) == 0 || bytes.HasPrefix(m.Data, []byte(`{"error"`)) {
		w.err = fmt.Errorf("refused: %s", m.Data)
	}
	if w.got%64 == 0 || w.sent-w.got < 64 || w.err != nil {
		w.cond.Signal()
	}
}

func (w *windowed) publish(m *nats.Msg) error {
	w.mu.Lock()
	for w.sent-w.got >= rawWindow && w.err == nil {
		w.cond.Wait()
	}
	w.sent++
	m.Reply = w.prefix + strconv.FormatUint(w.sent, 36)
	err := w.err
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.nc.PublishMsg(m)
}

// finish waits for the last acknowledgement and lets go of the subscription.
func (w *windowed) finish(ctx context.Context) error {
	defer func() { _ = w.sub.Unsubscribe() }()
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = ctx.Err()
		w.cond.Signal()
	})
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.got < w.sent && w.err == nil {
		w.cond.Wait()
	}
	return w.err
}

// fill stores n events in the lane, as the raw jobs do.
func (l *lane) fill(ctx context.Context, n, size int) error {
	w, err := newWindowed(l.e.raw)
	if err != nil {
		return err
	}
	all := events(l.topic, n, size)
	for i := range all {
		if err := w.publish(&nats.Msg{Subject: l.subject, Header: rawHeader(&all[i]), Data: all[i].Payload}); err != nil {
			return err
		}
	}
	return w.finish(ctx)
}
