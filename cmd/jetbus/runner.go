package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// job is something that runs until it is stopped: a feed, a projection, a drainer.
type job interface {
	// Done is closed when the job has ended, for whatever reason.
	Done() <-chan struct{}
	// Err returns why it ended: nil while it runs, and where that was asked for.
	Err() error
	// Stop ends it in order, within ctx.
	Stop(ctx context.Context) error
}

// untilInterrupted runs f, the whole of a command that works until it is interrupted: f reads
// what describes the work, connects, opens what it needs, calls open, and does its work. An interrupt that comes
// before that is an end in order too, and no error.
func untilInterrupted(ctx context.Context, f func(open func()) error) error {
	opened := false
	err := f(func() { opened = true })
	if !opened && ctx.Err() != nil {
		return nil //nolint:nilerr // the end was asked for
	}
	return err
}

// runner runs a job and shows how it is.
type runner struct {
	out    io.Writer
	output string // table, json or ndjson
	title  string // the first line for people
	// line says how the job is, for people and for programs. After the end of the job it
	// is asked once more.
	line func(ctx context.Context) (text string, v any)
	// hint is the last line for people; empty: none.
	hint func() string
}

// run shows the job each time that something has changed, until ctx ends, which is no
// error, or the job does. It stops the job.
func (r *runner) run(ctx context.Context, j job) error {
	err := r.begin()
	if err == nil {
		err = r.watch(ctx, j)
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err = errors.Join(err, j.Stop(stopping), j.Err())
	showing, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	_, showErr := r.show(showing, "")
	err = errors.Join(err, showErr)
	if hint := r.hint(); hint != "" && r.output == "table" {
		_, hintErr := fmt.Fprintln(r.out, hint)
		err = errors.Join(err, hintErr)
	}
	return err
}

// askTimeout is how long the last question of a run may take. Tests raise it.
var askTimeout = 5 * time.Second

func (r *runner) begin() error {
	if r.output != "table" {
		return nil
	}
	_, err := fmt.Fprintln(r.out, printable(r.title))
	return err
}

// watch shows the job until ctx or the job ends.
func (r *runner) watch(ctx context.Context, j job) error {
	ticker := time.NewTicker(viewEvery)
	defer ticker.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-j.Done():
			return nil
		case <-ticker.C:
			asking, cancel := context.WithTimeout(ctx, viewEvery)
			var err error
			last, err = r.show(asking, last)
			cancel()
			if err != nil {
				return err
			}
		}
	}
}

// show prints a line, unless it would say the same as the last one, which it returns.
func (r *runner) show(ctx context.Context, last string) (string, error) {
	text, v := r.line(ctx)
	switch {
	case text == last:
		return last, nil
	case r.output != "table":
		return text, writeValue(r.out, "ndjson", v)
	}
	_, err := fmt.Fprintln(r.out, time.Now().Format("15:04:05")+"  "+text)
	return text, err
}
