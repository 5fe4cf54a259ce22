package mongosink_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// newest is the checkpoint of an event, to the nanosecond.
func newest(seq uint64, id string) jetbus.Checkpoint {
	return jetbus.Checkpoint{Seq: seq, ID: id, Stored: created.Add(time.Duration(seq) * time.Nanosecond)}
}

// Every kind of sink keeps the newest event that it was given, for all replicas.
func TestSinkKeepsNewestEvent(t *testing.T) {
	every := exclusive()
	every.Every = true
	for name, c := range map[string]struct {
		source projector.Source
		sink   func(r *rig) projector.Sink
	}{
		"shared":    {source(), func(r *rig) projector.Sink { return r.sink(mongosink.Options{}) }},
		"exclusive": {exclusive(), func(r *rig) projector.Sink { return r.sink(mongosink.Options{}) }},
		"hard":      {exclusive(), func(r *rig) projector.Sink { return r.sink(mongosink.Options{HardDelete: true}) }},
		"transaction": {every, func(r *rig) projector.Sink {
			s, err := mongosink.NewTransaction(r.db, mongosink.TransactionOptions{
				Collections: []string{"counts"}, Timeout: patience,
				Apply: func(context.Context, projector.Change) error { return nil },
			})
			if err != nil {
				r.Fatal(err)
			}
			return s
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			open := func() (projector.Sink, jetbus.Checkpoint) {
				s := c.sink(r)
				at, err := s.Open(t.Context(), c.source)
				if err != nil {
					t.Fatal(err)
				}
				return s, at.Last
			}
			write := func(s projector.Sink, seq uint64, id string) {
				b := projector.Batch{Changes: []projector.Change{put("a", seq, `{}`)}, UpTo: seq, Last: newest(seq, id)}
				if _, err := s.Write(t.Context(), b); err != nil {
					t.Fatal(err)
				}
			}
			s, last := open()
			if last != (jetbus.Checkpoint{}) {
				t.Errorf("an empty sink has %v", last)
			}
			write(s, 5, "five")
			_, last = open()
			if last != newest(5, "five") {
				t.Errorf("got %v, want %v", last, newest(5, "five"))
			}
			write(s, 9, "nine")
			if _, last = open(); last != newest(9, "nine") {
				t.Errorf("got %v, want %v", last, newest(9, "nine"))
			}
		})
	}
}

// A replica does not replace the newest event with one that is older.
func TestSinkKeepsNewestEventOfAnotherReplica(t *testing.T) {
	r := newRig(t)
	one, two := r.open(mongosink.Options{}, source()), r.open(mongosink.Options{}, source())
	for _, w := range []struct {
		sink *mongosink.Sink
		seq  uint64
		id   string
		want jetbus.Checkpoint
	}{
		{one, 8, "eight", newest(8, "eight")},
		{two, 6, "six", newest(8, "eight")},
		{two, 9, "nine", newest(9, "nine")},
		{one, 8, "another", newest(9, "nine")},
	} {
		_, err := w.sink.Write(t.Context(), projector.Batch{Changes: []projector.Change{put("a", w.seq, `{}`)}, Last: newest(w.seq, w.id)})
		if err != nil {
			t.Fatal(err)
		}
		at, err := w.sink.Position(t.Context(), source())
		if err != nil || at.Last != w.want {
			t.Errorf("after %s: the newest event is %v, want %v (%v)", w.id, at.Last, w.want, err)
		}
	}
}
