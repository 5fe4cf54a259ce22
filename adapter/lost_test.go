package adapter

import (
	"context"
	"errors"
	"testing"
)

func TestUntilLost(t *testing.T) {
	lost := make(chan struct{})
	ctx, release := untilLost(t.Context(), lost)
	defer release()
	if ctx.Err() != nil {
		t.Fatal(ctx.Err())
	}
	close(lost)
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, errLost) {
		t.Errorf("ended because of %v", cause)
	}

	ctx, release = untilLost(t.Context(), make(chan struct{}))
	release()
	release()
	if ctx.Err() == nil {
		t.Error("goes on after its release")
	}
}
