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
	// smallBytes is the size up to which bytes are counted, but not refused, so that clients that use up
	// the budget do not stop the small requests of others.
	smallBytes = 16 << 10
	// bodyCost is how many times the body of a publish is in memory: as it was read, and as events.
	// jsonCost is the same of other bodies, which are parsed: short values take more than their text.
	bodyCost = 2
	jsonCost = 8
)

// newBudget makes the budget that the limits describe. Without tokens all clients are one subject, who has all of it.
func newBudget(c Config) *budget.Budget {
	l := c.Limits
	if c.Auth == nil {
		l.BytesPerPrincipal, l.CallsPerPrincipal, l.ScansPerPrincipal = l.Bytes, l.Calls, l.Scans
	}
	// What parses large bodies leaves half of the processors to requests that take little.
	work := max(1, runtime.GOMAXPROCS(0)/2)
	return budget.New(
		budget.Limit{Bytes: int64(l.Bytes), Calls: l.Calls, Scans: l.Scans, Work: work},
		budget.Limit{Bytes: int64(l.BytesPerPrincipal), Calls: l.CallsPerPrincipal, Scans: l.ScansPerPrincipal, Work: max(1, work/2)},
		budget.Limit{Bytes: int64(l.BytesPerConnection), Calls: l.CallsPerPrincipal, Scans: l.ScansPerPrincipal, Work: max(1, work/2)},
	)
}

// parse runs f, which parses a body of that size. Few large ones are parsed at the same time.
func parse(ctx context.Context, a *budget.Account, size int, f func() error) error {
	if size > smallBytes {
		if err := acquire(ctx, a, budget.Work, 1); err != nil {
			return err
		}
		defer a.Release(budget.Work, 1)
	}
	return f()
}

// account returns the account of one connection or request. The caller closes it.
func (g *Gateway) account(who Principal) *budget.Account { return g.budget.Account(who.Subject) }

// acquire takes n of a kind, and waits in line for lineTime at most. The error is a failure.
func acquire(ctx context.Context, a *budget.Account, k budget.Kind, n int64) error {
	if k == budget.Bytes && n <= smallBytes {
		a.Add(k, n)
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, lineTime)
	defer cancel()
	err := a.Acquire(waiting, k, n)
	if err != nil && ctx.Err() != nil {
		return cause(ctx, ctx.Err())
	}
	return overBudget(err)
}

// overBudget makes the failure that a client is told of an error of package budget.
func overBudget(err error) error {
	e, ok := errors.AsType[*budget.ExceededError](err)
	switch {
	case !ok:
		return err
	case e.Level == budget.Process:
		return &failure{Code: CodeOverloaded, Msg: "the gateway has too much under way; try again", After: e.RetryAfter}
	}
	return &failure{Code: CodeRateLimited, Msg: "too much is under way at once; wait for its answers", After: e.RetryAfter}
}

// call counts a request to the broker of a principal, until release is called. Where there are too many,
// the request is answered.
func (g *Gateway) call(w http.ResponseWriter, r *http.Request, who Principal) (release func(), ok bool) {
	a := g.account(who)
	if err := acquire(r.Context(), a, budget.Calls, 1); err != nil {
		g.problem(w, r, err)
		return nil, false
	}
	return a.Close, true
}

// trackScan is track of a request that reads through a topic, counts for n scans and answers with a page.
// release gives back what the account holds, too. The error is a failure.
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

// pageBytes is the memory of an answer: its events, and their JSON.
func (g *Gateway) pageBytes() int64 { return 2 * int64(g.c.Limits.QueueBytes) }
