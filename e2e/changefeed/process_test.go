//go:build unix

package changefeed

import (
	"context"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
)

// limit bounds every wait. It only matters where a test fails: on a machine that is
// busy with other things a wait of seconds may take a minute.
const limit = 3 * time.Minute

func TestMain(m *testing.M) { broker.Main(m, map[string]child.Role{"feed": runFeed}) }

// instance is a process that runs the feed.
type instance struct{ *child.Process[report] }

// startInstance starts one, and returns when it has begun.
func startInstance(ctx context.Context, c feedConfig) (*instance, error) {
	p, err := child.Start[report]("feed", c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if _, err := p.Await(ctx, func(report) bool { return true }); err != nil {
		p.Kill()
		return nil, err
	}
	return &instance{p}, nil
}

// turns is how often it began to lead.
func (i *instance) turns() (n int) {
	all, _ := i.Reports()
	led := false
	for _, r := range all {
		if r.leads() && !led {
			n++
		}
		led = r.leads()
	}
	return n
}

// end ends it in order.
func (i *instance) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return i.End(ctx)
}
