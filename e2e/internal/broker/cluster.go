//go:build unix

package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
)

// nodes is how many a cluster has.
const nodes = 3

// node is the configuration of a node of a cluster.
type node struct {
	Name, Dir   string
	Port, Route int
	Routes      []int
}

func runNode(ctx context.Context, text []byte, p *child.Parent) error {
	var c node
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	o := &server.Options{
		ServerName: c.Name, Host: "127.0.0.1", Port: c.Port, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: filepath.Join(c.Dir, c.Name), JetStreamMaxStore: 1 << 50, DisableJetStreamBanner: true,
		AuthTimeout: 60, // nats.go closes a connection for good that was told of a timeout, after 2 s by default
		Cluster:     server.ClusterOpts{Name: "e2e", Host: "127.0.0.1", Port: c.Route, NoAdvertise: true},
	}
	for _, port := range c.Routes {
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(limit) {
		return fmt.Errorf("node %s does not come up", c.Name)
	}
	p.Tell(ready{})
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// Cluster is three brokers that replicate their streams, each of which may be killed and
// started again in its place. Its methods are for one goroutine at a time.
type Cluster struct {
	nodes     [nodes]node
	processes [nodes]*child.Process[ready]
}

// StartCluster starts a cluster, which is killed at the end of the test. Its nodes take
// clients, but may not have found each other yet.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{}
	dir := t.TempDir()
	var ports [2 * nodes]int
	for i := range ports {
		var err error
		if ports[i], err = FreePort(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, p := range c.processes {
			clean(t, p)
		}
	})
	for i := range c.nodes {
		c.nodes[i] = node{Name: fmt.Sprintf("n%d", i), Dir: dir, Port: ports[i], Route: ports[nodes+i], Routes: ports[nodes:]}
		if err := c.start(i); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range c.processes {
		if err := awaitReady(p); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *Cluster) start(i int) (err error) {
	c.processes[i], err = child.Start[ready](roleNode, c.nodes[i])
	return err
}

// URL names all nodes.
func (c *Cluster) URL() string {
	var urls []string
	for _, n := range c.nodes {
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", n.Port))
	}
	return strings.Join(urls, ",")
}

// Kill ends a node by SIGKILL, by the name that [Leaders] has, say.
func (c *Cluster) Kill(name string) error {
	i, err := c.index(name)
	if err != nil {
		return err
	}
	if err := c.processes[i].Err(); err != nil {
		return err
	}
	c.processes[i].Kill()
	return nil
}

// Restart starts a node that does not run, and returns when it takes clients.
func (c *Cluster) Restart(name string) error {
	i, err := c.index(name)
	if err != nil {
		return err
	}
	if err := c.start(i); err != nil {
		return err
	}
	return awaitReady(c.processes[i])
}

func (c *Cluster) index(name string) (int, error) {
	for i, n := range c.nodes {
		if n.Name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no node is called %q", name)
}

// Leaders are the nodes that lead a stream and one of its consumers.
type Leaders struct{ Stream, Consumer string }

// AwaitWhole waits until a stream and a consumer of it have a leader, and two replicas
// each that have caught up. What is missing is in the error when ctx ends before.
func AwaitWhole(ctx context.Context, js jetstream.JetStream, stream, consumer string) (Leaders, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		l, missing := look(ctx, js, stream, consumer)
		if missing == nil {
			return l, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Leaders{}, missing
		}
	}
}

// look is bounded: a node that died just now does not answer, and another would.
func look(ctx context.Context, js jetstream.JetStream, stream, consumer string) (Leaders, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return Leaders{}, fmt.Errorf("stream %s: %w", stream, err)
	}
	c, err := s.Consumer(ctx, consumer)
	if err != nil {
		return Leaders{}, fmt.Errorf("consumer %s: %w", consumer, err)
	}
	ofStream, ofConsumer := s.CachedInfo().Cluster, c.CachedInfo().Cluster
	if !whole(ofStream) || !whole(ofConsumer) {
		return Leaders{}, fmt.Errorf("the cluster is not whole: stream %+v, consumer %+v", ofStream, ofConsumer)
	}
	return Leaders{Stream: ofStream.Leader, Consumer: ofConsumer.Leader}, nil
}

// whole reports whether something has a leader whom all others follow.
func whole(info *jetstream.ClusterInfo) bool {
	if info == nil || info.Leader == "" || len(info.Replicas) != nodes-1 {
		return false
	}
	for _, r := range info.Replicas {
		if !r.Current || r.Offline {
			return false
		}
	}
	return true
}
