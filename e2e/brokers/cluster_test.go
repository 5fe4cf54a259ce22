package brokers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/cluster"
)

// writers publish to a stream until they are stopped, whatever happens to it.
type writers struct {
	wg   sync.WaitGroup
	stop context.CancelFunc

	mu    sync.Mutex
	acked []string
	more  chan struct{} // has a value when acked has grown
}

func startWriters(t *testing.T, js jetstream.JetStream, n int) *writers {
	ctx, cancel := context.WithCancel(t.Context())
	w := &writers{stop: cancel, more: make(chan struct{}, 1)}
	for i := range n {
		w.wg.Go(func() {
			pace := time.NewTicker(2 * time.Millisecond)
			defer pace.Stop()
			for j := 0; ctx.Err() == nil; j++ {
				w.publish(ctx, js, fmt.Sprintf("w%d-%d", i, j))
				<-pace.C
			}
		})
	}
	return w
}

func (w *writers) publish(ctx context.Context, js jetstream.JetStream, id string) {
	try, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := js.Publish(try, "s.a", []byte(id)); err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acked = append(w.acked, id)
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// wait waits until n more are acknowledged.
func (w *writers) wait(t *testing.T, n int) {
	t.Helper()
	ctx := patient(t)
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.acked)
	}
	for want := count() + n; count() < want; {
		select {
		case <-w.more:
		case <-ctx.Done():
			t.Fatal("publishing does not go on")
		}
	}
}

func TestClusterKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel() // elections are mostly waiting
	c, js := startCluster(t, cluster.Config{})
	s := stream(t, js, 3)
	persist(t, func(ctx context.Context) error {
		_, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy})
		return err
	})
	w := startWriters(t, js, 3)
	defer w.stop()
	w.wait(t, 50)

	old := leader(t, c)
	if err := election.StepDown(patient(t), c, "S"); err != nil {
		t.Fatal(err)
	}
	if now := leader(t, c); now == old {
		t.Errorf("node %d leads after its step down", now)
	}
	w.wait(t, 50)

	victim := leader(t, c)
	if err := c.KillNode(patient(t), victim); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReady(patient(t)); err != nil {
		t.Fatal(err)
	}
	if now := leader(t, c); now == victim {
		t.Errorf("dead node %d leads", victim)
	}
	if i, err := election.Leader(patient(t), c, func() (int, error) { return c.ConsumerLeader("S", "d") }); err != nil || i == victim {
		t.Errorf("node %d leads the consumer, %v; dead is %d", i, err, victim)
	}
	w.wait(t, 20)
	if err := c.RestartNode(patient(t), victim); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReady(patient(t)); err != nil {
		t.Fatal(err)
	}
	w.wait(t, 20)
	w.stop()
	w.wg.Wait()
	have := stored(t, js)
	for _, id := range w.acked {
		if !have[id] {
			t.Fatalf("%s was acknowledged and is lost", id)
		}
	}
}

func leader(t *testing.T, c *cluster.Cluster) int {
	t.Helper()
	i, err := election.Leader(patient(t), c, func() (int, error) { return c.StreamLeader("S") })
	if err != nil {
		t.Fatal(err)
	}
	if !c.Node(i).Server().JetStreamIsStreamLeader("$G", "S") {
		t.Errorf("node %d does not know that it leads", i)
	}
	return i
}

func TestClusterFolderAndCredentials(t *testing.T) {
	t.Parallel() // elections are mostly waiting
	cfg := cluster.Config{Name: "c", Dir: t.TempDir(), User: "u", Password: "p", MaxPayload: 1 << 16}
	c, js := startCluster(t, cfg)
	if len(c.URLs()) != 3 {
		t.Fatalf("URLs() = %q", c.URLs())
	}
	for i, url := range c.URLs() {
		if nc, err := nats.Connect(url); err == nil {
			nc.Close()
			t.Errorf("node %d needs no credentials", i)
		}
		roundTrip(t, url, nats.UserInfo("u", "p"))
		connect(t, c.Node(i))
		if want := filepath.Join(cfg.Dir, fmt.Sprintf("c-%d", i)); c.Node(i).Dir() != want {
			t.Errorf("Dir() of node %d = %q, want %q", i, c.Node(i).Dir(), want)
		}
	}
	stream(t, js, 3)
	persist(t, func(ctx context.Context) error { // which one whose answer is lost does not store again
		_, err := js.Publish(ctx, "s.a", []byte("kept"), jetstream.WithMsgID("kept"))
		return err
	})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := c.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := c.WaitReady(t.Context()); !errors.Is(err, embedded.ErrStopped) {
		t.Errorf("WaitReady after Stop: %v, want ErrStopped", err)
	}
	_, js = startCluster(t, cfg)
	if n := len(stored(t, js)); n != 1 {
		t.Errorf("%d messages in the folder, want 1", n)
	}
}

func TestClusterErrors(t *testing.T) {
	t.Parallel() // elections are mostly waiting
	c, js := startCluster(t, cluster.Config{})
	stream(t, js, 1)
	ctx := t.Context()
	if i, err := c.StreamLeader("S"); err != nil || c.Node(i) == nil {
		t.Errorf("leader of one replica: %d, %v", i, err)
	}
	if err := c.StepDown(ctx, "S"); err == nil || !strings.Contains(err.Error(), "single replica") {
		t.Errorf("StepDown of one replica: %v", err)
	}
	_, err := c.StreamLeader("T")
	_, err2 := c.ConsumerLeader("S", "nobody")
	for _, err := range []error{err, err2, c.StepDown(ctx, "T")} {
		if !errors.Is(err, cluster.ErrNoLeader) {
			t.Errorf("%v, want ErrNoLeader", err)
		}
	}
	// Whoever sits elections out asks until there is a leader, or the time is over.
	asked := 0
	i, err := election.Leader(patient(t), c, func() (int, error) {
		if asked++; asked < 3 {
			return 0, cluster.ErrNoLeader
		}
		return 2, nil
	})
	if i != 2 || err != nil || asked != 3 {
		t.Errorf("node %d leads after %d questions, %v", i, asked, err)
	}
	over, end := context.WithCancel(ctx)
	end()
	if err := election.StepDown(over, c, "T"); !errors.Is(err, context.Canceled) || !errors.Is(err, cluster.ErrNoLeader) {
		t.Errorf("when the time is over: %v", err)
	}
	for _, i := range []int{-1, 3} {
		if c.Node(i) != nil || c.KillNode(ctx, i) == nil || c.RestartNode(ctx, i) == nil || c.CutNode(i) == nil || c.HealNode(i) == nil {
			t.Errorf("there is a node %d", i)
		}
	}
	// Without a majority it is never ready, and says why.
	for i := range 2 {
		if err := c.KillNode(ctx, i); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := c.WaitReady(short); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no majority") {
		t.Errorf("WaitReady without a majority: %v", err)
	}
}

func TestClusterThatCannotStart(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  cluster.Config
		want string
	}{
		"one node":  {cluster.Config{Nodes: 1}, "Nodes 1 is less than 3"},
		"negative":  {cluster.Config{Nodes: -1}, "Nodes -1 is less than 3"},
		"no secret": {cluster.Config{User: "u"}, "no Password for User"},
		"bad name":  {cluster.Config{Name: "a b"}, "spaces in Name"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := cluster.Start(t.Context(), tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Start: %v, want %q", err, tc.want)
			}
		})
	}
	// Interrupted while it waits for its leader.
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := cluster.Start(ctx, cluster.Config{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Start: %v, want context.DeadlineExceeded", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
