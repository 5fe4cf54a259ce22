//go:build unix

package child

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a child that reports values of type R. It is safe for concurrent use.
type Process[R any] struct {
	role   string
	cmd    *exec.Cmd
	stderr bytes.Buffer // to be read when ended is closed
	ended  chan struct{}
	err    error // of its end

	writing sync.Mutex
	stdin   io.WriteCloser // open for as long as the child is to live

	mu      sync.Mutex
	reports []R
	more    chan struct{} // closed when there are more; then another one is made
}

// Start starts a child. The caller must see to its end, by Kill or End.
func Start[R any](role string, config any) (*Process[R], error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("start %s: its configuration: %w", role, err)
	}
	p := &Process[R]{role: role, cmd: exec.CommandContext(context.Background(), exe), ended: make(chan struct{}), more: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), envRole+"="+role, envConfig+"="+string(text))
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		p.stdin, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	go p.read(out) // ends with the process
	return p, nil
}

// read collects what the child says until its end.
func (p *Process[R]) read(out io.Reader) {
	defer close(p.ended)
	lines := json.NewDecoder(out)
	for {
		var r R
		if lines.Decode(&r) != nil {
			break // the end, or a line that a SIGKILL cut
		}
		p.mu.Lock()
		p.reports = append(p.reports, r)
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
	}
	p.err = p.cmd.Wait()
}

// Reports returns everything that the child has said so far, which must not be changed,
// and a channel that is closed when there is more.
func (p *Process[R]) Reports() (all []R, more <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clip(p.reports), p.more
}

// Last returns the last thing that the child said, the zero value before the first.
func (p *Process[R]) Last() (last R) {
	if all, _ := p.Reports(); len(all) > 0 {
		last = all[len(all)-1]
	}
	return last
}

// Await returns the first report that matches, and waits for it. It fails when ctx ends,
// or the child does without it.
func (p *Process[R]) Await(ctx context.Context, match func(R) bool) (R, error) {
	for from, ended := 0, false; ; {
		all, more := p.Reports()
		if i := slices.IndexFunc(all[from:], match); i >= 0 {
			return all[from+i], nil
		}
		from = len(all)
		var none R
		if ended {
			return none, fmt.Errorf("%s ended without saying so: %w; last it said %+v", p, errors.Join(p.Err(), io.EOF), all[max(from-5, 0):])
		}
		select {
		case <-more:
		case <-p.ended:
			ended = true
		case <-ctx.Done():
			return none, fmt.Errorf("%s does not say so: %w; last it said %+v", p, context.Cause(ctx), all[max(from-5, 0):])
		}
	}
}

// Order tells the child something, in one line.
func (p *Process[R]) Order(text string) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	if _, err := io.WriteString(p.stdin, text+"\n"); err != nil {
		return fmt.Errorf("order %s to %s: %w", text, p, errors.Join(err, p.Err()))
	}
	return nil
}

// Kill ends the process by SIGKILL and returns when it is gone and all it said is read.
// It may be gone already.
func (p *Process[R]) Kill() {
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.ended
}

// Clean is Kill at the end of a test. Where that failed, it logs what the process wrote
// to standard error.
func (p *Process[R]) Clean(t testing.TB) {
	t.Helper()
	p.Kill()
	if said := p.Stderr(); t.Failed() && said != "" {
		t.Logf("%s said:\n%s", p, said)
	}
}

// Freeze stops the process where it is, by SIGSTOP, and returns when nothing of it runs
// any more. Its connections stay open.
func (p *Process[R]) Freeze() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		switch is, err := stopped(p.cmd.Process.Pid); {
		case err != nil:
			return fmt.Errorf("freeze %s: %w", p, err)
		case is:
			return nil
		}
		select {
		case <-tick.C:
		case <-p.ended:
			return fmt.Errorf("freeze %s: it has ended: %w", p, os.ErrProcessDone)
		}
	}
}

// Thaw lets a frozen process go on.
func (p *Process[R]) Thaw() error { return p.signal(syscall.SIGCONT) }

// Terminate asks the process to end in order, by SIGTERM, and does not wait for it.
func (p *Process[R]) Terminate() error { return p.signal(syscall.SIGTERM) }

// End asks the process to end in order, and waits until it has. It fails when ctx ends
// before, or with what the role returned.
func (p *Process[R]) End(ctx context.Context) error {
	if err := p.Terminate(); err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Wait waits until the process has ended by itself. It fails when ctx ends before, or
// with what the role returned.
func (p *Process[R]) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
		return p.Err()
	case <-ctx.Done():
		return fmt.Errorf("%s does not end: %w", p, context.Cause(ctx))
	}
}

// Ended is closed when the process is gone and all it said is read.
func (p *Process[R]) Ended() <-chan struct{} { return p.ended }

// Err is why the process ended, with what it wrote to standard error; nil while it
// lives, and after an end in order.
func (p *Process[R]) Err() error {
	select {
	case <-p.ended:
		if p.err != nil {
			return fmt.Errorf("%s ended: %w: %s", p, p.err, bytes.TrimSpace(p.stderr.Bytes()))
		}
	default:
	}
	return nil
}

// Stderr is what the process wrote to standard error. It waits for its end.
func (p *Process[R]) Stderr() string {
	<-p.ended
	return p.stderr.String()
}

// String names the process by its role and number.
func (p *Process[R]) String() string { return fmt.Sprintf("%s %d", p.role, p.cmd.Process.Pid) }

func (p *Process[R]) signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %v to %s: %w", s, p, errors.Join(err, p.Err()))
	}
	return nil
}
