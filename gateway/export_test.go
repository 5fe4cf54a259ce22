package gateway

import "github.com/seed-63e9a637/jetbus/gateway/internal/budget"

// HoldWork makes a subject parse a large body until release is called.
func (g *Gateway) HoldWork(subject string) (release func(), err error) {
	a := g.budget.Account(subject)
	return a.Close, a.TryAcquire(budget.Work, 1)
}

// SeqOfToken returns the sequence of an offset, 0 if it is invalid.
func SeqOfToken(token string) uint64 {
	o, _ := parseOffset(token)
	return o.seq
}
