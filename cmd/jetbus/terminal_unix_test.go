//go:build unix

package main

import (
	"bytes"
	"os"
	"slices"
	"syscall"
	"testing"
)

// Standard input may be a socket, as some programs give it to those that they start.
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
	if _, err := out.WriteString(`{"a":1}` + "\n"); err != nil {
		t.Fatal(err)
	}
	_ = out.Close() // the reader sees the end, or the test fails
	var said bytes.Buffer
	if code := run(t.Context(), []string{"--server", b.url, "pub", "orders"}, in, &said, &said, func(string) string { return "" }); code != 0 {
		t.Fatalf("exit code %d: %s", code, said.String())
	}
	if got := b.payloads(t, "orders"); !slices.Equal(got, []string{`{"a":1}`}) {
		t.Errorf("stored %q", got)
	}
}
