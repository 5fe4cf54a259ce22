package adapter

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// What the server refuses is told in a sentence, with what it said to be asked for, and what has
// been told before is not told again.
func TestTranslate(t *testing.T) {
	refused := &jetstream.APIError{Code: 400, ErrorCode: 10027, Description: "maximum number of streams reached"}
	late := (&server{}).translate("", "", context.DeadlineExceeded)
	headless := (&server{}).translate("", "", &jetstream.APIError{ErrorCode: codeNoLeader})
	alone := (&server{}).translate("", "", &jetstream.APIError{ErrorCode: codeNoCluster})
	for _, c := range []struct {
		op      string
		err, is error
		want    string
	}{
		{"list topics", refused, refused, "list topics: the server refuses it: maximum number of streams reached (its error 10027)"},
		{"", unknownError{refused}, refused, "the server refuses it: maximum number of streams reached (its error 10027)"},
		{"", fmt.Errorf("%w: why: %w", jetbus.ErrConflict, refused), refused, "conflict: why: " + refused.Error()},
		{"", &jetstream.APIError{ErrorCode: codeNoCluster}, errNoCluster, "replicas need a cluster, and this server is alone"},
		{"", late, jetbus.ErrUnavailable, "broker is unavailable: no answer from the server: context deadline exceeded"},
		{"", headless, jetbus.ErrUnavailable, headless.Error()},
		{"", fmt.Errorf("stream a: %w", alone), errNoCluster, "stream a: " + alone.Error()},
		{"read", late, context.DeadlineExceeded, "read: broker is unavailable: no answer from the server: context deadline exceeded"},
	} {
		got := (&server{}).translate(c.op, "", c.err)
		if got.Error() != c.want || !errors.Is(got, c.is) {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
		if code := apiCode(got); code != apiCode(c.err) {
			t.Errorf("%v: its code is %d", c.err, code)
		}
	}
	if err := (&server{}).translate("read", "", nil); err != nil {
		t.Errorf("of no error: %v", err)
	}
}

// A conflict says itself what it is about.
func TestDoing(t *testing.T) {
	conflict := fmt.Errorf("and more: %w", &jetbus.ConflictError{What: "topic a"})
	for what, want := range map[string]string{
		"topic a": "and more: topic a exists with other settings",
		"topic b": "do: and more: topic a exists with other settings",
	} {
		if err := doing("do", what, conflict); err.Error() != want || !errors.Is(err, jetbus.ErrConflict) {
			t.Errorf("got %q, want %q", err, want)
		}
	}
}
