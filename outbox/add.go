package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/outrow"
)

// maxInsert is how many rows one statement inserts, within the bounds of drivers.
const maxInsert = 500

// Add puts events into the outbox, in the caller's transaction: they are published
// after its commit, or not at all. Empty IDs and zero times are filled in. All events
// are checked before the first is written: the error wraps [jetbus.ErrInvalidTopic],
// [jetbus.ErrInvalidHeader], [jetbus.ErrInvalidEvent], [jetbus.ErrPayloadTooLarge], or
// is that of Options.Check. Other errors are those of the database, after which
// PostgreSQL takes nothing more in the transaction; one is an ID of the same topic
// that is in the table already.
//
// Call [jetbus.Drainer.Kick] after the commit, where a drainer runs in the same process.
func (b *Box) Add(ctx context.Context, tx Tx, events ...jetbus.Event) error {
	events, err := b.complete(ctx, events)
	if err == nil && tx == nil {
		err = fmt.Errorf("%w: no transaction", jetbus.ErrInvalidOption)
	}
	if err != nil {
		return fmt.Errorf("add to outbox %s: %w", b.o.Table, err)
	}
	for len(events) > 0 {
		n := min(len(events), maxInsert)
		query, args, err := b.statement(events[:n])
		if err == nil {
			_, err = tx.ExecContext(ctx, query, args...)
		}
		if err != nil {
			return fmt.Errorf("add to outbox %s: %w", b.o.Table, err)
		}
		events = events[n:]
	}
	return nil
}

// Insert returns the statement that Add executes, for transactions that are not of
// database/sql. It takes 1 to 500 events. The errors are those of Add and
// [jetbus.ErrInvalidOption].
func (b *Box) Insert(ctx context.Context, events ...jetbus.Event) (query string, args []any, err error) {
	if len(events) == 0 || len(events) > maxInsert {
		return "", nil, fmt.Errorf("insert into outbox %s: %w: %d events, use 1 to %d", b.o.Table, jetbus.ErrInvalidOption, len(events), maxInsert)
	}
	if events, err = b.complete(ctx, events); err == nil {
		query, args, err = b.statement(events)
	}
	if err != nil {
		return "", nil, fmt.Errorf("insert into outbox %s: %w", b.o.Table, err)
	}
	return query, args, nil
}

// complete checks events and fills in what they do not say.
func (b *Box) complete(ctx context.Context, events []jetbus.Event) ([]jetbus.Event, error) {
	return outrow.Complete(ctx, events, b.o.MaxBytes, b.o.Check)
}

// statement inserts events, which are in order then: rows of a statement are numbered
// as they are listed.
func (b *Box) statement(events []jetbus.Event) (query string, args []any, err error) {
	one := "(" + marks(9) + ")"
	for _, e := range events {
		headers, err := textOf(e.Headers, len(e.Headers))
		if err != nil {
			return "", nil, err
		}
		causedBy, err := textOf(e.CausedBy, len(e.CausedBy))
		if err != nil {
			return "", nil, err
		}
		tags, err := textOf(e.Tags, len(e.Tags))
		if err != nil {
			return "", nil, err
		}
		args = append(args, e.ID, e.Topic, e.Key, e.SID, e.Time.UnixMilli(), headers, causedBy, tags, e.Payload)
	}
	insert := b.fill(`INSERT INTO {table} (id, topic, "key", sid, ts, headers, caused_by, tags, payload) VALUES `)
	return b.d.rebind(insert + strings.Repeat(one+", ", len(events)-1) + one), args, nil
}

// textOf returns v as JSON, or an empty text if n, the number of its items, is 0.
func textOf(v any, n int) (string, error) {
	if n == 0 {
		return "", nil
	}
	out, err := json.Marshal(v)
	return string(out), err
}
