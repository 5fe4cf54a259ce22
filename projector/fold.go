package projector

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
)

// refusal is an event that can never become a change of the sink.
type refusal struct {
	event int // index in the batch
	err   error
}

// folded is a batch of events on its way to the sink: of each key the newest event,
// as a change, or with Options.Every all of them.
//
//	f := fold(events, &o)
//	for len(f.changes) > 0 {
//		outcome, err := sink.Write(ctx, Batch{Changes: f.changes}) // again while it fails
//		f.refuse(outcome.Rejected)
//	}
//	// f.refusals are the dead letters; everything else is in the sink.
//
// An event that is refused lets the one before it of its key come forward, so that
// what the sink ends up with does not depend on where a batch begins and ends.
type folded struct {
	changes  []Change  // to be written
	refusals []refusal // so far
	stale    int       // events that a newer one of their key, in the batch, has made superfluous

	o      *Options
	events []prepared
	from   []int32 // of each change, the index in events
}

// prepared is an event whose place in the fold is known.
type prepared struct {
	event   *jetbus.Event
	at      int // index in the batch
	key     string
	version int64
	older   int32 // the one before it of its key; -1: none
}

// fold makes changes of events. They stay the caller's, and must stay as they are
// until the changes are written. o is normalized.
func fold(events []jetbus.Event, o *Options) *folded {
	f := &folded{o: o, events: make([]prepared, 0, len(events))}
	for i := range events {
		p := prepared{event: &events[i], at: i, older: -1}
		if isFeedNote(p.event) && o.KeyOf == nil {
			continue
		}
		if err := p.prepare(o); err != nil {
			f.refusals = append(f.refusals, refusal{event: i, err: err})
			continue
		}
		f.events = append(f.events, p)
	}
	if o.Every {
		slices.SortStableFunc(f.events, func(a, b prepared) int { return cmp.Compare(a.event.Seq, b.event.Seq) })
	} else {
		slices.SortStableFunc(f.events, newer)
	}
	f.changes = make([]Change, 0, len(f.events))
	f.from = make([]int32, 0, len(f.events))
	for _, i := range f.newest() {
		f.change(i)
	}
	return f
}

// isFeedNote reports whether an event only records that a change feed has completed its copy.
// It has no key and changes none. See changefeed.OpCopied.
func isFeedNote(e *jetbus.Event) bool {
	return e.Key == "" && e.Headers["x-mongo-feed"] != "" && e.Headers["x-mongo-op"] == "copied"
}

// newer orders the events of a key: by version, then by sequence.
func newer(a, b prepared) int {
	return cmp.Or(cmp.Compare(a.version, b.version), cmp.Compare(a.event.Seq, b.event.Seq))
}

// newest links the events of each key, which are in order, and returns the last ones.
func (f *folded) newest() []int32 {
	all := make([]int32, 0, len(f.events))
	if f.o.Every {
		for i := range f.events {
			all = append(all, int32(i)) //nolint:gosec // a batch is small
		}
		return all
	}
	last := make(map[string]int32, len(f.events))
	for i := range f.events {
		p := &f.events[i]
		if have, ok := last[p.key]; ok {
			p.older = have
			f.stale++
		}
		last[p.key] = int32(i) //nolint:gosec // a batch is small
	}
	for i := range f.events {
		if last[f.events[i].key] == int32(i) { //nolint:gosec // a batch is small
			all = append(all, int32(i)) //nolint:gosec // a batch is small
		}
	}
	return all
}

// change adds the change of an event, or of the newest one before it of its key
// that is not refused and has a state.
func (f *folded) change(i int32) {
	for ; i >= 0; i = f.events[i].older {
		p := &f.events[i]
		c, err := p.change(f.o)
		if err == nil {
			f.changes = append(f.changes, c)
			f.from = append(f.from, i)
			return
		}
		if !errors.Is(err, errNoState) {
			f.refusals = append(f.refusals, refusal{event: p.at, err: err})
		}
		f.forward(p)
	}
}

// errNoState is returned for an event that does not change the sink.
var errNoState = errors.New("the document was deleted; its delete event follows")

// omitted returns an error if the payload of a change feed's event is not the document. See
// changefeed.HeaderOmitted.
func omitted(e *jetbus.Event) error {
	why := e.Headers["x-mongo-omitted"]
	switch {
	case why == "" || e.Headers["x-mongo-feed"] == "":
		return nil
	case why == "missing":
		return errNoState
	}
	return fmt.Errorf("the change feed published no document (x-mongo-omitted: %s): use Map", why)
}

// forward notes that the event before p is superfluous no more.
func (f *folded) forward(p *prepared) {
	if p.older >= 0 {
		f.stale--
	}
}

// refuse takes what the sink has rejected of f.changes, and leaves there the changes
// to be written next: those that come forward instead, and with Options.Every, or where the
// write failed and one change is given up, all that were not rejected.
func (f *folded) refuse(rejected []Rejection) {
	changes, from := f.changes, f.from
	f.changes, f.from = nil, nil
	again := f.o.Every || slices.ContainsFunc(rejected, isGivenUp)
	next := 0
	for _, r := range rejected {
		if again {
			f.keep(changes[next:r.Index], from[next:r.Index])
		}
		next = r.Index + 1
		p := &f.events[from[r.Index]]
		f.refusals = append(f.refusals, refusal{event: p.at, err: r.Err})
		f.forward(p)
		f.change(p.older)
	}
	if again {
		f.keep(changes[next:], from[next:])
	}
}

// keep leaves changes that the sink need not have written.
func (f *folded) keep(changes []Change, from []int32) {
	f.changes, f.from = append(f.changes, changes...), append(f.from, from...)
}

// prepare finds the key and the version of an event.
func (p *prepared) prepare(o *Options) (err error) {
	p.key = p.event.Key
	if o.KeyOf != nil {
		if p.key, err = guarded(o.KeyOf, *p.event); err != nil {
			return in("KeyOf", err)
		}
	}
	switch {
	case p.key == "":
		return errors.New("the event has no key")
	case !utf8.ValidString(p.key):
		return in("KeyOf", fmt.Errorf("the key %q is no UTF-8", p.key))
	}
	if o.VersionOf != nil {
		if p.version, err = guarded(o.VersionOf, *p.event); err != nil {
			return in("VersionOf", err)
		}
	}
	return nil
}

// change makes the change of a prepared event.
func (p *prepared) change(o *Options) (c Change, err error) {
	c = Change{Key: p.key, Event: *p.event, Version: p.version, Versioned: o.VersionOf != nil}
	c.Deleted = IsTombstone(*p.event)
	if !c.Deleted && o.Tombstone != nil {
		deletes := func(e jetbus.Event) (bool, error) { return o.Tombstone(e), nil }
		if c.Deleted, err = guarded(deletes, *p.event); err != nil {
			return c, in("Tombstone", err)
		}
	}
	if !c.Deleted && o.Map == nil {
		if err := omitted(p.event); err != nil {
			return c, err
		}
	}
	switch {
	case c.Deleted:
	case o.Map != nil:
		if c.Doc, err = guarded(o.Map, *p.event); err != nil {
			return c, in("Map", err)
		}
		if c.Doc == nil {
			return c, in("Map", errors.New("it returned nothing: let Tombstone say what deletes a key"))
		}
	case p.event.Headers[jetbus.HeaderContentType] == "application/bson":
		c.Doc = p.event.Payload
	case !json.Valid(p.event.Payload):
		return c, errors.New("the payload is no JSON")
	default:
		c.Doc = json.RawMessage(p.event.Payload)
	}
	return c, nil
}

// in says which of the options failed.
func in(option string, err error) error { return fmt.Errorf("%s: %w", option, err) }

// guarded calls a function of the options; a panic becomes an error.
func guarded[T any](f func(jetbus.Event) (T, error), e jetbus.Event) (v T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicked{&jetbus.PanicError{Value: r, Stack: debug.Stack()}}
		}
	}()
	return f(e)
}

// panicked is a jetbus.PanicError of a function that is no handler.
type panicked struct{ cause *jetbus.PanicError }

func (p panicked) Error() string { return fmt.Sprintf("panic: %v", p.cause.Value) }
func (p panicked) Unwrap() error { return p.cause }

// deletedMember is the member of a payload that marks a tombstone.
const deletedMember = "_deleted"

// IsTombstone reports whether an event deletes its key in a projection: its payload
// is empty or the JSON value null, or an object whose member "_deleted" is true; or
// it was meant as one ([jetbus.HeaderTombstone]).
func IsTombstone(e jetbus.Event) bool {
	payload := bytes.TrimSpace(e.Payload)
	switch {
	case len(payload) == 0, string(payload) == "null", e.Headers[jetbus.HeaderTombstone] == "1":
		return true
	case payload[0] != '{', !bytes.Contains(payload, []byte(deletedMember)) && !bytes.Contains(payload, []byte(`\u`)):
		return false
	}
	var members map[string]json.RawMessage
	return json.Unmarshal(payload, &members) == nil && string(members[deletedMember]) == "true"
}
