package gateway

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"time"

	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

const (
	// lineTime is how long a request waits for room in the budget before it is refused.
	lineTime = 2 * time.Second
	// smallBytes is the largest quantity of Bytes that is counted but never refused. So clients that exhaust the
	// budget cannot block the small requests of others.
	smallBytes = 16 << 10
	// bodyCost is the memory of a published body as a multiple of its size: the text and the events
	// made from it. jsonCost is the same for other bodies, which are parsed: short values take more
	// memory than their text.
	bodyCost = 2
	jsonCost = 8
)

// newBudget returns a budget with the configured limits. Without authentication all clients are one
// subject, which may use the whole budget.
func newBudget(c Config) *budget.Budget {
	l := c.Limits
	if c.Auth == nil {
		l.BytesPerPrincipal, l.CallsPerPrincipal, l.ScansPerPrincipal = l.Bytes, l.Calls, l.Scans
	}
	work := processors()
	// readBody acquires the memory of a body in steps, so a request must have room for the largest body.
	body := bodyCost * batchBodies * l.FrameBytes
	return budget.New(
		budget.Limit{Bytes: int64(l.Bytes), Calls: l.Calls, Scans: l.Scans, Work: work},
		budget.Limit{Bytes: int64(l.BytesPerPrincipal), Calls: l.CallsPerPrincipal, Scans: l.ScansPerPrincipal, Work: max(1, work/2)},
		budget.Limit{Bytes: max(int64(l.BytesPerConnection), body), Calls: l.CallsPerPrincipal, Scans: l.ScansPerPrincipal, Work: max(1, work/2)},
	)
}

// processors returns how many goroutines may parse large bodies, and how many may scan topics: half of
// GOMAXPROCS, at least 1. The rest serves small requests.
func processors() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// parse runs f, which parses a body of size bytes. The budget limits how many large bodies are parsed
// concurrently.
func parse(ctx context.Context, a *budget.Account, size int, f func() error) error {
	if size > smallBytes {
		if err := acquire(ctx, a, budget.Work, 1); err != nil {
			return err
		}
		defer a.Release(budget.Work, 1)
	}
	return f()
}

// account returns a new account for a connection or request of who. The caller closes it.
func (g *Gateway) account(who Principal) *budget.Account { return g.budget.Account(who.Subject) }

// acquire acquires n of a kind and waits up to lineTime for room. The error is a failure, or the cause
// of ctx.
func acquire(ctx context.Context, a *budget.Account, k budget.Kind, n int64) error {
	if k == budget.Bytes && n <= smallBytes {
		a.Add(k, n)
		return nil
	}
	return acquireInLine(ctx, a, k, n)
}

// acquireInLine is like acquire, but small quantities wait, too.
func acquireInLine(ctx context.Context, a *budget.Account, k budget.Kind, n int64) error {
	waiting, cancel := context.WithTimeout(ctx, lineTime)
	defer cancel()
	err := a.Acquire(waiting, k, n)
	if err != nil && ctx.Err() != nil {
		return cause(ctx, ctx.Err())
	}
	return overBudget(err)
}

// overBudget returns the failure that reports an error of package budget to the client.
func overBudget(err error) error {
	e, ok := errors.AsType[*budget.ExceededError](err)
	switch {
	case !ok:
		return err
	case e.Level == budget.Process:
		return &failure{Code: CodeOverloaded, Msg: "the gateway is overloaded; try again", After: e.RetryAfter}
	}
	return &failure{Code: CodeRateLimited, Msg: "too much work in progress; wait for the answers to earlier requests", After: e.RetryAfter}
}

// call returns a new account that is charged for a request to the broker. The caller closes it. If the
// budget has no room, call answers the request and returns false.
func (g *Gateway) call(w http.ResponseWriter, r *http.Request, who Principal) (a *budget.Account, ok bool) {
	a = g.account(who)
	if err := acquire(r.Context(), a, budget.Calls, 1); err != nil {
		a.Close()
		g.problem(w, r, err)
		return nil, false
	}
	return a, true
}

// trackScan is like track, for a request that reads through a topic and returns a page. It charges n scans
// and the memory of a page to a new account, which release closes. The error is a failure.
func (g *Gateway) trackScan(ctx context.Context, who Principal, n int64) (tracked context.Context, a *budget.Account, release func(), err error) {
	tracked, untrack, err := g.track(ctx, who, scans)
	if err != nil {
		return nil, nil, nil, err
	}
	a = g.account(who)
	release = func() {
		a.Close()
		untrack()
	}
	if err = acquire(tracked, a, budget.Scans, n); err == nil {
		err = acquire(tracked, a, budget.Bytes, g.pageBytes())
	}
	if err != nil {
		release()
		return nil, nil, nil, err
	}
	return tracked, a, release, nil
}

// pageBytes returns the memory of a response page: its events and their JSON.
func (g *Gateway) pageBytes() int64 { return 2 * int64(g.c.Limits.QueueBytes) }
