package leaktest

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// What is still there when looked at a few times and then ends is nothing left behind.
func TestLast(t *testing.T) {
	failure := errors.New("still there")
	looked := 0
	look := func() error {
		if looked++; looked <= 3 {
			return failure
		}
		return nil
	}
	if err := last(look, time.Hour); err != nil || looked != 4 {
		t.Errorf("looked %d times: %v", looked, err)
	}
	if err := last(func() error { return failure }, 0); !errors.Is(err, failure) {
		t.Errorf("what stays: %v", err)
	}
}

// tests are a package's, which end with a code.
type tests int

func (c tests) Run() int { return int(c) }

func TestRun(t *testing.T) {
	looked := false
	look := func() error {
		looked = true
		return nil
	}
	var out bytes.Buffer
	if code := run(tests(2), &out, look); code != 2 || looked || out.Len() > 0 {
		t.Errorf("tests that failed: code %d, looked: %v, %s", code, looked, &out)
	}
	if code := run(tests(0), &out, look); code != 0 || !looked || out.Len() > 0 {
		t.Errorf("code %d, looked: %v, %s", code, looked, &out)
	}
}

// A goroutine is seen while it runs.
func TestLooker(t *testing.T) {
	before := goleak.IgnoreCurrent()
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		<-end
		close(ended)
	}()
	if err := last(looker([]goleak.Option{before}), 0); err == nil || !strings.Contains(err.Error(), "TestLooker") {
		t.Errorf("found %v", err)
	}
	close(end)
	<-ended
	None(t, before)
}
