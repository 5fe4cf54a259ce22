package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

// Client is a bus over a gateway. It is safe for concurrent use; end it with Close.
type Client struct {
	c            Config
	socket, base string
	publishes    chan struct{} // one in it for each that has no answer yet
	work         sync.WaitGroup
	over         chan struct{} // closed when Close begins
	idle         chan struct{} // closed when Close is done

	mu      sync.Mutex
	links   []*link // the first is there from Dial to Close
	members map[*member]struct{}
	readers map[*reading]struct{}
	held    map[heldKey][]jetbus.Lease
	names   uint64 // of subscriptions
	bearer  string // the last token
	closing bool
}

// heldKey is how others name an event that is held here.
type heldKey struct{ topic, group, id string }

// maxPublishes is how many publishes wait for their answers at once; more wait before they are sent.
const maxPublishes = 128

var (
	_ jetbus.Bus      = (*Client)(nil)
	_ jetbus.Batcher  = (*Client)(nil)
	_ jetbus.Receiver = (*Client)(nil)
	_ jetbus.Reader   = (*Client)(nil)
	_ jetbus.Store    = (*Client)(nil)
	_ jetbus.Topics   = (*Client)(nil)
)

// Dial connects to a gateway and returns when it has let the client in. Where the gateway is not
// reached it tries again while ctx allows, or for [Config].Timeout. The error
// wraps [jetbus.ErrInvalidOption], [jetbus.ErrDenied] or [jetbus.ErrUnavailable]. From then on the
// client reconnects by itself, until Close, or until the gateway says to stay away.
func Dial(ctx context.Context, config Config) (*Client, error) {
	config, err := config.normalize()
	if err != nil {
		return nil, fmt.Errorf("dial gateway: %w", err)
	}
	c := &Client{
		c: config, publishes: make(chan struct{}, maxPublishes), over: make(chan struct{}), idle: make(chan struct{}),
		members: map[*member]struct{}{}, readers: map[*reading]struct{}{}, held: map[heldKey][]jetbus.Lease{},
	}
	if c.socket, c.base, err = addresses(config.URL); err != nil {
		return nil, fmt.Errorf("dial gateway: %w", err)
	}
	l := newLink(c)
	if err := l.open(ctx); err != nil {
		c.c.HTTPClient.CloseIdleConnections()
		return nil, fmt.Errorf("dial gateway: %w", err)
	}
	c.links = []*link{l}
	return c, nil
}

// Close ends the client: it stops all subscriptions as [jetbus.Subscription.Stop] does, lets
// what is on its way be answered, closes the connections and returns when nothing runs any more;
// when ctx ends, what still runs is cut short. A ctx that was canceled before is not minded: handlers
// have their ShutdownTimeout, answers Config.Timeout. Afterwards calls return [jetbus.ErrClosed]. It may be called
// again, and concurrently, but not from inside a handler; calls behind the first wait for it, and fail
// when their ctx ends.
func (c *Client) Close(ctx context.Context) error {
	late := ctx.Err() != nil
	ctx, release := shutdown.Context(ctx, 0)
	defer release()
	c.mu.Lock()
	first := !c.closing
	c.closing = true
	members, readers, links := c.memberList(), make([]*reading, 0, len(c.readers)), slices.Clone(c.links)
	for r := range c.readers {
		readers = append(readers, r)
	}
	c.mu.Unlock()
	if !first {
		select {
		case <-c.idle:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("close: %w", cause(ctx))
		}
	}
	defer close(c.idle)
	close(c.over)
	for _, r := range readers {
		r.failed(jetbus.ErrClosed)
	}
	var all sync.WaitGroup
	for _, m := range members {
		all.Go(func() { _ = m.Stop(ctx) }) // it ends, whatever it says
	}
	all.Wait()
	if late {
		var cancel context.CancelFunc
		ctx, cancel = c.bound(ctx)
		defer cancel()
	}
	for range maxPublishes { // all have their answers then
		select {
		case c.publishes <- struct{}{}:
		case <-ctx.Done():
		}
	}
	for _, l := range links {
		all.Go(func() { l.close(ctx) })
	}
	all.Wait()
	c.work.Wait()
	c.c.HTTPClient.CloseIdleConnections()
	return nil
}

func (c *Client) memberList() []*member {
	out := make([]*member, 0, len(c.members))
	for m := range c.members {
		out = append(out, m)
	}
	return out
}

// main is the link that everything but subscriptions goes over.
func (c *Client) main() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return nil, jetbus.ErrClosed
	}
	return c.links[0], nil
}

// bound gives a context without a deadline that of the Config.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.c.Timeout)
}

// name makes up the name of a subscription, which no other of this client has had.
func (c *Client) name() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names++
	return fmt.Sprintf("c%d", c.names)
}

// place finds a link for a subscription, or makes one: over one connection a group's events of
// a topic go to one member only.
func (c *Client) place(ctx context.Context, id string, e endpoint, claims []string) (*link, error) {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return nil, jetbus.ErrClosed
	}
	for _, l := range c.links {
		if l.add(id, e, claims) {
			c.mu.Unlock()
			return l, nil
		}
	}
	c.mu.Unlock()
	l := newLink(c)
	if err := l.open(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	closing := c.closing
	if !closing {
		c.links = append(c.links, l)
		l.add(id, e, claims)
	}
	c.mu.Unlock()
	if closing {
		l.close(ctx)
		return nil, jetbus.ErrClosed
	}
	return l, nil
}

// leave takes a subscription off its link, and ends one that has no other.
func (c *Client) leave(l *link, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.remove(id) > 0 || c.closing || l == c.links[0] {
		return
	}
	c.links = slices.DeleteFunc(c.links, func(other *link) bool { return other == l })
	c.work.Go(l.closeSoon)
}

// cause is why a context ended, as an error that says what it means.
func cause(ctx context.Context) error {
	err := context.Cause(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: no answer in time: %w", jetbus.ErrUnavailable, err)
	}
	return err
}
