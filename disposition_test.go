package jetbus_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

var errCause = errors.New("no room")

func TestDispositionOf(t *testing.T) {
	tests := []struct {
		name   string
		err    error
		action jetbus.Action
		delay  time.Duration
		reason jetbus.DeadReason
		cause  string
	}{
		{"nil", nil, jetbus.ActionAck, 0, "", ""},
		{"plain", errCause, jetbus.ActionRetry, 0, "", "no room"},
		{"panic", &jetbus.PanicError{Value: 1}, jetbus.ActionRetry, 0, "", "handler panicked: 1"},
		{"retry", jetbus.RetryIn(time.Minute, errCause), jetbus.ActionRetry, time.Minute, "", "no room"},
		{"retry, no reason", jetbus.RetryIn(time.Minute, nil), jetbus.ActionRetry, time.Minute, "", "the handler asked for a retry"},
		{"retry, negative", jetbus.RetryIn(-time.Minute, errCause), jetbus.ActionRetry, 0, "", "no room"},
		{"retry, too late", jetbus.RetryIn(1<<62, errCause), jetbus.ActionRetry, jetbus.MaxRetryDelay, "", "no room"},
		{"snooze", jetbus.Snooze(time.Hour), jetbus.ActionSnooze, time.Hour, "", "the handler put the event off"},
		{"snooze, zero", jetbus.Snooze(0), jetbus.ActionSnooze, time.Millisecond, "", "the handler put the event off"},
		{"reject", jetbus.Reject(errCause), jetbus.ActionReject, 0, jetbus.DeadRejected, "no room"},
		{"reject, no reason", jetbus.Reject(nil), jetbus.ActionReject, 0, jetbus.DeadRejected, "the handler rejected the event"},
		{"reject as", jetbus.RejectAs(jetbus.DeadSchema, errCause), jetbus.ActionReject, 0, jetbus.DeadSchema, "no room"},
		{"reject as nothing", jetbus.RejectAs("", errCause), jetbus.ActionReject, 0, jetbus.DeadRejected, "no room"},
		{"drop", jetbus.Drop(errCause), jetbus.ActionAck, 0, "", "no room"},
		{"drop, no reason", jetbus.Drop(nil), jetbus.ActionAck, 0, "", "the handler dropped the event"},
		{"wrapped", fmt.Errorf("charge: %w", jetbus.Reject(errCause)), jetbus.ActionReject, 0, jetbus.DeadRejected, "no room"},
		{"the outermost counts", jetbus.RetryIn(time.Second, jetbus.Reject(errCause)), jetbus.ActionRetry, time.Second, "", "reject: no room"},
		{"the first of several", errors.Join(errCause, jetbus.Drop(errCause), jetbus.Snooze(1)), jetbus.ActionAck, 0, "", "no room"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := jetbus.DispositionOf(tt.err)
			cause := ""
			if d.Err != nil {
				cause = d.Err.Error()
			}
			if d.Action != tt.action || d.Delay != tt.delay || d.Reason != tt.reason || cause != tt.cause {
				t.Errorf("%+v, want %d after %v, %q, %q", d, tt.action, tt.delay, tt.reason, tt.cause)
			}
		})
	}
	for _, err := range []error{jetbus.RetryIn(1, errCause), jetbus.Reject(errCause), jetbus.Drop(errCause)} {
		if !errors.Is(err, errCause) || !strings.HasSuffix(err.Error(), ": no room") {
			t.Errorf("%v does not show its cause", err)
		}
	}
}

func TestRetryOptionsValidate(t *testing.T) {
	for _, name := range []string{"d17", "d17-2", "a", strings.Repeat("9", 64)} {
		check(t, name, jetbus.RetryOptions{Name: name}.Validate(), nil)
	}
	for _, name := range []string{"", "D17", "a.b", "a b", "a/b", "\u00e9", "a*", strings.Repeat("9", 65)} {
		check(t, name, jetbus.RetryOptions{Name: name}.Validate(), jetbus.ErrInvalidOption)
	}
	check(t, "negative replays", jetbus.RetryOptions{Name: "a", Replays: -1}.Validate(), jetbus.ErrInvalidOption)
}
