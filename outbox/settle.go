package outbox

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/outrow"
)

// cleanRows is how many rows Clean removes at most.
const cleanRows = 5000

// A settling is a statement that settles rows. It changes the rows of its condition, so that they
// no longer match it.
type settling struct {
	set   string // up to the condition
	args  []any  // of set
	where string // up to the positions
	owned bool   // where has the claim as a parameter
}

// ownedRows are the pending rows of a claim.
const ownedRows = ` WHERE state = 'pending' AND owner = ? AND pos IN `

// Sent implements [jetbus.Outbox]: it deletes the rows, or notes when they were sent
// (Options.Keep).
func (b *Box) Sent(ctx context.Context, rows []jetbus.OutboxRow) error {
	s := settling{set: `DELETE FROM {table}`, where: ` WHERE pos IN `}
	if b.o.Keep > 0 {
		s.set = `UPDATE {table} SET state = 'sent', owner = '', last_error = '', sent_at = {now}`
		s.where = ` WHERE state <> 'sent' AND pos IN `
	}
	return b.settle(ctx, "note as sent in", s, rows)
}

// Release implements [jetbus.Outbox].
func (b *Box) Release(ctx context.Context, rows []jetbus.OutboxRow) error {
	s := settling{set: `UPDATE {table} SET owner = '', due_at = 0`, where: ownedRows, owned: true}
	return b.settle(ctx, "give back to", s, rows)
}

// settle settles rows of any claim.
func (b *Box) settle(ctx context.Context, what string, s settling, rows []jetbus.OutboxRow) error {
	var unchanged jetbus.OutboxRowsError
	for claim, positions := range byClaim(rows, s.owned) {
		refused, err := b.change(ctx, s, claim, positions)
		if err != nil {
			return fmt.Errorf("%s outbox %s: %w", what, b.o.Table, err)
		}
		for _, pos := range positions {
			if err := refused[pos]; err != nil {
				unchanged.Add(refOf(pos), err)
			}
		}
	}
	if err := unchanged.OrNil(); err != nil {
		return fmt.Errorf("%s outbox %s: %w", what, b.o.Table, err)
	}
	return nil
}

// noRow is the position of no row. If the database refuses a statement for it, too, the rows are
// not the reason.
var noRow = []int64{oldest}

// change settles rows of a claim. If the database refuses to change some of them, change settles
// each row alone, and returns the reasons for those that are unchanged. The error concerns all rows.
func (b *Box) change(ctx context.Context, s settling, claim string, positions []int64) (refused map[int64]error, err error) {
	err = b.changeRows(ctx, s, claim, positions)
	if !isRefused(err) {
		return nil, err
	}
	if err := b.changeRows(ctx, s, claim, noRow); err != nil {
		return nil, err
	}
	refused = map[int64]error{}
	for _, pos := range positions {
		if err := b.changeRows(ctx, s, claim, []int64{pos}); isRefused(err) {
			refused[pos] = err
		} else if err != nil {
			return nil, err
		}
	}
	return refused, nil
}

// changeRows executes a statement for rows. The error is errDropped if rows still match its
// condition: a trigger may drop a change, and keep the row as it is.
func (b *Box) changeRows(ctx context.Context, s settling, claim string, positions []int64) error {
	var args []any
	if s.owned {
		args = append(args, claim)
	}
	for _, pos := range positions {
		args = append(args, pos)
	}
	where := s.where + "(" + marks(len(positions)) + ")"
	n, err := b.exec(ctx, s.set+where, slices.Concat(s.args, args)...)
	if err != nil || n == len(positions) && strings.HasPrefix(s.set, "DELETE") {
		return err
	}
	var left int
	if err := b.db.QueryRowContext(ctx, b.d.rebind(b.fill(`SELECT count(*) FROM {table}`+where)), args...).Scan(&left); err != nil {
		return err
	}
	if left > 0 {
		return errDropped
	}
	return nil
}

// byClaim lists the positions of rows, for each claim if owned is set, or together. It omits rows of other
// outboxes and, if owned is set, rows without a claim.
func byClaim(rows []jetbus.OutboxRow, owned bool) map[string][]int64 {
	out := map[string][]int64{}
	for _, row := range rows {
		claim := ""
		if owned {
			claim = row.Claim
		}
		if pos, err := strconv.ParseInt(row.Ref, 10, 64); err == nil && (claim != "" || !owned) {
			out[claim] = append(out[claim], pos)
		}
	}
	return out
}

// Failed implements [jetbus.Outbox].
func (b *Box) Failed(ctx context.Context, failures []jetbus.OutboxFailure) error {
	var unchanged jetbus.OutboxRowsError
	for _, f := range failures {
		pos, err := strconv.ParseInt(f.Row.Ref, 10, 64)
		if err != nil {
			continue // of another outbox
		}
		refused := f.Row.Err
		if f.Row.Claim != "" || refused == nil { // else it was never claimed
			refused, err = b.fail(ctx, pos, f)
		}
		if err != nil {
			return fmt.Errorf("note a failure in outbox %s: %w", b.o.Table, err)
		}
		if refused != nil {
			unchanged.Add(f.Row.Ref, refused)
		}
	}
	if err := unchanged.OrNil(); err != nil {
		return fmt.Errorf("note failures in outbox %s: %w", b.o.Table, err)
	}
	return nil
}

// fail records a failure. If the database refuses, its encoding may lack characters of the
// text: fail tries again in ASCII. If it still refuses and the row is dead, fail leaves the
// number of attempts unchanged, because a dead row does not need it.
func (b *Box) fail(ctx context.Context, pos int64, f jetbus.OutboxFailure) (refused, err error) {
	state := Pending
	if f.Dead {
		state = Dead
	}
	const set, attempts = `UPDATE {table} SET state = ?, owner = '', last_error = ?, due_at = {now} + ?`, `, attempts = ?`
	text, wait := outrow.ErrorText(f.Err), max(f.RetryIn, 0).Milliseconds()
	tries := []settling{
		{set: set + attempts, args: []any{string(state), text, wait, outrow.Attempts(f.Row)}},
		{set: set + attempts, args: []any{string(state), outrow.ASCII(text), wait, outrow.Attempts(f.Row)}},
		{set: set, args: []any{string(state), outrow.ASCII(text), wait}},
	}
	if !f.Dead {
		tries = tries[:2]
	}
	var s settling
	for _, s = range tries {
		s.where, s.owned = ownedRows, true
		if refused = b.changeRows(ctx, s, f.Row.Claim, []int64{pos}); !isRefused(refused) {
			return nil, refused
		}
	}
	return refused, b.changeRows(ctx, s, f.Row.Claim, noRow)
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
