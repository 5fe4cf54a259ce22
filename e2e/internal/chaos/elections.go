package chaos

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/cluster"
)

const (
	stepDowns = 300 * time.Millisecond // between two leaders that step down
	kills     = 3 * time.Second        // between two nodes that are killed and started again, and longer where that takes long
)

// What elections come from.
const (
	steppedDown = "leader stepped down"
	nodeKilled  = "node killed"
)

// Elections are leaders of a cluster that step down, and nodes that die and come back.
type Elections struct {
	t       testing.TB
	cluster *cluster.Cluster
	stop    context.CancelFunc
	hands   sync.WaitGroup
	tally   Tally
}

// Elect has a cluster of three elect until [Elections.Stop], or until the test ends: a random
// leader of its streams and durables steps down each 300 ms, and each 3 s a random node is
// killed and started again.
func Elect(t testing.TB, c *cluster.Cluster, seed uint64) *Elections {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context())) // cleanups of the test may be played in elections, too
	e := &Elections{t: t, cluster: c, stop: stop}
	nc := bustest.Connect(t, c)
	t.Cleanup(e.end)
	answers := nc.NewInbox()
	if _, err := nc.Subscribe(answers, func(m *nats.Msg) {
		if bytes.Contains(m.Data, []byte(`"success":true`)) {
			e.tally.Add(steppedDown)
		}
	}); err != nil {
		t.Fatal(err)
	}
	e.hands.Go(func() { e.stepDown(ctx, nc, answers, Random(seed, 0)) })
	e.hands.Go(func() { e.kill(ctx, Random(seed, 1)) })
	return e
}

// Stop ends the elections when there have been some, writes how many there were, and fails the
// test if there were none within a minute. All nodes run then.
func (e *Elections) Stop() {
	e.t.Helper()
	late, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for late.Err() == nil && !e.both() {
		Linger(late, stepDowns)
	}
	e.end()
	if err := e.tally.Print(e.t.Output()); err != nil {
		e.t.Error(err)
	}
	if !e.both() {
		e.t.Error("there were no elections")
	}
}

// both reports whether leaders have stepped down, and nodes died.
func (e *Elections) both() bool { return e.tally.Of(steppedDown) > 0 && e.tally.Of(nodeKilled) > 0 }

func (e *Elections) end() {
	e.stop()
	e.hands.Wait()
}

// stepDown asks one leader after the other for its office. It does not wait for the answer, or
// for another one: in an election there may be none.
func (e *Elections) stepDown(ctx context.Context, nc *nats.Conn, answers string, random *rand.Rand) {
	for ; ctx.Err() == nil; Linger(ctx, stepDowns) {
		if of := e.offices(random.IntN(3)); len(of) > 0 {
			_ = nc.PublishRequest("$JS.API."+of[random.IntN(len(of))], answers, nil) // what fails is not counted
		}
	}
}

// offices are the streams and durables of a node: none of one that is being killed.
func (e *Elections) offices(node int) (out []string) {
	s := e.cluster.Node(node).Server()
	if s == nil {
		return nil
	}
	all, err := s.Jsz(&server.JSzOptions{Accounts: true, Streams: true, Consumer: true})
	if err != nil {
		return nil
	}
	for _, a := range all.AccountDetails {
		for _, s := range a.Streams {
			out = append(out, "STREAM.LEADER.STEPDOWN."+s.Name)
			for _, d := range s.Consumer {
				out = append(out, "CONSUMER.LEADER.STEPDOWN."+s.Name+"."+d.Name)
			}
		}
	}
	return out
}

func (e *Elections) kill(ctx context.Context, random *rand.Rand) {
	// A node that comes back slowly catches up slowly, too, and two that are away at once
	// would be an outage.
	var took time.Duration
	for Linger(ctx, kills); ctx.Err() == nil; Linger(ctx, kills+2*took) {
		e.tally.Add(nodeKilled)
		began := time.Now()
		i, ctx := random.IntN(3), context.WithoutCancel(ctx)
		if err := e.cluster.KillNode(ctx, i); err != nil {
			e.t.Error(err)
		}
		if err := e.cluster.RestartNode(ctx, i); err != nil {
			e.t.Error(err)
		}
		took = time.Since(began)
	}
}
