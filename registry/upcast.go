package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"

	"github.com/seed-63e9a637/jetbus"
)

// Upcaster turns an event that follows one version of its topic's schema into one
// that follows the next. [Edit], [UpcasterFunc] and what [UpcastPayload] and
// [UpcastJSON] return are upcasters.
type Upcaster interface {
	// Upcast returns the event in its new form. The event is the upcaster's own copy.
	// What it returns as Topic, ID, Seq and Partition does not count: they stay. So do
	// the headers that name the version. An error, or a panic, makes the event a dead
	// letter, unless the error steers it elsewhere (jetbus.RetryIn with a delay,
	// jetbus.Snooze, jetbus.Drop), or ctx has ended. It is called by several goroutines
	// at once.
	Upcast(ctx context.Context, e jetbus.Event) (jetbus.Event, error)
}

// UpcasterFunc is a function that is an [Upcaster].
type UpcasterFunc func(ctx context.Context, e jetbus.Event) (jetbus.Event, error)

// Upcast calls f.
func (f UpcasterFunc) Upcast(ctx context.Context, e jetbus.Event) (jetbus.Event, error) {
	return f(ctx, e)
}

// UpcastPayload makes an upcaster of a function that changes the payload alone.
func UpcastPayload(f func(ctx context.Context, payload []byte) ([]byte, error)) Upcaster {
	return UpcasterFunc(func(ctx context.Context, e jetbus.Event) (_ jetbus.Event, err error) {
		e.Payload, err = f(ctx, e.Payload)
		return e, err
	})
}

// UpcastJSON makes an upcaster of a function between the Go types of two versions,
// as encoding/json reads and writes them.
func UpcastJSON[Old, New any](f func(ctx context.Context, old Old) (New, error)) Upcaster {
	return UpcastPayload(func(ctx context.Context, payload []byte) ([]byte, error) {
		var before Old
		if err := json.Unmarshal(payload, &before); err != nil {
			return nil, err
		}
		after, err := f(ctx, before)
		if err != nil {
			return nil, err
		}
		return json.Marshal(after)
	})
}

// Upcasters are upcasters by topic and by the version that they turn into the
// next: Upcasters{"orders.created": {1: a, 2: b}} leads from version 1 to 3. They
// must not be changed while they are in use. Nil: there are none.
type Upcasters map[string]map[int]Upcaster

// Valid reports a topic that is none, a version below 1, an upcaster that is nil,
// or an Edit that is not valid. The error wraps jetbus.ErrInvalidTopic or
// jetbus.ErrInvalidOption.
func (u Upcasters) Valid() error {
	for _, topic := range slices.Sorted(maps.Keys(u)) {
		if err := jetbus.ValidTopic(topic); err != nil {
			return fmt.Errorf("upcasters: %w", err)
		}
		for _, from := range slices.Sorted(maps.Keys(u[topic])) {
			var err error
			switch up := u[topic][from].(type) {
			case nil:
				err = fmt.Errorf("%w: it is nil", jetbus.ErrInvalidOption)
			case Edit:
				err = up.Valid()
			}
			if from < 1 {
				err = fmt.Errorf("%w: versions begin with 1", jetbus.ErrInvalidOption)
			}
			if err != nil {
				return fmt.Errorf("upcaster of %s from version %d: %w", topic, from, err)
			}
		}
	}
	return nil
}

// ParseUpcasters reads edits from JSON: an object of topics, each an object with an
// edit for each version that is turned into the next.
//
//	{"heartbeat.received": {"1": {"rename": {"mem_mb": "mem_mib"}}}}
//
// Members that an edit does not have are refused. The error wraps
// jetbus.ErrInvalidTopic or jetbus.ErrInvalidOption.
func ParseUpcasters(text []byte) (Upcasters, error) {
	var edits map[string]map[int]Edit
	if err := decodeStrictly(text, &edits); err != nil {
		return nil, fmt.Errorf("parse upcasters: %w: %w", jetbus.ErrInvalidOption, err)
	}
	out := make(Upcasters, len(edits))
	for topic, steps := range edits {
		out[topic] = make(map[int]Upcaster, len(steps))
		for from, edit := range steps {
			out[topic][from] = edit
		}
	}
	if err := out.Valid(); err != nil {
		return nil, fmt.Errorf("parse upcasters: %w", err)
	}
	return out, nil
}

// UpcastError says that an event could not be brought from one version of its
// schema to the next. It matches [jetbus.ErrSchema].
type UpcastError struct {
	Topic    string
	From, To int   // the hop
	Err      error // what is missing, what the upcaster returned, or a jetbus.PanicError
}

// Error names the hop and the reason.
func (e *UpcastError) Error() string {
	return fmt.Sprintf("upcast %s from version %d to %d: %v", e.Topic, e.From, e.To, e.Err)
}

// Unwrap returns the reason.
func (e *UpcastError) Unwrap() error { return e.Err }

// Is reports whether target is jetbus.ErrSchema.
func (e *UpcastError) Is(target error) bool { return target == jetbus.ErrSchema }

// upcast runs an upcaster on a copy of the event, and makes an error of its panic.
func upcast(ctx context.Context, up Upcaster, e jetbus.Event) (out jetbus.Event, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &jetbus.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	own := e
	own.Payload, own.Headers = slices.Clone(e.Payload), maps.Clone(e.Headers)
	own.CausedBy, own.Tags = slices.Clone(e.CausedBy), slices.Clone(e.Tags)
	if out, err = up.Upcast(ctx, own); err != nil {
		return e, err
	}
	out.Topic, out.ID, out.Seq, out.Partition, out.Stored = e.Topic, e.ID, e.Seq, e.Partition, e.Stored
	return out, out.Validate()
}

// steers reports whether an upcaster's error says itself what is to become of the
// event, or says nothing of it since the context is over.
func steers(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	d := jetbus.DispositionOf(err)
	return d.Action != jetbus.ActionRetry || d.Delay > 0
}

// errNoHop: the reason of an UpcastError for a hop without an upcaster.
var errNoHop = errors.New("there is no upcaster, and it is not proved that one is not needed")
