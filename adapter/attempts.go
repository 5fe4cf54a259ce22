package adapter

import (
	"context"
	"encoding/json"
	"errors"
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
	recordTimeout  = 5 * time.Second
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
	records, err := b.makeReturns(ctx, leases)
	if err == nil {
		err = b.writeReturns(ctx, records)
	}
	if errors.Is(err, nats.ErrNoResponders) { // the first event ever to be given back
		if err = b.createBucket(ctx, attemptsBucket); err == nil {
			err = b.writeReturns(ctx, records)
		}
	}
	for errors.Is(err, nats.ErrNoResponders) {
		select { // in a cluster a new bucket is not reachable everywhere at once
		case <-time.After(publishRetry):
			err = b.writeReturns(ctx, records)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		b.cfg.Logger.WarnContext(ctx, "giving back events counts as an attempt of theirs", slog.Int("events", len(leases)), slog.Any("error", err))
	}
}

// makeReturns makes the messages that store the records.
func (b *Bus) makeReturns(ctx context.Context, leases []*lease) ([]*nats.Msg, error) {
	records := make([]*nats.Msg, len(leases))
	for i, l := range leases {
		r := returns{Count: 1, Deliveries: l.deliveries}
		if l.deliveries > 1 {
			r.Count += b.returnsOf(ctx, l).Count
		}
		value, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		records[i] = &nats.Msg{
			Subject: keySubject(attemptsBucket, l.attemptKey()), Data: value,
			Header: nats.Header{"Nats-TTL": {attemptsTTL.String()}},
		}
	}
	return records, nil
}

// writeReturns stores the records without waiting for each.
func (b *Bus) writeReturns(ctx context.Context, records []*nats.Msg) error {
	answers := make(chan *nats.Msg, len(records))
	for _, m := range records {
		var forget func()
		m.Reply, forget = b.mux.expect(func(a *nats.Msg) { answers <- a })
		defer forget()
		if err := b.nc.PublishMsg(m); err != nil {
			return err
		}
	}
	for range records {
		select {
		case a := <-answers:
			if a.Header.Get("Status") == "503" {
				return nats.ErrNoResponders
			}
			if _, err := parsePubAck(a.Data); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
