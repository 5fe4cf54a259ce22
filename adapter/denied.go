package adapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// What the server refuses for the lack of a permission it does not answer: it sends an
// error that belongs to no request, which the link remembers. Who waits for an answer
// looks there while waiting. Nobody waits for those to the pull requests and
// acknowledgements of a subscription; the timer of its pullers looks for them.

// noPermission is the error of a publish that the server refused.
func noPermission(subject string) error {
	return fmt.Errorf("%w: no permission to publish to %s", jetbus.ErrDenied, subject)
}

// refusedLocked returns the subject that the server has refused to the puller; "": none.
// What was refused before the requests that are open, or before the first acknowledgement
// on this connection, is of no interest: the permissions may have been other ones.
func (p *puller) refusedLocked() (subject string) {
	l := p.s.b.link
	asked := p.pulls.since()
	switch {
	case !l.IsUp():
		return ""
	case !asked.IsZero() && l.Refused(p.at.subject, asked):
		return p.at.subject
	case !p.settling.IsZero() && l.Refused(p.acks, p.settling):
		return p.acks + ">"
	}
	return ""
}

// settlesLocked notes that something is about to be sent to where a lease is settled. The
// first time on a connection check looks soon whether it was refused.
func (p *puller) settlesLocked(reply string, now time.Time) {
	if p.settling.IsZero() {
		p.settling, p.acks = now, ackSubjects(reply)
		p.checkSoonLocked()
	}
}

// checkSoonLocked lets check run when a refusal of what is sent now is known.
func (p *puller) checkSoonLocked() {
	if p.wake != nil && !p.ended && !p.resting {
		p.wake.Reset(denialCheck)
	}
}

// ackTrial is the first settlement of what Receive handed out from a durable, on one
// connection.
type ackTrial struct {
	connection uint64
	sent       time.Time
}

// settleReceived sends what settles an event that Receive handed out. The first time
// at a durable and on a connection it waits a moment for the answer, so that the
// settlement itself fails where the server refuses it; later ones are not waited for.
func (b *Bus) settleReceived(ctx context.Context, reply string, payload []byte) error {
	acks, connection := ackSubjects(reply), b.connections.Load()
	known, _ := b.settled.Load(acks)
	if trial, ok := known.(ackTrial); ok && trial.connection == connection {
		if b.link.Refused(acks, trial.sent) {
			return noPermission(acks + ">")
		}
		return b.nc.Publish(reply, payload)
	}
	b.settled.Store(acks, ackTrial{connection, time.Now()})
	lost, err := b.link.Wait(ctx)
	if err != nil {
		return err
	}
	_, err = b.exchange(ctx, &nats.Msg{Subject: reply, Data: payload}, lost, denialCheck)
	switch {
	case errors.Is(err, jetbus.ErrDenied):
		return noPermission(acks + ">")
	case err == errLost, errors.Is(err, nats.ErrTimeout), errors.Is(err, nats.ErrNoResponders), ctx.Err() != nil: //nolint:errorlint // exchange returns errLost as it is
		return nil //nolint:nilerr // sent, as the later ones are; where it was lost the event comes again
	}
	return err
}
