// Package cluster runs a JetStream cluster of embedded brokers inside this process, for tests
// of what elections, lost nodes and lagging replicas do.
//
// The package promises:
//
//   - All its ports are on loopback, and only nodes of the cluster are let into those between
//     the nodes.
//   - A Cluster that [Start] returned can be used, and when Stop returns no goroutine, no open
//     file and no temporary folder of it is left.
//   - [Cluster.KillNode] takes a node away between two messages, and what it had confirmed is
//     in its store when it comes back.
//   - [Cluster.CutNode] takes a node away from the others, and leaves its clients with it.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

const (
	defaultNodes = 3
	defaultName  = "jetbus"
	// startAttempts is how often a cluster is tried on other ports, after
	// somebody took a port between its reservation and its use.
	startAttempts = 5
	readyPoll     = 10 * time.Millisecond
)

// Config configures a [Cluster]. The zero value is a cluster of three
// nodes with temporary stores, on loopback, without credentials.
type Config struct {
	// Nodes is the number of nodes, at least 3. Default 3.
	Nodes int
	// Name is the cluster's name, a single word; its nodes are called Name-0,
	// Name-1 and so on. Default "jetbus".
	Name string
	// Dir is the folder that holds one store folder for each node, called like
	// the node. Default "": a temporary folder that Stop removes.
	Dir string
	// User and Password, or Token, are the credentials that every client must
	// present; Connect presents them by itself. Default "": none.
	User, Password, Token string
	// SyncAlways, MaxMemory, MaxStore and MaxPayload are, for each node, what
	// they are in [embedded.Config], with the same defaults.
	SyncAlways          bool
	MaxMemory, MaxStore int64
	MaxPayload          int
	// Logger receives the log lines of all nodes, each with the attribute
	// "node". Default nil: they are discarded.
	Logger *slog.Logger
}

// Cluster is a JetStream cluster in this process. Nodes are numbered from 0. Its
// methods may be called concurrently. A Cluster is made by [Start] and
// must be stopped.
type Cluster struct {
	cfg   Config
	dir   string
	temp  bool
	nodes []*embedded.Broker // fixed once Start has returned, as mesh is
	mesh  *mesh

	removing sync.Mutex // one Stop at a time removes the folder
}

// Start starts a cluster and returns when it can be used, see
// [Cluster.WaitReady]. All its ports are on loopback: one for clients and one
// for routes per node, the latter protected by TLS. If it fails or ctx ends
// before, nothing is left behind.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.Nodes == 0 {
		cfg.Nodes = defaultNodes
	}
	if cfg.Nodes < defaultNodes {
		return nil, fmt.Errorf("cluster: invalid config: Nodes %d is less than %d (embedded.Start makes a single broker)", cfg.Nodes, defaultNodes)
	}
	if cfg.Name == "" {
		cfg.Name = defaultName
	}
	c := &Cluster{cfg: cfg, dir: cfg.Dir}
	if cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "jetbus-cluster-*")
		if err != nil {
			return nil, fmt.Errorf("start cluster: %w", err)
		}
		c.dir, c.temp = dir, true
	}
	err := c.start(ctx)
	for range startAttempts - 1 {
		if err == nil || !portTaken(err) {
			break
		}
		err = c.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start cluster: %w", err), c.removeTemp())
	}
	return c, nil
}

// portTaken recognizes an error that other ports may heal. The server reports it
// as text only; the second form is that of Windows.
func portTaken(err error) bool {
	return strings.Contains(err.Error(), "address already in use") ||
		strings.Contains(err.Error(), "Only one usage of each socket address")
}

// start starts the nodes on ports of their own and stops them if that fails.
func (c *Cluster) start(ctx context.Context) error {
	ports, err := freePorts(c.cfg.Nodes)
	if err != nil {
		return err
	}
	m, err := newMesh(c.cfg.Name, ports)
	if err != nil {
		return err
	}
	c.nodes, c.mesh = nil, m
	for i := range c.cfg.Nodes {
		b, err := embedded.Start(ctx, c.nodeConfig(i, &routes{mesh: m, node: i}))
		if err != nil {
			return errors.Join(err, c.stopNodes(context.WithoutCancel(ctx)))
		}
		c.nodes = append(c.nodes, b)
	}
	if err := c.WaitReady(ctx); err != nil {
		return errors.Join(err, c.stopNodes(context.WithoutCancel(ctx)))
	}
	return nil
}

func (c *Cluster) nodeConfig(i int, r embedded.Routes) embedded.Config {
	name := c.nodeName(i)
	cfg := embedded.Config{
		Name: name, Routes: r, Dir: filepath.Join(c.dir, name),
		// Without a listener of clients a clustered server waits for one for ever.
		Listen: "127.0.0.1:0",
		User:   c.cfg.User, Password: c.cfg.Password, Token: c.cfg.Token,
		SyncAlways: c.cfg.SyncAlways, MaxMemory: c.cfg.MaxMemory, MaxStore: c.cfg.MaxStore, MaxPayload: c.cfg.MaxPayload,
	}
	if c.cfg.Logger != nil {
		cfg.Logger = c.cfg.Logger.With(slog.String("node", name))
	}
	return cfg
}

func (c *Cluster) nodeName(i int) string { return fmt.Sprintf("%s-%d", c.cfg.Name, i) }

// freePorts finds n loopback ports that are free now.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		// All are held until the last one is known, so that they differ.
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a port of loopback is there or not
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// Connect opens a connection to any node, with the configured credentials. It
// knows all nodes and reconnects without limit, after about 20 ms each time; a node has 30 s to answer. The
// options are applied after these defaults and may override them.
func (c *Cluster) Connect(o ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect(strings.Join(c.URLs(), ","), append(c.nodeConfig(0, nil).ClientOptions(), o...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	return nc, nil
}

// URLs are the client addresses of all nodes, also of those that are down. They
// do not change and hold no credentials.
func (c *Cluster) URLs() []string {
	urls := make([]string, len(c.nodes))
	for i, b := range c.nodes {
		urls[i] = b.URL()
	}
	return urls
}

// Node is the broker of node i, nil if there is no such node. Its Restart and
// Kill may be used instead of RestartNode and KillNode; it must not be stopped
// by itself.
func (c *Cluster) Node(i int) *embedded.Broker {
	if i < 0 || i >= len(c.nodes) {
		return nil
	}
	return c.nodes[i]
}

// KillNode ends node i as [embedded.Broker.Kill] does. The other nodes lose it between
// two messages and learn nothing of it but that; what node i had confirmed to
// them is in its store. It does not wait for them to elect another leader: see
// WaitReady.
func (c *Cluster) KillNode(ctx context.Context, i int) error {
	b, err := c.node(i)
	if err != nil {
		return err
	}
	if err := b.Kill(ctx); err != nil {
		return fmt.Errorf("node %d: %w", i, err)
	}
	return nil
}

// RestartNode starts node i again on the same store and ports; it stops it
// cleanly first if it runs. It does not wait for the node to catch up: see
// WaitReady.
func (c *Cluster) RestartNode(ctx context.Context, i int) error {
	b, err := c.node(i)
	if err != nil {
		return err
	}
	if err := b.Restart(ctx); err != nil {
		return fmt.Errorf("node %d: %w", i, err)
	}
	return nil
}

// CutNode severs the routes between node i and the others, which takes effect at once, until
// HealNode or RestartNode. Its clients keep their connections to it: until it notices, after
// 10 seconds and more, it goes on leading what it led.
func (c *Cluster) CutNode(i int) error {
	if _, err := c.node(i); err != nil {
		return err
	}
	c.mesh.cut(i)
	return nil
}

// HealNode lets the routes of node i come back, which the nodes try about once a second. It
// does not wait for them: see WaitReady.
func (c *Cluster) HealNode(i int) error {
	if _, err := c.node(i); err != nil {
		return err
	}
	c.mesh.open(i)
	return nil
}

func (c *Cluster) node(i int) (*embedded.Broker, error) {
	if b := c.Node(i); b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("no node %d in a cluster of %d", i, len(c.nodes))
}

// Stop stops all nodes and removes the folder if it is a temporary one. It may
// be called again and concurrently. If ctx ends while it waits, its error is returned
// while the shutdown goes on, and a further Stop completes it.
func (c *Cluster) Stop(ctx context.Context) error {
	ctx, release := shutdown.Context(ctx, 0)
	defer release()
	if err := c.stopNodes(ctx); err != nil {
		return err
	}
	if err := c.removeTemp(); err != nil {
		return fmt.Errorf("stop cluster: %w", err)
	}
	return nil
}

func (c *Cluster) stopNodes(ctx context.Context) error {
	errs := make([]error, len(c.nodes))
	var wg sync.WaitGroup
	for i, b := range c.nodes {
		wg.Go(func() {
			if err := b.Stop(ctx); err != nil {
				errs[i] = fmt.Errorf("node %d: %w", i, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *Cluster) removeTemp() error {
	if !c.temp {
		return nil
	}
	c.removing.Lock()
	defer c.removing.Unlock()
	return os.RemoveAll(c.dir)
}
