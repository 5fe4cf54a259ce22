package main

import (
	"context"
	"io/fs"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// taking is a publisher that takes everything.
type taking struct{}

func (taking) Publish(_ context.Context, e jetbus.Event, _ ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	return jetbus.Receipt{Event: e}, nil
}

// leaving is standard output whose reader goes after so many writes.
type leaving int

func (l *leaving) Write(text []byte) (int, error) {
	if *l == 0 {
		return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}
	}
	*l--
	return len(text), nil
}

// Only what left nothing undone ends well where nobody reads the output.
func TestPubCountUnread(t *testing.T) {
	for read, want := range []int{exitPartial, exitPartial, 0, 0} { // by how many lines were read
		out := leaving(read)
		p := publishing{out: &out}
		err := p.publishTimes(t.Context(), taking{}, jetbus.Event{Topic: "a", ID: "i"}, jetbus.PublishOptions{}, 3)
		if got := exitCode(err); got != want {
			t.Errorf("%d of 3 lines were read: exit code %d (%v), want %d", read, got, err, want)
		}
	}
}

func TestOutlast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		longer, end := outlast(ctx)
		began := time.Now()
		cancel()
		<-longer.Done()
		if took := time.Since(began); took != settleTimeout {
			t.Errorf("it ended %v after the context, want %v", took, settleTimeout)
		}
		end()

		longer, end = outlast(t.Context())
		end()
		if longer.Err() == nil {
			t.Error("it goes on when its function has been called")
		}
	})
}
