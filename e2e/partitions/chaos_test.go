//go:build unix

package partitions

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
)

var (
	// chaosTime is short in the suite; `make chaos-partitions` gives it longer.
	chaosTime = flag.Duration("chaos", 20*time.Second, "how long TestChaos and TestBucketChaos break things")
	chaosSeed = flag.Uint64("seed", 0, "what they draw their accidents from; 0: the time")
)

const (
	chaosKeys   = 8 // of each publisher
	fewMembers  = 2
	manyMembers = 5
)

// broken is a service to whose members accidents happen.
type broken struct {
	*service
	faults chaos.Tally
	names  int
}

// TestChaos kills, adds, stops and freezes members at random under load, has the topic
// grow in the middle of it, and then accounts for every event.
func TestChaos(t *testing.T) {
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) //nolint:gosec // a number is a number
	}
	t.Logf("seed %d", seed)
	s, _ := alone(t)
	c := &broken{service: s}
	for range 3 {
		must(t, c.join())
	}
	s.balanced(s.members...)
	ctx, stop := context.WithTimeout(t.Context(), *chaosTime)
	defer stop()
	var others sync.WaitGroup
	for _, who := range []string{"left", "right"} { // who are not told that the topic has grown
		bus := s.open()
		others.Go(func() { s.publish(ctx, bus, names(who, chaosKeys), math.MaxInt, 40*time.Millisecond) })
	}
	others.Go(func() {
		chaos.Linger(ctx, *chaosTime/2)
		s.grow()
	})
	hand := chaos.Hand{Deeds: c.deeds(), Pause: 300 * time.Millisecond, Hurt: 2 * shortTTL}
	if err := hand.Break(ctx, &c.faults, chaos.Random(seed, 0)); err != nil {
		t.Error(err)
	}
	others.Wait()
	began := time.Now()
	a := c.account()
	c.print(a, time.Since(began))
	s.acrossGenerations()
	s.balanced(c.staying()...)
}

// join starts a member that fails now and then.
func (c *broken) join() error {
	c.names++
	config := c.config(fmt.Sprintf("m%d", c.names), shortTTL)
	config.Work, config.Fails, config.Leave = 30*time.Millisecond, 20, 20*time.Millisecond
	_, err := c.launch(config)
	return err
}

// living are the members that live.
func (c *broken) living() (out []*member) {
	for _, m := range c.members {
		if m.lives() {
			out = append(out, m)
		}
	}
	return out
}

// staying are those that live and were not asked to end.
func (c *broken) staying() []*member {
	return slices.DeleteFunc(c.living(), func(m *member) bool { return m.asked })
}

// deeds are the accidents.
func (c *broken) deeds() []chaos.Deed {
	return []chaos.Deed{
		c.toMember("member killed", func(_ context.Context, _ time.Duration, m *member) error {
			m.kill()
			return nil
		}),
		c.toMember("member stopped in order", func(_ context.Context, _ time.Duration, m *member) error {
			m.asked = true
			return m.Terminate()
		}),
		c.toMember("member frozen", func(ctx context.Context, hurt time.Duration, m *member) error {
			if err := m.freeze(); err != nil {
				return err
			}
			chaos.Linger(ctx, hurt)
			return m.thaw()
		}),
		{Name: "member joined", Do: func(context.Context, time.Duration, *rand.Rand) error {
			if len(c.living()) >= manyMembers {
				return nil
			}
			return c.join()
		}},
	}
}

// toMember is a deed done to a member that lives. There are always some: another one
// joins in the place of one too many that ended.
func (c *broken) toMember(name string, do func(ctx context.Context, hurt time.Duration, m *member) error) chaos.Deed {
	return chaos.Deed{Name: name, Do: func(ctx context.Context, hurt time.Duration, random *rand.Rand) error {
		living := c.living()
		if len(living) == 0 {
			return errors.New("no member lives, and nobody killed the last one")
		}
		m := living[random.IntN(len(living))]
		if err := do(ctx, hurt, m); err != nil && !errors.Is(err, os.ErrProcessDone) { // it was about to end, by an earlier deed
			return err
		}
		if len(c.staying()) <= fewMembers {
			return c.join()
		}
		return nil
	}}
}

// print says what happened.
func (c *broken) print(a account, rest time.Duration) {
	events, turns, stalls := 0, 0, 0
	for _, ids := range c.published {
		events += len(ids)
	}
	for _, m := range c.members {
		turns += len(m.said(isAssigned))
		stalls += len(m.said(isStalled))
		if err := m.Err(); err != nil && m.dead.IsZero() && (!m.asked || !m.tooEarly()) {
			c.Errorf("%s, which nobody killed: %v", m.config.Member, err)
		}
	}
	w := tabwriter.NewWriter(c.Output(), 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "time\t%v\nevents\t%d\nmembers\t%d\nturns\t%d\nstalls\t%d\nthe rest took\t%v\n", *chaosTime, events, len(c.members), turns, stalls, rest.Round(time.Millisecond))
	if err := c.faults.Print(w); err != nil {
		c.Error(err)
	}
	fmt.Fprintf(w, "skipped\t%d\noverlaps outside the documented case\t%d\noverlaps inside it\t%d\nlost\t%d\nduplicates\t%d\nout of order\t%d\nturns that began early\t%d\n",
		len(a.skipped), len(a.outside), len(a.inside), len(a.lost), a.duplicates, len(a.turned), len(a.early))
	if err := w.Flush(); err != nil {
		c.Error(err)
	}
}
