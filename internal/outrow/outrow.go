// Package outrow is what the rows of an outbox have in common, whatever database they
// are in: how an event becomes one, and what of a claim and of a failure fits.
package outrow

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

const (
	maxError = 1000 // bytes of the error that a row keeps
	maxClaim = 5000 // rows, within the bounds of database drivers
)

// Complete returns the events as they are to be added: it fills in empty IDs and zero
// times, and checks them. One that is larger than maxBytes as a message, about, is
// refused, unless that is -1; check, if there is any, is asked about each. The error
// names the event and wraps that of [jetbus.Event.Validate], [jetbus.ErrPayloadTooLarge]
// or what check returned; a panic of check is a [jetbus.PanicError].
func Complete(ctx context.Context, events []jetbus.Event, maxBytes int, check func(context.Context, jetbus.Event) error) ([]jetbus.Event, error) {
	now := time.Now()
	out := make([]jetbus.Event, len(events))
	for i, e := range events {
		if e.ID == "" {
			e.ID = jetbus.NewID()
		}
		if e.Time.IsZero() {
			e.Time = now
		}
		err := e.Validate()
		if size := size(&e); err == nil && maxBytes > 0 && size > maxBytes {
			err = fmt.Errorf("%w: %d bytes with headers, at most %d are allowed (Options.MaxBytes)", jetbus.ErrPayloadTooLarge, size, maxBytes)
		}
		if err == nil && check != nil {
			err = ask(ctx, check, e)
		}
		if err != nil {
			return nil, fmt.Errorf("event %d (%.100q): %w", i, e.Topic, err)
		}
		out[i] = e
	}
	return out, nil
}

// ask calls check and makes an error of its panic.
func ask(ctx context.Context, check func(context.Context, jetbus.Event) error, e jetbus.Event) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &jetbus.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return check(ctx, e)
}

// size is about what an event takes as a message.
func size(e *jetbus.Event) int {
	const fields = 512 // the names of the headers that every message has, and the short values
	n := fields + len(e.Payload) + 2*len(e.Topic) + 2*len(e.ID) + len(e.SID) + len(e.Key)
	for name, value := range e.Headers {
		n += len(name) + len(value) + len(": \r\n")
	}
	for _, list := range [][]string{e.CausedBy, e.Tags} {
		for _, item := range list {
			n += len(item) + 1
		}
	}
	return n
}

// CheckClaim reports a Max that is not 1 to 5,000, a negative MaxBytes, or a Lease below
// a millisecond. The error wraps [jetbus.ErrInvalidOption].
func CheckClaim(o jetbus.ClaimOptions) error {
	switch {
	case o.Max < 1 || o.Max > maxClaim:
		return fmt.Errorf("%w: Max is %d, use 1 to %d", jetbus.ErrInvalidOption, o.Max, maxClaim)
	case o.MaxBytes < 0:
		return fmt.Errorf("%w: MaxBytes is %d, use 1 or more, or 0 for any number", jetbus.ErrInvalidOption, o.MaxBytes)
	case o.Lease < time.Millisecond:
		return fmt.Errorf("%w: Lease is %v, use at least 1ms", jetbus.ErrInvalidOption, o.Lease)
	}
	return nil
}

// ErrorText is an error as a row keeps it: UTF-8 without zeros, at most 1,000 bytes. It
// is empty for nil.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	text := strings.ReplaceAll(err.Error(), "\x00", "")
	return strings.ToValidUTF8(text[:min(len(text), maxError)], "")
}

// ASCII returns a text with all non-ASCII characters escaped, at most 1,000 bytes.
func ASCII(text string) string {
	quoted := strconv.QuoteToASCII(text)
	quoted = strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	return quoted[:min(len(quoted), maxError)]
}

// Attempts returns the number of failed attempts to publish a row, including one that has just failed.
// It does not count beyond 32 bits. If the row already has a larger number, it returns that number.
func Attempts(row jetbus.OutboxRow) int64 {
	if row.Attempts >= math.MaxInt32 {
		return int64(row.Attempts)
	}
	return int64(max(row.Attempts, 0)) + 1
}
