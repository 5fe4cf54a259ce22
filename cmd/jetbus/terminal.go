package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// terminalOf returns the terminal that w writes to, if it is one.
func terminalOf(w io.Writer) (*os.File, bool) {
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(descriptor(f))
}

// isFile reports whether w writes to a file, and not to a terminal or another program.
func isFile(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular()
}

// isFed reports whether r reads what another program writes, or a file, and not a terminal.
func isFed(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && (info.Mode().IsRegular() || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0)
}

// sayLater says on a terminal what a command waits for, once it has waited for a second: it looks
// like one that hangs. The caller calls over when the wait is; nothing is said after that.
func sayLater(w io.Writer, text string) (over func()) {
	if f, ok := terminalOf(w); ok {
		return later(f, text)
	}
	return func() {}
}

func later(w io.Writer, text string) (over func()) {
	said := make(chan struct{})
	timer := time.AfterFunc(time.Second, func() {
		defer close(said)
		fmt.Fprintln(w, printable(text))
	})
	return func() {
		if !timer.Stop() {
			<-said
		}
	}
}

// readUntilDone returns what read returns, or the error of ctx once that has ended. A read that
// has nothing to read goes on then, and ends with the process.
func readUntilDone[T any](ctx context.Context, read func() (T, error)) (text T, err error) {
	type result struct {
		text T
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := read()
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-ctx.Done():
		return text, ctx.Err()
	}
}

// windowOf returns the size of a terminal in characters, or a usual one if it does not say.
func windowOf(f *os.File) (width, height int) {
	width, height, err := term.GetSize(descriptor(f))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

func descriptor(f *os.File) int { return int(f.Fd()) } //nolint:gosec // a file descriptor is a small number
