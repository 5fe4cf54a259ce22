package mongosink

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
)

// Defaults and bounds of Options.
const (
	// DefaultTombstoneTTL is longer than dead letters live, which is 30 days: none that
	// is replayed brings a deleted key back.
	DefaultTombstoneTTL = 31 * 24 * time.Hour
	// DefaultTimeout is how long a call waits for the server.
	DefaultTimeout = 30 * time.Second

	forever       = -1
	maxCollection = 160 // bytes; MongoDB allows 255 for database, collection and what a rebuild adds
)

// Options configure a [Sink].
type Options struct {
	// Collection is the collection that the sink fills. It is created where it does
	// not exist. Required.
	Collection string
	// Indexes are created where they do not exist. The sink drops none.
	Indexes []Index
	// Merge sets the fields of a state and keeps the others that the document has,
	// such as those that another service maintains. A field that a newer state no
	// longer has stays. A tombstone and a rebuild, which makes new documents, remove
	// the fields of others too. Events that carry only what changed need Options.Every
	// of the projection as well. Default false: the state replaces the document.
	Merge bool
	// TombstoneTTL is how long the document of a deleted key stays. An event that is
	// delivered later than that brings the key back. Default 31 days, -1 for ever.
	TombstoneTTL time.Duration
	// HardDelete removes the document of a deleted key at once. The projection must
	// be exclusive, without VersionOf, and the server a replica set: each batch is a
	// transaction. Default false.
	HardDelete bool
	// Timeout is how long Open and Write wait for the server. Default 30 seconds.
	Timeout time.Duration
}

// Index is an index of the collection.
type Index struct {
	// Name is its name. Default: the fields and their directions, as MongoDB has it.
	Name string
	// Keys are the fields in their order, with 1, -1 or "2dsphere". A document that such an
	// index refuses becomes a dead letter; what other kinds refuse cannot be told from what
	// passes, so make no such index on the collection.
	Keys bson.D
	// Unique refuses a document that has the same values as another; its event becomes
	// a dead letter. The index is sparse as well, unless it is partial: documents of
	// deleted keys have no fields, and would be duplicates of each other.
	Unique bool
	// Sparse leaves out the documents that have none of the fields.
	Sparse bool
	// Partial is a filter: the index has only the documents that it matches.
	Partial bson.D
}

// normalize returns the options with defaults filled in, or an error that names
// the field.
func (o Options) normalize() (Options, error) {
	bad := func(format string, args ...any) (Options, error) {
		return o, fmt.Errorf("%w: "+format, append([]any{jetbus.ErrInvalidOption}, args...)...)
	}
	if err := validCollection(o.Collection); err != nil {
		return o, err
	}
	switch {
	case o.HardDelete && o.TombstoneTTL != 0:
		return bad("TombstoneTTL is %v, but HardDelete keeps no tombstones", o.TombstoneTTL)
	case o.TombstoneTTL < 0 && o.TombstoneTTL != forever:
		return bad("TombstoneTTL is %v, use -1 for ever", o.TombstoneTTL)
	case o.Timeout < 0:
		return bad("Timeout is negative")
	}
	o.TombstoneTTL = cmp.Or(o.TombstoneTTL, DefaultTombstoneTTL)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	var err error
	o.Indexes, err = normalizeIndexes(o.Indexes)
	return o, err
}

// validCollection refuses names that no collection of a projection can have.
func validCollection(name string) error {
	bad := func(why string) error {
		return fmt.Errorf("%w: Collection is %q: %s", jetbus.ErrInvalidOption, name, why)
	}
	switch {
	case name == "":
		return fmt.Errorf("%w: Collection is required", jetbus.ErrInvalidOption)
	case !utf8.ValidString(name) || strings.ContainsAny(name, "$\x00"):
		return bad("a name has no $, no NUL and is UTF-8")
	case strings.HasPrefix(name, "system."), strings.HasPrefix(name, "."), strings.HasSuffix(name, "."):
		return bad("a name neither begins with system. nor begins or ends with a dot")
	case name == bookCollection:
		return bad("that is where projections are recorded")
	case strings.Contains(name, shadowInfix):
		return bad("names with " + shadowInfix + " are of rebuilds")
	case len(name) > maxCollection:
		return bad(fmt.Sprintf("it has %d bytes, use at most %d", len(name), maxCollection))
	}
	return nil
}

func normalizeIndexes(indexes []Index) ([]Index, error) {
	out := make([]Index, len(indexes))
	names := map[string]bool{ttlIndex: true}
	for i, ix := range indexes {
		if len(ix.Keys) == 0 {
			return nil, fmt.Errorf("%w: index %d has no Keys", jetbus.ErrInvalidOption, i+1)
		}
		if ix.Name == "" {
			ix.Name = indexName(ix.Keys)
		}
		for _, k := range ix.Keys {
			if kind, ok := k.Value.(string); ok && kind != "2dsphere" {
				return nil, fmt.Errorf("%w: index %s is of the kind %q, use 1, -1 or \"2dsphere\": documents that other kinds refuse would hold up the projection", jetbus.ErrInvalidOption, ix.Name, kind)
			}
		}
		switch {
		case ix.Sparse && ix.Partial != nil:
			return nil, fmt.Errorf("%w: index %s is Sparse and Partial: MongoDB allows one of them", jetbus.ErrInvalidOption, ix.Name)
		case names[ix.Name]:
			return nil, fmt.Errorf("%w: there are two indexes with the name %s", jetbus.ErrInvalidOption, ix.Name)
		}
		names[ix.Name] = true
		ix.Sparse = ix.Sparse || ix.Unique && ix.Partial == nil
		out[i] = ix
	}
	return out, nil
}

// indexName is the name that MongoDB gives an index.
func indexName(keys bson.D) string {
	var b strings.Builder
	for i, k := range keys {
		if i > 0 {
			b.WriteByte('_')
		}
		fmt.Fprintf(&b, "%s_%v", k.Key, k.Value)
	}
	return b.String()
}
