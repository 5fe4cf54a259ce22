package main

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// pullLoop is a hand-written pull consumer: the callback that receives asks for
// more when half of what was asked for is here. Its connection must not break.
type pullLoop struct {
	nc      *nats.Conn
	subject string
	sub     *nats.Subscription
	size    int // messages asked for at most

	mu    sync.Mutex
	asked int
}

// pullExpiry outlives every run.
const pullExpiry = 5 * time.Minute

func newPullLoop(nc *nats.Conn, stream, durable string, size int, handle func(*nats.Msg)) (*pullLoop, error) {
	p := &pullLoop{nc: nc, subject: "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + durable, size: size}
	var err error
	p.sub, err = nc.Subscribe(nc.NewInbox(), func(m *nats.Msg) {
		if m.Reply == "" { // a status; runs end before it matters
			return
		}
		p.received()
		handle(m)
	})
	if err != nil {
		return nil, err
	}
	if err := p.sub.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p, p.askLocked()
}

func (p *pullLoop) askLocked() error {
	n := p.size - p.asked
	p.asked += n
	return p.nc.PublishRequest(p.subject, p.sub.Subject, fmt.Appendf(nil, `{"batch":%d,"expires":%s}`, n, strconv.FormatInt(int64(pullExpiry), 10)))
}

func (p *pullLoop) received() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked--
	if p.asked <= p.size/2 {
		_ = p.askLocked() // without a connection the run times out
	}
}

func (p *pullLoop) stop() { _ = p.sub.Unsubscribe() }
