package shutdown_test

import (
	"context"
	"errors"
	"testing"

	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

type key struct{}

func TestContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, 1))
	alive := shutdown.Context(ctx)
	cancel()
	if alive.Err() == nil {
		t.Error("one that lives is not the caller's any more")
	}
	if got := shutdown.Context(ctx); got.Err() != nil || got.Value(key{}) != 1 {
		t.Errorf("of one that was canceled: %v, value %v", got.Err(), got.Value(key{}))
	}
	late, end := context.WithTimeout(t.Context(), -1)
	defer end()
	if err := shutdown.Context(late).Err(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("of one whose time is over: %v", err)
	}
}
