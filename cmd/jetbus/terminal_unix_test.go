//go:build unix

package main

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// onFirst is a writer that calls a function once, with what is written first.
type onFirst struct {
	bytes.Buffer
	once sync.Once
	call func(text string)
}

func (w *onFirst) Write(p []byte) (int, error) {
	w.once.Do(func() { w.call(string(p)) })
	return w.Buffer.Write(p)
}

// Standard input may be a socket, as some programs give it to those that they start, and some of
// these never write to it: so it is said what is waited for.
func TestPubFromASocket(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "orders")
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	in, out := os.NewFile(uintptr(pair[0]), "in"), os.NewFile(uintptr(pair[1]), "out")
	defer in.Close()
	said := &onFirst{call: func(text string) {
		if want := "reading the payload from standard input; say '' for none\n"; text != want {
			t.Errorf("it says %q, want %q", text, want)
		}
		_, err := out.WriteString(`{"a":1}` + "\n")
		if err = errors.Join(err, out.Close()); err != nil {
			t.Error(err)
		}
	}}
	var stored bytes.Buffer
	if code := run(t.Context(), []string{"--server", b.url, "pub", "orders"}, in, &stored, said, func(string) string { return "" }); code != 0 {
		t.Fatalf("exit code %d: %s", code, said.String())
	}
	if got := b.payloads(t, "orders"); !slices.Equal(got, []string{`{"a":1}`}) {
		t.Errorf("stored %q", got)
	}
}
