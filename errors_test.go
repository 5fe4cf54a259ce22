package jetbus_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

func TestErrors(t *testing.T) {
	publish := &jetbus.PublishError{Event: jetbus.Event{Topic: "a", ID: "i"}, Stored: jetbus.StoredUnknown, Err: jetbus.ErrUnavailable}
	for _, c := range []struct {
		err  error
		is   error // what it matches
		text string
	}{
		{publish, jetbus.ErrUnavailable, "publish a i (stored: unknown): broker is unavailable"},
		{&jetbus.PublishError{Event: jetbus.Event{Topic: "a", ID: "i"}, Err: jetbus.ErrTopicFull}, jetbus.ErrTopicFull, "publish a i (stored: no): topic is full"},
		{
			&jetbus.BatchError{Failed: []*jetbus.PublishError{publish}, Total: 3}, jetbus.ErrUnavailable,
			"publish batch: 1 of 3 events not acknowledged, first: publish a i (stored: unknown): broker is unavailable",
		},
		{&jetbus.BatchError{Total: 3}, nil, "publish batch: 0 of 3 events not acknowledged"},
		{
			&jetbus.ConflictError{What: "topic a", Differences: []jetbus.Difference{{"Storage", "file", "memory"}, {"Replicas", "1", "3"}}, Hint: "use another name"},
			jetbus.ErrConflict, "topic a exists with other settings: Storage is file, not memory, Replicas is 1, not 3; use another name",
		},
		{&jetbus.ConflictError{What: "topic a"}, jetbus.ErrConflict, "topic a exists with other settings"},
		{
			&jetbus.ConflictError{What: "topic a", Differences: []jetbus.Difference{{"History", "5", "4"}}, Hint: "it would keep less than it does", See: "TopicConfig.Shrink"},
			jetbus.ErrConflict, "topic a exists with other settings: History is 5, not 4; it would keep less than it does (see TopicConfig.Shrink)",
		},
		{
			&jetbus.GroupBusyError{Topic: "a", Group: "g", Held: 3}, jetbus.ErrGroupBusy,
			"group a/g is busy: 3 events are held; wait longer, stop its members, or force",
		},
		{&jetbus.PanicError{Value: io.EOF, Stack: []byte("stack")}, io.EOF, "handler panicked: EOF"},
		{&jetbus.PanicError{Value: 7}, nil, "handler panicked: 7"},
	} {
		wrapped := fmt.Errorf("call: %w", c.err)
		if c.is != nil && !errors.Is(wrapped, c.is) {
			t.Errorf("%v is no %v", wrapped, c.is)
		}
		if errors.Is(wrapped, jetbus.ErrClosed) {
			t.Errorf("%v is ErrClosed", wrapped)
		}
		if c.err.Error() != c.text {
			t.Errorf("got  %s\nwant %s", c.err, c.text)
		}
	}

	batch := fmt.Errorf("call: %w", &jetbus.BatchError{Failed: []*jetbus.PublishError{publish}, Total: 1})
	if got, ok := errors.AsType[*jetbus.PublishError](batch); !ok || got != publish {
		t.Errorf("a batch error holds %v", got)
	}
	if err := (&jetbus.BatchError{}).Unwrap(); err != nil {
		t.Errorf("an empty batch error wraps %v", err)
	}
	if jetbus.StoredNo.String() != "no" || jetbus.StoredUnknown.String() != "unknown" {
		t.Error("Stored has other names")
	}
}
