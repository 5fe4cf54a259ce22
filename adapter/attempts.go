package adapter

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// The server counts deliveries; an attempt is a delivery that was not given
// back. What is given back is rare, so that is what is recorded, and read when
// an event is delivered again.

const (
	attemptsBucket = "JETBUS_ATTEMPTS"
	attemptsTTL    = 24 * time.Hour
	recordTimeout  = 2 * time.Second
)

// returns is the record of an event that was given back.
type returns struct {
	Count      int `json:"returns"`    // deliveries that were no attempts
	Deliveries int `json:"deliveries"` // the server's count at the last of them
}

// attemptKey names an event of a group: its durable and sequence.
func (l *lease) attemptKey() string {
	return consumerName(l.t.name(), l.h.group) + "." + strconv.FormatUint(l.seq, 10)
}

// attemptOf is the attempt that a delivery is.
func (b *Bus) attemptOf(ctx context.Context, l *lease) int {
	if l.deliveries <= 1 {
		return 1
	}
	return max(l.deliveries-b.returnsOf(ctx, l).Count, 1)
}

// returnsOf reads the record of an event. One that cannot be read counts as none:
// an attempt too many is better than an event that waits.
func (b *Bus) returnsOf(ctx context.Context, l *lease) returns {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	entry, err := b.keyGet(ctx, attemptsBucket, l.attemptKey())
	if err != nil || entry.Revision == 0 {
		return returns{}
	}
	var r returns
	if json.Unmarshal(entry.Value, &r) != nil || r.Deliveries >= l.deliveries { // of a time before the group was moved
		return returns{}
	}
	return r
}

// recordReturns notes that deliveries are about to be given back. A record that
// cannot be written costs its event an attempt, which the log says.
func (b *Bus) recordReturns(ctx context.Context, leases ...*lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := b.writeReturns(ctx, leases, true); err != nil {
		b.cfg.Logger.WarnContext(ctx, "giving back events counts as an attempt of theirs", slog.Int("events", len(leases)), slog.Any("error", err))
	}
}

// writeReturns writes the records without waiting for each. create says whether
// to create the bucket if there is none.
func (b *Bus) writeReturns(ctx context.Context, leases []*lease, create bool) error {
	answers := make(chan *nats.Msg, len(leases))
	var forgets []func()
	defer func() {
		for _, forget := range forgets {
			forget()
		}
	}()
	send := func(l *lease) error {
		r := returns{Count: 1, Deliveries: l.deliveries}
		if l.deliveries > 1 {
			r.Count += b.returnsOf(ctx, l).Count
		}
		value, err := json.Marshal(r)
		if err != nil {
			return err
		}
		reply, forget := b.mux.expect(func(m *nats.Msg) { answers <- m })
		forgets = append(forgets, forget)
		return b.nc.PublishMsg(&nats.Msg{
			Subject: keySubject(attemptsBucket, l.attemptKey()), Reply: reply, Data: value,
			Header: nats.Header{"Nats-TTL": {attemptsTTL.String()}},
		})
	}
	for _, l := range leases {
		if err := send(l); err != nil {
			return err
		}
	}
	for range leases {
		select {
		case m := <-answers:
			if m.Header.Get("Status") == "503" && create {
				if err := b.createBucket(ctx, attemptsBucket); err != nil {
					return fmt.Errorf("create bucket %s: %w", attemptsBucket, err)
				}
				return b.writeReturns(ctx, leases, false)
			}
			if _, err := parsePubAck(m.Data); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
