package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-63e9a637/jetbus/embedded"
)

// ErrNoLeader is returned if no running node leads a stream or consumer: an
// election is under way, too few of its nodes run, or it does not exist.
var ErrNoLeader = errors.New("no leader")

// stepDownRetry is when a leader that is still in office is asked again.
const stepDownRetry = 2 * time.Second

// StreamLeader is the node that leads the stream now. The error is [ErrNoLeader].
func (c *Cluster) StreamLeader(stream string) (int, error) {
	return c.leader("stream "+stream, func(s *server.Server) bool {
		return s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream)
	})
}

// ConsumerLeader is the node that leads the consumer of the stream now. The
// error is [ErrNoLeader].
func (c *Cluster) ConsumerLeader(stream, consumer string) (int, error) {
	return c.leader("consumer "+stream+"/"+consumer, func(s *server.Server) bool {
		return s.JetStreamIsConsumerLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream, consumer)
	})
}

func (c *Cluster) leader(what string, leads func(*server.Server) bool) (int, error) {
	for i, b := range c.nodes {
		if s := b.Server(); s != nil && leads(s) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%s: %w", what, ErrNoLeader)
}

// StepDown makes the leader of the stream give up its office and waits until
// another node has taken it. A stream with one replica has nobody else, which
// is an error; so is [ErrNoLeader] at the beginning.
func (c *Cluster) StepDown(ctx context.Context, stream string) error {
	old, err := c.StreamLeader(stream)
	if err != nil {
		return err
	}
	var asked time.Time
	err = poll(ctx, func() error {
		now, err := c.StreamLeader(stream)
		if err != nil || now != old {
			return err
		}
		err = fmt.Errorf("node %d still leads", old)
		s := c.nodes[old].Server()
		if s == nil || time.Since(asked) < stepDownRetry {
			return err
		}
		asked = time.Now()
		if replicas(s, stream) == 1 {
			return final{errors.New("it has a single replica")}
		}
		if e := s.JetStreamStepdownStream(server.DEFAULT_GLOBAL_ACCOUNT, stream); e != nil {
			return final{e}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("step down leader of stream %s: %w", stream, err)
	}
	return nil
}

func replicas(s *server.Server, stream string) int {
	for _, d := range streams(s) {
		if d.Name == stream && d.Config != nil {
			return d.Config.Replicas
		}
	}
	return 0
}

// streams lists the streams and consumers that have a replica on the server.
func streams(s *server.Server) []server.StreamDetail {
	js, err := s.Jsz(&server.JSzOptions{Accounts: true, Streams: true, Consumer: true, Config: true})
	if err != nil {
		return nil // shut down meanwhile
	}
	for _, a := range js.AccountDetails {
		if a.Name == server.DEFAULT_GLOBAL_ACCOUNT {
			return a.Streams
		}
	}
	return nil
}

// WaitReady waits until the running nodes have elected a leader of the cluster
// that sees them all, every stream and consumer on them has a leader, and their
// replicas have caught up. Nodes that are down are not waited for, so this ends
// after KillNode as well as after RestartNode, as long as a majority is left.
// The error says what is missing when ctx ends.
func (c *Cluster) WaitReady(ctx context.Context) error {
	if err := poll(ctx, c.ready); err != nil {
		return fmt.Errorf("cluster not ready: %w", err)
	}
	return nil
}

// ready is nil, or says what is missing.
func (c *Cluster) ready() error {
	var running []*server.Server
	for i, b := range c.nodes {
		switch err := b.Err(); {
		case errors.Is(err, embedded.ErrNotRunning):
			continue
		case err != nil:
			return final{fmt.Errorf("node %d: %w", i, err)}
		}
		if srv := b.Server(); srv != nil {
			running = append(running, srv)
		}
	}
	// A leader that has lost its followers takes seconds to notice.
	if len(running) <= c.cfg.Nodes/2 {
		return fmt.Errorf("%d of %d nodes run, which is no majority", len(running), c.cfg.Nodes)
	}
	if err := seesAll(running); err != nil {
		return err
	}
	for _, s := range running {
		if err := c.assetsReady(s, running); err != nil {
			return err
		}
		if !s.JetStreamIsCurrent() {
			return fmt.Errorf("%s has not caught up", s.Name())
		}
		if h := s.Healthz(nil); h.StatusCode != http.StatusOK {
			return fmt.Errorf("%s is not healthy: %s", s.Name(), h.Error)
		}
	}
	return nil
}

// assetsReady says whether the streams and consumers with a replica on s have a
// leader and a majority.
func (c *Cluster) assetsReady(s *server.Server, running []*server.Server) error {
	for _, d := range streams(s) {
		if _, err := c.StreamLeader(d.Name); err != nil {
			return err
		}
		if !majority(d.Cluster, running) {
			return fmt.Errorf("stream %s: no majority of its replicas runs", d.Name)
		}
		for _, o := range d.Consumer {
			if _, err := c.ConsumerLeader(d.Name, o.Name); err != nil {
				return err
			}
			if !majority(o.Cluster, running) {
				return fmt.Errorf("consumer %s/%s: no majority of its replicas runs", d.Name, o.Name)
			}
		}
	}
	return nil
}

// majority says whether most members of a group run, as seen by one that does
// and is not in the list itself. Without replication there is no group.
func majority(group *server.ClusterInfo, running []*server.Server) bool {
	if group == nil {
		return true
	}
	up := 1
	for _, r := range group.Replicas {
		if slices.ContainsFunc(running, func(s *server.Server) bool { return s.Name() == r.Name }) {
			up++
		}
	}
	return 2*up > 1+len(group.Replicas)
}

// seesAll says whether one of the servers leads the cluster and sees them all.
// A leader that does not would refuse to place replicas on the rest.
func seesAll(running []*server.Server) error {
	for _, s := range running {
		if !s.JetStreamIsLeader() {
			continue
		}
		peers := s.JetStreamClusterPeers()
		for _, o := range running {
			if !slices.Contains(peers, o.Name()) {
				return fmt.Errorf("the leader %s does not see %s", s.Name(), o.Name())
			}
		}
		return nil
	}
	return fmt.Errorf("the %d running nodes have no leader", len(running))
}

// final is an error that no waiting heals.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// poll calls try until it returns nil or a final error. When ctx ends, the error
// is that of ctx with the last one of try.
func poll(ctx context.Context, try func() error) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		if f, ok := errors.AsType[final](err); ok {
			return f.error
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}
