package outbox

import (
	"context"
	"fmt"
	"math"
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

// change executes a statement for rows of one claim, or of any claim. If the database refuses
// to change one of several rows, change executes it for each row alone.
func (b *Box) change(ctx context.Context, what, text string, rows []jetbus.OutboxRow, owned bool) error {
	var refused jetbus.OutboxRowsError
	for claim, positions := range byClaim(rows, owned) {
		err := b.changeRows(ctx, text, claim, positions, owned)
		if isRefused(err) {
			err = nil
			for _, pos := range positions {
				alone := b.changeRows(ctx, text, claim, []any{pos}, owned)
				if isRefused(alone) {
					refused.Add(fmt.Sprint(pos), alone)
				} else if alone != nil {
					err = alone
					break
				}
			}
		}
		if err != nil {
			return fmt.Errorf("%s outbox %s: %w", what, b.o.Table, err)
		}
	}
	if err := refused.OrNil(); err != nil {
		return fmt.Errorf("%s outbox %s: %w", what, b.o.Table, err)
	}
	return nil
}

func (b *Box) changeRows(ctx context.Context, text, claim string, positions []any, owned bool) error {
	args := positions
	if owned {
		args = append([]any{claim}, positions...)
	}
	_, err := b.exec(ctx, text+"("+marks(len(positions))+")", args...)
	return err
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
	var refused jetbus.OutboxRowsError
	for _, f := range failures {
		pos, err := strconv.ParseInt(f.Row.Ref, 10, 64)
		if err != nil {
			continue // of another outbox
		}
		err = b.fail(ctx, pos, f)
		if isRefused(err) {
			refused.Add(f.Row.Ref, err)
		} else if err != nil {
			return fmt.Errorf("note a failure in outbox %s: %w", b.o.Table, err)
		}
	}
	if err := refused.OrNil(); err != nil {
		return fmt.Errorf("note failures in outbox %s: %w", b.o.Table, err)
	}
	return nil
}

// fail records a failure. If the database refuses, its encoding may lack characters of the
// text: fail tries again in ASCII. If it still refuses and the row is dead, fail leaves the
// number of attempts unchanged, because a dead row does not need it.
func (b *Box) fail(ctx context.Context, pos int64, f jetbus.OutboxFailure) error {
	state := Pending
	if f.Dead {
		state = Dead
	}
	const set, where = `UPDATE {table} SET state = ?, owner = '', last_error = ?, due_at = {now} + ?`, ` WHERE state = 'pending' AND owner = ? AND pos = ?`
	text, wait := outrow.ErrorText(f.Err), max(f.RetryIn, 0).Milliseconds()
	_, err := b.exec(ctx, set+`, attempts = ?`+where, string(state), text, wait, outrow.Attempts(f.Row), f.Row.Claim, pos)
	if isRefused(err) {
		text = outrow.ASCII(text)
		_, err = b.exec(ctx, set+`, attempts = ?`+where, string(state), text, wait, outrow.Attempts(f.Row), f.Row.Claim, pos)
	}
	if isRefused(err) && f.Dead {
		_, err = b.exec(ctx, set+where, string(state), text, wait, f.Row.Claim, pos)
	}
	return err
}

// OutboxStats implements [jetbus.Outbox]. Its cost grows with the number of rows, which it
// counts. A row whose created_at is not a time has no age.
func (b *Box) OutboxStats(ctx context.Context) (jetbus.OutboxStats, error) {
	var s jetbus.OutboxStats
	var age integer
	err := b.db.QueryRowContext(ctx, b.fill(`SELECT
  (SELECT count(*) FROM {table} WHERE state = 'pending'),
  (SELECT count(*) FROM {table} WHERE state = 'dead' AND state <> 'sent'),
  (SELECT max({now} - created_at) FROM {table} WHERE state = 'pending' AND created_at BETWEEN {firsttime} AND {lasttime} {dated})`)).Scan(&s.Pending, &s.Dead, &age)
	if err != nil {
		return s, fmt.Errorf("count outbox %s: %w", b.o.Table, err)
	}
	s.Age = time.Duration(min(max(age.value, 0), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
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
