package jetbus

import (
	"context"
	"fmt"
	"time"
)

// Outbox is where events wait, in the database of the service that they tell of,
// until they are published: what a transaction writes and the event about it are
// committed together, or neither is. Package outbox has one for database/sql.
// [Drain] publishes what waits.
//
// How events get in is up to the implementation, since it takes the caller's
// transaction. The methods here are what Drain needs. Implementations promise:
//
//   - A row is found by its state, and never by a position behind the last one: a
//     transaction that runs for long commits an old row late.
//   - Rows of one topic and key are claimed in their order: none while an older one
//     of its key is neither sent nor in the same claim. Rows without a key have no
//     order. Whether a row that is dead holds back the later ones of its key is an
//     option of the implementation.
//   - The clock of the outbox decides on leases and waits, not that of its callers.
//   - All methods may be called by any number of drainers at once.
//   - Each row fails alone: a row that cannot be read is claimed with [OutboxRow.Err], and
//     Sent, Release and Failed change the rows that they can and report the others in an
//     [*OutboxRowsError].
type Outbox interface {
	// Claim returns rows that are due, oldest first, and hides them from other claims
	// for the lease. None and no error: nothing is due.
	Claim(ctx context.Context, o ClaimOptions) ([]OutboxRow, error)
	// Sent notes that the rows are published. That is true whoever holds them by now,
	// so that it is done for rows whose lease is over, too.
	Sent(ctx context.Context, rows []OutboxRow) error
	// Release gives rows back that were not tried: they are due at once. Rows whose
	// claim is no longer the caller's are left alone.
	Release(ctx context.Context, rows []OutboxRow) error
	// Failed records failed attempts. Rows whose claim is no longer the caller's are
	// left alone. The text of an error is recorded as far as the database can store it.
	Failed(ctx context.Context, failures []OutboxFailure) error
	// OutboxStats says what waits.
	OutboxStats(ctx context.Context) (OutboxStats, error)
}

// OutboxCleaner is an Outbox that keeps rows for a while after they were sent.
type OutboxCleaner interface {
	// Clean removes what was kept for long enough, the oldest first, and returns how many
	// rows that were: at most some thousands, so that it does not take long. [Drain] calls
	// it every minute, and behind the next window again where it removed 1,000 or more.
	Clean(ctx context.Context) (int, error)
}

// ClaimOptions say what a claim asks for.
type ClaimOptions struct {
	// Max is how many rows are returned at most, 1 or more.
	Max int
	// MaxBytes is how many bytes they may have together, about; a row that has more
	// comes alone. 0 means any number.
	MaxBytes int
	// Lease is how long they are hidden from other claims.
	Lease time.Duration
	// SkipTopics are topics whose rows stay where they are.
	SkipTopics []string
}

// OutboxRow is an event in an outbox.
type OutboxRow struct {
	// Ref names the row within its outbox, in the outbox's own terms.
	Ref string
	// Claim names the claim that returned the row.
	Claim string
	// Event is what is to be published. Its ID is that of the row, and makes a second
	// publish of the row a duplicate.
	Event Event
	// Attempts is how many failed.
	Attempts int
	// Err says why the row cannot be read as an event; nil if it can. Event then has
	// what could be read.
	Err error
}

// OutboxFailure is an attempt to publish a row that failed.
type OutboxFailure struct {
	Row OutboxRow
	// Err is why, for people who look.
	Err error
	// Dead sets the row aside: it is not claimed again. Otherwise it is due again
	// after RetryIn.
	Dead bool
	// RetryIn is the wait before the next attempt.
	RetryIn time.Duration
}

// OutboxRowsError reports the rows of a call that an outbox could not change, because the
// database refuses to change these rows and accepts others. The call changed all other rows.
type OutboxRowsError struct {
	Refs []string // OutboxRow.Ref of the rows that are unchanged
	Err  error    // why the first of them is
}

// Error implements error.
func (e *OutboxRowsError) Error() string {
	return fmt.Sprintf("%d rows cannot be changed, the first because: %v", len(e.Refs), e.Err)
}

// Unwrap returns Err.
func (e *OutboxRowsError) Unwrap() error { return e.Err }

// Add adds the row ref, which is unchanged because of err.
func (e *OutboxRowsError) Add(ref string, err error) {
	e.Refs = append(e.Refs, ref)
	if e.Err == nil {
		e.Err = err
	}
}

// OrNil returns e if it has rows, or nil.
func (e *OutboxRowsError) OrNil() error {
	if len(e.Refs) == 0 {
		return nil
	}
	return e
}

// OutboxStats say what waits in an outbox.
type OutboxStats struct {
	Pending int // rows to be published, claimed ones included
	Dead    int // rows set aside
	// Age is how long the oldest pending row has been there; 0 if there is none.
	Age time.Duration
}
