package registry

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// Conditions, for errors.Is. Besides them, errors of this package wrap
// jetbus.ErrClosed, ErrUnavailable, ErrDenied, ErrInvalidTopic, ErrInvalidOption
// and ErrConflict, and those of package schema for a text that is no schema.
var (
	// ErrNoSchema: the topic has no schema, or none that is not deleted. Or nothing
	// has that id.
	ErrNoSchema = errors.New("no schema")
	// ErrNoVersion: the topic has no such version, or it is deleted where a live one
	// is needed.
	ErrNoVersion = errors.New("no such version of the schema")
	// ErrErased: the version was deleted for good: its number is known, its text is not.
	ErrErased = errors.New("the version was deleted for good")
	// ErrNotDeleted: only a deleted version can be deleted for good.
	ErrNotDeleted = errors.New("not deleted yet: delete it, and then for good")
	// ErrIncompatible: the schema breaks the topic's level; see IncompatibleError.
	ErrIncompatible = errors.New("incompatible schema")
	// ErrReferenced: other versions refer to the one to delete; see ReferencedError.
	ErrReferenced = errors.New("referred to by others")
	// ErrReadOnly: the topic, or the registry, does not take new versions now.
	ErrReadOnly = errors.New("read-only")
	// ErrInvalidLevel: no compatibility level has this name; see Levels.
	ErrInvalidLevel = errors.New("no such compatibility level")
	// ErrInvalidModel: neither strict nor declared.
	ErrInvalidModel = errors.New("no such model: use strict or declared")
	// ErrInvalidMode: neither readwrite nor readonly.
	ErrInvalidMode = errors.New("no such mode: use readwrite or readonly")
	// ErrInvalidReference: a $ref that does not name a version of a schema as
	// schema://<topic>/<n>, or one that is not registered, or is deleted.
	ErrInvalidReference = errors.New("invalid reference")
	// ErrTooLarge: the record of the version exceeds what the bucket takes, or the
	// registry has given its last id, 999,999,999.
	ErrTooLarge = errors.New("too large")
	// ErrContended: others wrote to the topic again and again. Try again later.
	ErrContended = errors.New("too many others write at the same time")
	// ErrInvalidExport: what was to be imported is no export, is cut short, or
	// contradicts itself.
	ErrInvalidExport = errors.New("invalid export")
	// ErrUnreadable: a record in the bucket cannot be read. Something else wrote it,
	// or a newer release of this package.
	ErrUnreadable = errors.New("unreadable record")
)

// IncompatibleError says why a schema is refused. It matches [ErrIncompatible].
type IncompatibleError struct {
	Topic     string
	Level     Level
	Model     schema.Model
	Against   int // the version it was compared with
	Direction Direction
	// Written is the model in which the events are that are to be read, see [Comparison].
	// Zero: that of Model.
	Written schema.Model
	Verdict schema.Verdict // Refuted or Unproved
}

// Error says which rule is broken and how, with a value that shows it where one
// was found. It has several lines.
func (e *IncompatibleError) Error() string {
	model := string(e.Model) + " model"
	if e.Model == schema.Declared && e.Written == schema.Strict {
		of := "the newer version"
		if e.Direction == Backward {
			of = fmt.Sprint("version ", e.Against)
		}
		model += "; the events of " + of + " are from before that, and may have any property"
	}
	return fmt.Sprintf("%s: the schema is incompatible with version %d under level %s (%s): %s",
		e.Topic, e.Against, e.Level, model, e.Verdict.Explain(e.Direction))
}

// Is reports whether target is ErrIncompatible.
func (e *IncompatibleError) Is(target error) bool { return target == ErrIncompatible }

// ReferencedError names who refers to the version to delete. It matches
// [ErrReferenced].
type ReferencedError struct {
	Topic   string
	Version int
	By      []Reference // in the order of topics and versions
}

// Error names the referrers, at most five of them.
func (e *ReferencedError) Error() string {
	const shown = 5
	var names []string
	for _, r := range e.By[:min(shown, len(e.By))] {
		names = append(names, r.String())
	}
	text := fmt.Sprintf("%s version %d is referred to by %s", e.Topic, e.Version, strings.Join(names, ", "))
	if more := len(e.By) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + "; delete those first"
}

// Is reports whether target is ErrReferenced.
func (e *ReferencedError) Is(target error) bool { return target == ErrReferenced }
