package jetbus

import (
	"context"
	"fmt"
	"time"
)

// Outbox holds events until they are published, in the database of the service that emits
// them. A transaction commits both its changes and the event about them, or neither.
// Package outbox implements it for database/sql. [Drain] publishes the waiting rows.
//
// Implementations decide how events are added, because adding takes the caller's
// transaction. The methods here are those that Drain needs. Implementations guarantee:
//
//   - Claim finds a row by its state, never by a position after the last one: a long
//     transaction commits an old row late.
//   - Rows of one topic and key are claimed in order: a row is claimed only if each older
//     row of its key is sent or in the same claim. Rows without a key have no order.
//     Whether a dead row blocks later rows of its key is an option of the implementation.
//   - The clock of the outbox decides on leases and waits, not the callers' clocks.
//   - Any number of drainers may call all methods concurrently.
//   - Each row fails alone: a row that cannot be read or claimed is returned with
//     [OutboxRow.Err], and Sent, Release and Failed change the rows that they can and report
//     the others in an [*OutboxRowsError].
type Outbox interface {
	// Claim returns rows that are due, oldest first, and hides them from other claims for
	// the lease. It returns no rows and no error if none is due.
	Claim(ctx context.Context, o ClaimOptions) ([]OutboxRow, error)
	// Sent marks the rows as published. It does not check who holds them now: they were
	// published, even if their leases have expired.
	Sent(ctx context.Context, rows []OutboxRow) error
	// Release gives back rows that were not tried: they are due immediately. It does not
	// change rows whose claim is no longer the caller's.
	Release(ctx context.Context, rows []OutboxRow) error
	// Failed records failed attempts. It does not change rows whose claim is no longer the
	// caller's. The text of an error is recorded as far as the database can store it.
	Failed(ctx context.Context, failures []OutboxFailure) error
	// OutboxStats counts the waiting rows.
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
	// Claim names the claim that returned the row. It is empty if the database refuses to let
	// the row be claimed. Err is the reason then, Failed reports the row as unchanged, and
	// later claims return it after the lease.
	Claim string
	// Event is what is to be published. Its ID is that of the row, and makes a second
	// publish of the row a duplicate.
	Event Event
	// Attempts is how many failed.
	Attempts int
	// Err says why the row cannot be read as an event or claimed; nil if it can. Event then
	// has what could be read.
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

// OutboxRowsError reports the rows of a call that an outbox could not change because the
// database refuses changes to these rows only. The call changed all other rows.
type OutboxRowsError struct {
	Refs []string // OutboxRow.Ref of the rows that are unchanged
	Err  error    // why the first of them is unchanged
}

// Error implements error.
func (e *OutboxRowsError) Error() string {
	return fmt.Sprintf("%d rows cannot be changed, the first because: %v", len(e.Refs), e.Err)
}

// Unwrap returns Err.
func (e *OutboxRowsError) Unwrap() error { return e.Err }

// Add records that the row ref is unchanged because of err.
func (e *OutboxRowsError) Add(ref string, err error) {
	e.Refs = append(e.Refs, ref)
	if e.Err == nil {
		e.Err = err
	}
}

// OrNil returns e if it names any rows, or else nil.
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
