package outbox

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/outrow"
)

// cleanRows is how many rows Clean removes at most.
const cleanRows = 5000

// Sent implements [jetbus.Outbox]: it deletes the rows, or notes when they were sent
// (Options.Keep).
func (b *Box) Sent(ctx context.Context, rows []jetbus.OutboxRow) error {
	text := `DELETE FROM {table} WHERE pos IN `
	if b.o.Keep > 0 {
		text = `UPDATE {table} SET state = 'sent', owner = '', last_error = '', sent_at = {now} WHERE state <> 'sent' AND pos IN `
	}
	return b.change(ctx, "note as sent in", text, rows, false)
}

// Release implements [jetbus.Outbox].
func (b *Box) Release(ctx context.Context, rows []jetbus.OutboxRow) error {
	return b.change(ctx, "give back to", `UPDATE {table} SET owner = '', due_at = 0 WHERE state = 'pending' AND owner = ? AND pos IN `, rows, true)
}

// change executes a statement for rows of one claim, or of any.
func (b *Box) change(ctx context.Context, what, text string, rows []jetbus.OutboxRow, owned bool) error {
	for claim, args := range byClaim(rows, owned) {
		n := len(args)
		if owned {
			args = append([]any{claim}, args...)
		}
		if _, err := b.exec(ctx, text+"("+marks(n)+")", args...); err != nil {
			return fmt.Errorf("%s outbox %s: %w", what, b.o.Table, err)
		}
	}
	return nil
}

// byClaim lists the positions of rows, for each claim or together.
func byClaim(rows []jetbus.OutboxRow, owned bool) map[string][]any {
	out := map[string][]any{}
	for _, row := range rows {
		claim := ""
		if owned {
			claim = row.Claim
		}
		if pos, err := strconv.ParseInt(row.Ref, 10, 64); err == nil { // else it is of another outbox
			out[claim] = append(out[claim], pos)
		}
	}
	return out
}

// Failed implements [jetbus.Outbox].
func (b *Box) Failed(ctx context.Context, failures []jetbus.OutboxFailure) error {
	for _, f := range failures {
		pos, err := strconv.ParseInt(f.Row.Ref, 10, 64)
		if err != nil {
			continue // of another outbox
		}
		state := "pending"
		if f.Dead {
			state = "dead"
		}
		_, err = b.exec(ctx, `UPDATE {table} SET state = ?, owner = '', attempts = attempts + 1, last_error = ?, due_at = {now} + ?
WHERE state = 'pending' AND owner = ? AND pos = ?`, state, outrow.ErrorText(f.Err), max(f.RetryIn, 0).Milliseconds(), f.Row.Claim, pos)
		if err != nil {
			return fmt.Errorf("note a failure in outbox %s: %w", b.o.Table, err)
		}
	}
	return nil
}

// OutboxStats implements [jetbus.Outbox]. It counts rows: its cost grows with them.
func (b *Box) OutboxStats(ctx context.Context) (jetbus.OutboxStats, error) {
	var s jetbus.OutboxStats
	var age integer
	err := b.db.QueryRowContext(ctx, b.fill(`SELECT
  (SELECT count(*) FROM {table} WHERE state = 'pending'),
  (SELECT count(*) FROM {table} WHERE state = 'dead' AND state <> 'sent'),
  (SELECT max({now} - created_at) FROM {table} WHERE state = 'pending' {dated})`)).Scan(&s.Pending, &s.Dead, &age)
	if err != nil {
		return s, fmt.Errorf("count outbox %s: %w", b.o.Table, err)
	}
	s.Age = time.Duration(max(age.value, 0)) * time.Millisecond
	return s, nil
}

// Clean implements [jetbus.OutboxCleaner]: it removes rows that were sent longer ago
// than Options.Keep, the oldest 5,000 of them.
func (b *Box) Clean(ctx context.Context) (int, error) {
	n, err := b.exec(ctx, `DELETE FROM {table} WHERE pos IN (
  SELECT s.pos FROM {table} s WHERE s.state = 'sent' AND s.sent_at <= {now} - ? ORDER BY s.sent_at LIMIT ? {skiplocked})`,
		b.o.Keep.Milliseconds(), int64(cleanRows))
	if err != nil {
		return 0, fmt.Errorf("clean outbox %s: %w", b.o.Table, err)
	}
	return n, nil
}
