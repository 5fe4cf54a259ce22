//go:build unix

package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
	"github.com/seed-63e9a637/jetbus/e2e/internal/proxy"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

// chaosTime is short in the suite; `make chaos` gives it ten minutes.
var chaosTime = flag.Duration("chaos", 15*time.Second, "how long TestChaos breaks things")

const (
	chaosTopic = "chaos"
	chaosKeys  = 20
)

// chaosGroups are the groups that consume, and how many members each has.
var chaosGroups = []struct {
	name    string
	order   jetbus.Order
	members int
}{{"free", jetbus.NoOrder, 3}, {"keyed", jetbus.PerKey, 2}}

// broken is a broker, publishers and groups of processes, to which accidents happen.
type broken struct {
	*testing.T
	broker *broker.Broker
	proxy  *proxy.Proxy // in front of the broker, for all but the test's own looks
	faults chaos.Tally

	members map[string][]*rig.Process // by group; the last ones are those that live

	mu    sync.Mutex
	acked []string // in their order by key
}

// TestChaos publishes and consumes while brokers and members are killed, stopped
// and cut off at random, and then accounts for every event.
func TestChaos(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // a number is a number
	t.Logf("seed %d", seed)
	b := broker.Start(t)
	c := &broken{T: t, broker: b, proxy: b.Proxy(t), members: map[string][]*rig.Process{}}
	rig.Declare(t, rig.OpenBus(t, b.URL()), jetbus.TopicConfig{Name: chaosTopic})
	for _, g := range chaosGroups {
		for range g.members {
			c.join(g.name, g.order).First(t, "ready")
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), *chaosTime)
	defer stop()
	var publishers sync.WaitGroup
	bus := rig.OpenBus(t, c.proxy.URL())
	for key := range chaosKeys {
		random := chaos.Random(seed, 1+uint64(key)) //nolint:gosec // not negative
		publishers.Go(func() { c.publish(ctx, bus, strconv.Itoa(key), random) })
	}
	hand := chaos.Hand{Deeds: c.deeds(), Pause: 600 * time.Millisecond, Hurt: 6 * time.Second}
	if err := hand.Break(ctx, &c.faults, chaos.Random(seed, 0)); err != nil {
		t.Error(err)
	}
	c.proxy.Restore()
	publishers.Wait()
	c.account(rig.OpenBus(t, b.URL()))
}

// join starts a member of a group.
func (c *broken) join(group string, order jetbus.Order) *rig.Process {
	c.Helper()
	m := rig.Spawn(c.T, "chaotic", chaoticConfig{URL: c.proxy.URL(), Group: group, Order: order})
	c.members[group] = append(c.members[group], m)
	return m
}

// publish stores events of a key, one after the other, each until it is acknowledged.
func (c *broken) publish(ctx context.Context, bus *adapter.Bus, key string, random *rand.Rand) {
	for i := 0; ctx.Err() == nil; i++ {
		e := jetbus.Event{Topic: chaosTopic, Key: key, ID: fmt.Sprintf("%s-%06d", key, i), Payload: []byte("{}")}
		if i%97 == 13 {
			e.Headers = map[string]string{"x-bad": "1"}
		}
		for {
			_, err := bus.Publish(context.WithoutCancel(ctx), e)
			if err == nil {
				break
			}
			c.Logf("publish %s: %v", e.ID, err) // and again, under the same id
		}
		c.mu.Lock()
		c.acked = append(c.acked, e.ID)
		c.mu.Unlock()
		chaos.Linger(ctx, time.Duration(60+random.IntN(80))*time.Millisecond)
	}
}

// deeds are the accidents.
func (c *broken) deeds() []chaos.Deed {
	both := []proxy.Direction{proxy.ToServer, proxy.ToClient}
	silent := func(ctx context.Context, hurt time.Duration, ways ...proxy.Direction) error {
		c.proxy.Hole(ways...)
		chaos.Linger(ctx, hurt)
		c.proxy.Restore()
		return nil
	}
	return []chaos.Deed{
		{Name: "broker killed", Do: func(ctx context.Context, hurt time.Duration, _ *rand.Rand) error {
			if err := c.broker.Kill(); err != nil {
				return err
			}
			chaos.Linger(ctx, min(hurt, 2*time.Second))
			return c.broker.Restart()
		}},
		{Name: "broker restarted", Do: func(context.Context, time.Duration, *rand.Rand) error {
			if err := c.broker.Stop(); err != nil {
				return err
			}
			return c.broker.Restart()
		}},
		{Name: "connections cut", Do: func(context.Context, time.Duration, *rand.Rand) error {
			c.proxy.Cut()
			return nil
		}},
		{Name: "network silent", Do: func(ctx context.Context, hurt time.Duration, _ *rand.Rand) error {
			return silent(ctx, hurt, both...)
		}},
		{Name: "network silent one way", Do: func(ctx context.Context, hurt time.Duration, random *rand.Rand) error {
			return silent(ctx, hurt, both[random.IntN(2)])
		}},
		c.toMember("member killed", func(_ context.Context, _ time.Duration, m *rig.Process) (ended bool, err error) {
			m.Kill()
			return true, nil
		}),
		c.toMember("member stopped in order", func(_ context.Context, _ time.Duration, m *rig.Process) (ended bool, err error) {
			return true, m.Process.Terminate()
		}),
		c.toMember("member frozen", func(ctx context.Context, hurt time.Duration, m *rig.Process) (ended bool, err error) {
			if err := m.Process.Freeze(); err != nil {
				return false, err
			}
			chaos.Linger(ctx, hurt)
			return false, m.Process.Thaw()
		}),
	}
}

// toMember is a deed done to a member of a group that lives. In place of one that ended
// another one joins.
func (c *broken) toMember(name string, do func(ctx context.Context, hurt time.Duration, m *rig.Process) (ended bool, err error)) chaos.Deed {
	return chaos.Deed{Name: name, Do: func(ctx context.Context, hurt time.Duration, random *rand.Rand) error {
		g := chaosGroups[random.IntN(len(chaosGroups))]
		living := slices.DeleteFunc(slices.Clone(c.members[g.name]), func(m *rig.Process) bool {
			select {
			case <-m.Ended():
				return true
			default:
				return false
			}
		})
		if len(living) == 0 {
			return fmt.Errorf("no member of group %s lives, and nobody killed the last one", g.name)
		}
		ended, err := do(ctx, hurt, living[random.IntN(len(living))])
		if errors.Is(err, os.ErrProcessDone) { // it was about to end, by an earlier deed
			return nil
		}
		if ended && err == nil {
			c.join(g.name, g.order)
		}
		return err
	}}
}

// account waits until all is settled and says what became of every event.
func (c *broken) account(bus *adapter.Bus) {
	for _, g := range chaosGroups {
		c.awaitEnd(bus, g.name)
	}
	dead := map[string]map[string]bool{}
	reasons := map[string]map[jetbus.DeadReason]int{}
	for _, d := range rig.DeadLetters(c.T, bus, chaosTopic) {
		if dead[d.Group] == nil {
			dead[d.Group], reasons[d.Group] = map[string]bool{}, map[jetbus.DeadReason]int{}
		}
		if dead[d.Group][d.Event.ID] {
			c.Errorf("%s is a dead letter of %s twice", d.Event.ID, d.Group)
		}
		dead[d.Group][d.Event.ID] = true
		reasons[d.Group][d.Reason]++
	}
	w := tabwriter.NewWriter(c.Output(), 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "time\t%v\nacknowledged publishes\t%d\n", *chaosTime, len(c.acked))
	if err := c.faults.Print(w); err != nil {
		c.Error(err)
	}
	for _, g := range chaosGroups {
		c.accountGroup(w, g.name, g.order, dead[g.name], reasons[g.name])
	}
	if err := w.Flush(); err != nil {
		c.Error(err)
	}
}

// awaitEnd waits until a group has settled everything. After ten minutes in which
// its members died as fast as others could take over, that may take as long again;
// but it must go on.
func (c *broken) awaitEnd(bus *adapter.Bus, name string) {
	moved := time.Now()
	for left := uint64(math.MaxUint64); ; chaos.Linger(c.Context(), 100*time.Millisecond) {
		i, err := rig.Group(c.T, bus, chaosTopic, name)
		switch now := i.Pending + uint64(i.Held); { //nolint:gosec // a count
		case err == nil && now == 0:
			return
		case err == nil && now < left:
			left, moved = now, time.Now()
		case time.Since(moved) > time.Minute:
			c.Errorf("group %s does not go on: %+v, %v", name, i, err)
			return
		}
	}
}

// accountGroup compares what was acknowledged with what a group made of it.
func (c *broken) accountGroup(w io.Writer, name string, order jetbus.Order, dead map[string]bool, reasons map[jetbus.DeadReason]int) {
	var reports []rig.Report
	for _, m := range c.members[name] {
		reports = append(reports, m.Said("handled")...)
	}
	slices.SortFunc(reports, func(a, b rig.Report) int { return a.At.Compare(b.At) })
	times := map[string]int{}
	last := map[string]string{} // the newest first success of each key
	turned := 0
	for _, r := range reports {
		key, _, _ := strings.Cut(r.ID, "-")
		if times[r.ID]++; times[r.ID] == 1 {
			if order == jetbus.PerKey && r.ID < last[key] && !dead[r.ID] { // a dead letter that comes again has left the order
				turned++
			}
			last[key] = max(last[key], r.ID)
		}
	}
	lost, bad, well := 0, 0, 0
	for _, id := range c.acked {
		switch n, _ := strconv.Atoi(id[strings.IndexByte(id, '-')+1:]); {
		case times[id] == 0 && !dead[id]:
			if lost++; lost <= 10 {
				c.Errorf("group %s lost %s", name, id)
			}
		case n%97 == 13 && (times[id] > 0 || !dead[id]):
			bad++
		case n%97 != 13 && dead[id]: // it fails twice at most, of five times
			well++
		}
	}
	if turned > 0 || bad > 0 || well > 0 {
		c.Errorf("group %s: %d events out of order, %d that always fail and are no dead letters, %d that can be handled and are", name, turned, bad, well)
	}
	fmt.Fprintf(w, "group %s: processed\t%d\n  again\t%d\n  dead letters\t%d %v\n  lost\t%d\n", name, len(times), len(reports)-len(times), len(dead), reasons, lost)
	if order == jetbus.PerKey {
		fmt.Fprintf(w, "  out of order\t%d\n", turned)
	}
}
