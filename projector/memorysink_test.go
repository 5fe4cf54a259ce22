package projector_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector"
)

// memory is a collection of documents that lives as long as a test. It is the
// model of what a sink promises: the guard, ownership, the position. Its sinks are
// used by one replica each.
type memory struct {
	mu      sync.Mutex
	docs    map[string]memoryDoc
	owner   string
	sources map[string]memorySource // by stream
}

// memoryDoc is a document.
type memoryDoc struct {
	Doc       string
	Source    string
	Seq       uint64
	Version   int64
	Versioned bool
	Deleted   bool
}

type memorySource struct {
	created int64
	seq     uint64
	known   bool
	last    jetbus.Checkpoint
}

func newMemory() *memory {
	return &memory{docs: map[string]memoryDoc{}, sources: map[string]memorySource{}}
}

// memorySink is a replica's way to a memory.
type memorySink struct {
	m *memory
	// before may fail a write ahead of it, or hold it up. after may fail it when it is
	// stored. reject says which changes can never be stored.
	before func(ctx context.Context, b projector.Batch) error
	after  func(b projector.Batch) error
	reject func(c projector.Change) error

	source  projector.Source
	at      uint64 // the position that this replica knows
	inUse   atomic.Bool
	mu      sync.Mutex
	batches []int // changes of each batch that was stored
}

func (m *memory) sink() *memorySink { return &memorySink{m: m} }

var errBusy = errors.New("a sink was called by two at once")

// Open implements projector.Sink.
func (s *memorySink) Open(ctx context.Context, source projector.Source) (projector.Position, error) {
	if !s.inUse.CompareAndSwap(false, true) {
		return projector.Position{}, errBusy
	}
	defer s.inUse.Store(false)
	if s.before != nil {
		if err := s.before(ctx, projector.Batch{}); err != nil {
			return projector.Position{}, err
		}
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	switch have, ok := s.m.sources[source.Stream]; {
	case s.m.owner != "" && s.m.owner != source.Projection:
		return projector.Position{}, fmt.Errorf("memory: %w: %s", projector.ErrOwned, s.m.owner)
	case ok && have.created != source.Created.UnixNano():
		return projector.Position{}, fmt.Errorf("memory: %w", projector.ErrNewStream)
	}
	have := s.m.sources[source.Stream]
	have.created = source.Created.UnixNano()
	s.m.owner, s.m.sources[source.Stream], s.source, s.at = source.Projection, have, source, have.seq
	return projector.Position{Known: have.known, Seq: have.seq, Last: have.last}, nil
}

// Position implements projector.Positioner.
func (s *memorySink) Position(ctx context.Context, source projector.Source) (projector.Position, error) {
	if s.before != nil {
		if err := s.before(ctx, projector.Batch{}); err != nil {
			return projector.Position{}, err
		}
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	at := s.m.sources[source.Stream]
	return projector.Position{Known: at.known, Seq: at.seq, Last: at.last}, nil
}

// Write implements projector.Sink.
func (s *memorySink) Write(ctx context.Context, b projector.Batch) (projector.Outcome, error) {
	var out projector.Outcome
	if !s.inUse.CompareAndSwap(false, true) {
		return out, errBusy
	}
	defer s.inUse.Store(false)
	if s.before != nil {
		if err := s.before(ctx, b); err != nil {
			return out, err
		}
	}
	s.m.mu.Lock()
	at := s.m.sources[s.source.Stream]
	if s.source.Exclusive && b.UpTo > 0 && (b.UpTo < at.seq || at.seq != s.at) {
		s.m.mu.Unlock()
		return out, fmt.Errorf("memory: %w", projector.ErrFenced)
	}
	if b.Last.Seq > at.last.Seq {
		at.last = b.Last
		s.m.sources[s.source.Stream] = at
	}
	for i, c := range b.Changes {
		switch err := s.m.put(s, c); {
		case err != nil:
			out.Rejected = append(out.Rejected, projector.Rejection{Index: i, Err: err})
		case s.m.docs[c.Key].Seq == c.Event.Seq && s.m.docs[c.Key].Source == s.source.Stream:
			out.Applied++
		default:
			out.Stale++
		}
	}
	if len(out.Rejected) == 0 && b.UpTo > 0 {
		at.known, at.seq = true, max(at.seq, b.UpTo)
		s.m.sources[s.source.Stream], s.at = at, at.seq
	}
	s.m.mu.Unlock()
	s.mu.Lock()
	s.batches = append(s.batches, len(b.Changes))
	s.mu.Unlock()
	if s.after != nil {
		if err := s.after(b); err != nil {
			return projector.Outcome{}, err
		}
	}
	return out, nil
}

// put stores a change unless what is there is as new or newer.
func (m *memory) put(s *memorySink, c projector.Change) error {
	if s.reject != nil {
		if err := s.reject(c); err != nil {
			return err
		}
	}
	next := memoryDoc{Source: s.source.Stream, Seq: c.Event.Seq, Version: c.Version, Versioned: c.Versioned, Deleted: c.Deleted}
	switch doc := c.Doc.(type) {
	case nil:
	case json.RawMessage:
		next.Doc = string(doc)
	default:
		next.Doc = fmt.Sprint(doc)
	}
	have, ok := m.docs[c.Key]
	switch {
	case !ok, !s.source.Every && have.older(next):
		m.docs[c.Key] = next
	case have.Source != next.Source:
		return fmt.Errorf("key %s is of %s", c.Key, have.Source)
	}
	return nil
}

func (d memoryDoc) older(next memoryDoc) bool {
	switch {
	case d.Source != next.Source:
		return false
	case next.Versioned && d.Version != next.Version:
		return d.Version < next.Version
	}
	return d.Seq < next.Seq
}

// shadowOf is a memory that is filled to take the place of another.
type shadowOf struct {
	*memorySink

	of      *memory
	swapped bool
}

// Shadow implements projector.Rebuilder.
func (s *memorySink) Shadow(context.Context) (projector.Shadow, error) {
	return &shadowOf{memorySink: newMemory().sink(), of: s.m}, nil
}

// Swap implements projector.Shadow.
func (s *shadowOf) Swap(context.Context) error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.docs, s.of.owner, s.of.sources = s.m.docs, s.m.owner, s.m.sources
	s.m, s.swapped = s.of, true
	return nil
}

// Drop implements projector.Shadow.
func (s *shadowOf) Drop(context.Context) error { return nil }

// live are the documents that a reader sees, "key=doc", sorted.
func (m *memory) live() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, key := range slices.Sorted(maps.Keys(m.docs)) {
		if d := m.docs[key]; !d.Deleted {
			out = append(out, key+"="+d.Doc)
		}
	}
	return strings.Join(out, " ")
}

// position is that of the one source.
func (m *memory) position() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sources {
		return s.seq
	}
	return 0
}

func (m *memory) want(t *testing.T, want string) {
	t.Helper()
	if got := m.live(); got != want {
		t.Errorf("the sink holds %q, want %q", got, want)
	}
}

// written is how many changes each batch had.
func (s *memorySink) written() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.batches)
}
