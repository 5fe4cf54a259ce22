//go:build unix

package changefeed

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
	"github.com/seed-63e9a637/jetbus/e2e/internal/proxy"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// leader is the index of the instance that leads, or of any.
func (c *broken) leader(random *rand.Rand) int {
	for i, f := range c.feeds {
		if r := f.Last(); r.leads() && random.IntN(4) > 0 {
			return i
		}
	}
	return random.IntN(len(c.feeds))
}

func (c *broken) feedDeeds() []chaos.Deed {
	return []chaos.Deed{
		{Name: "feed killed", Do: func(_ context.Context, _ time.Duration, random *rand.Rand) error {
			i := c.leader(random)
			if err := c.feeds[i].Err(); err != nil {
				return err
			}
			c.feeds[i].Kill()
			return c.startFeed(i)
		}},
		{Name: "feed stopped in order", Do: func(_ context.Context, _ time.Duration, random *rand.Rand) error {
			i := c.leader(random)
			if err := c.feeds[i].end(); err != nil {
				return err
			}
			return c.startFeed(i)
		}},
		{Name: "feed frozen beyond its lease", Do: func(ctx context.Context, hurt time.Duration, random *rand.Rand) error {
			f := c.feeds[c.leader(random)]
			if err := f.Freeze(); err != nil {
				return err
			}
			chaos.Linger(ctx, leaseTTL+hurt)
			return f.Thaw()
		}},
		{Name: "feed frozen for a moment", Do: func(ctx context.Context, hurt time.Duration, random *rand.Rand) error {
			f := c.feeds[c.leader(random)]
			if err := f.Freeze(); err != nil {
				return err
			}
			chaos.Linger(ctx, hurt/3)
			return f.Thaw()
		}},
	}
}

func (c *broken) brokerDeeds() []chaos.Deed {
	return []chaos.Deed{
		{Name: "broker killed", Do: func(ctx context.Context, hurt time.Duration, _ *rand.Rand) error {
			if err := c.broker.Kill(); err != nil {
				return err
			}
			chaos.Linger(ctx, hurt)
			return c.broker.Restart()
		}},
		{Name: "broker restarted", Do: func(context.Context, time.Duration, *rand.Rand) error {
			if err := c.broker.Stop(); err != nil {
				return err
			}
			return c.broker.Restart()
		}},
		{Name: "broker's connections cut", Do: func(context.Context, time.Duration, *rand.Rand) error {
			c.proxy.Cut()
			return nil
		}},
		{Name: "broker silent", Do: func(ctx context.Context, hurt time.Duration, random *rand.Rand) error {
			c.proxy.Hole([][]proxy.Direction{{proxy.ToServer, proxy.ToClient}, {proxy.ToServer}, {proxy.ToClient}}[random.IntN(3)]...)
			chaos.Linger(ctx, hurt)
			c.proxy.Restore()
			return nil
		}},
		{Name: "broker silent, then cut", Do: func(ctx context.Context, hurt time.Duration, _ *rand.Rand) error {
			c.proxy.Hole(proxy.ToClient) // the answers are lost
			chaos.Linger(ctx, hurt/3)
			c.proxy.Cut()
			c.proxy.Restore()
			return nil
		}},
	}
}

func (c *broken) mongoDeeds() []chaos.Deed {
	during := func(name string, begin, end func()) chaos.Deed {
		return chaos.Deed{Name: name, Do: func(ctx context.Context, hurt time.Duration, _ *rand.Rand) error {
			begin()
			chaos.Linger(ctx, hurt/2)
			end()
			return nil
		}}
	}
	var remove func()
	return []chaos.Deed{
		during("MongoDB stepped down", c.server.StepDown, c.server.StepUp),
		during("MongoDB away", c.server.Suspend, c.server.Resume),
		during("MongoDB without majority", c.server.LoseMajority, c.server.RegainMajority),
		during("MongoDB slow", func() { remove = c.server.Delay(50*time.Millisecond, "getMore", "aggregate", "find") }, func() { remove() }),
		during("MongoDB's answers lost", func() {
			remove = c.server.OnReply(func(mongod.Command) error {
				if rand.IntN(4) == 0 {
					return mongod.ErrCut
				}
				return nil
			})
		}, func() { remove() }),
		during("MongoDB's connections cut", func() { c.server.CutConnections() }, func() {}),
		during("MongoDB's cursors killed", func() { c.server.KillCursors() }, func() {}),
	}
}
