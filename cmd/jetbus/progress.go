package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// progressLine is a line on a terminal that says how far a long command is.
type progressLine struct {
	out   io.Writer // nil: nobody looks
	shown time.Time
}

func newProgressLine(w io.Writer) *progressLine {
	if f, ok := terminalOf(w); ok {
		return &progressLine{out: f}
	}
	return &progressLine{}
}

const progressEvery = 100 * time.Millisecond

// show puts a text there, where the one before has been there for long enough.
func (p *progressLine) show(text func() string) {
	if p.out == nil || time.Since(p.shown) < progressEvery {
		return
	}
	p.shown = time.Now()
	fmt.Fprintf(p.out, "\r%s%s", text(), endLine)
}

// clear takes the line away.
func (p *progressLine) clear() {
	if p.out != nil && !p.shown.IsZero() {
		fmt.Fprint(p.out, "\r"+endLine)
		p.shown = time.Time{}
	}
}

// watchedBus is a bus for what reads or removes many dead letters: it shows how many.
type watchedBus struct {
	*adapter.Bus
	line          *progressLine
	read, removed int
}

// Scan implements [jetbus.Store].
func (b *watchedBus) Scan(ctx context.Context, topic string, q jetbus.ScanQuery) iter.Seq2[jetbus.Event, error] {
	return func(yield func(jetbus.Event, error) bool) {
		for e, err := range b.Bus.Scan(ctx, topic, q) {
			if err == nil {
				b.read++
				b.show()
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// RemoveEvents implements [jetbus.Remover].
func (b *watchedBus) RemoveEvents(ctx context.Context, topic string, seqs ...uint64) (int, error) {
	n, err := b.Bus.RemoveEvents(ctx, topic, seqs...)
	b.removed += n
	b.show()
	return n, err
}

func (b *watchedBus) show() {
	b.line.show(func() string {
		text := count(b.read) + " looked at"
		if b.removed > 0 {
			text += ", " + count(b.removed) + " removed"
		}
		return text
	})
}
