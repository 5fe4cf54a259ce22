package main

import (
	"context"
	"io/fs"
	"strings"
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

// What an error of --at advises makes a topic take events for later, also one with limits.
func TestPubAtRemedy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "orders")
	b.ok(t, "", "topics", "create", "bills", "--max-events", "100")
	for _, topic := range []string{"orders", "bills"} {
		r := b.run(t, "", "pub", topic, "1", "--at", "1h")
		_, advice, ok := strings.Cut(strings.TrimSpace(r.errOut), "; allow them with jetbus ")
		if r.code != exitFailure || !ok {
			t.Fatalf("%+v", r)
		}
		b.ok(t, "", strings.Fields(strings.ReplaceAll(advice, "TOPIC", topic))...)
		if out := b.ok(t, "", "pub", topic, "1", "--at", "1h", "--id", "later"); out != topic+" scheduled id=later\n" {
			t.Errorf("printed %q", out)
		}
	}
	b.ok(t, "", "topics", "create", "mails")
	const advice = "; use -1 for both; that is --max-bytes -1 --max-events -1\n"
	if r := b.run(t, "", "topics", "create", "mails", "--delays"); r.code != exitUsage || !strings.HasSuffix(r.errOut, advice) {
		t.Errorf("%+v", r)
	}
}

func TestSeveralValues(t *testing.T) {
	for in, want := range map[string]bool{
		"1\n2": true, "{\"a\":1}\r\n\n[2]\n": true, "": false, "\n\n": false, "1": false, "{\n\"a\":\n1}": false, "1\nx": false, "a\nb": false,
	} {
		if got := severalValues([]byte(in)); got != want {
			t.Errorf("severalValues(%q) = %v", in, got)
		}
	}
}

func TestWithoutLineEnd(t *testing.T) {
	for in, want := range map[string]string{"a\n": "a", "a\r\n": "a", "a\n\n": "a\n", "a\r": "a\r", "a": "a", "\n": "", "": ""} {
		if got := withoutLineEnd([]byte(in)); string(got) != want {
			t.Errorf("of %q is left %q, want %q", in, got, want)
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
