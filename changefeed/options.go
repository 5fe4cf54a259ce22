package changefeed

import (
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
)

// FullDocument says which document an update event carries.
type FullDocument string

// The documents of an update.
const (
	UpdateLookup  FullDocument = "updateLookup"  // as it is when MongoDB gets to the event; the default
	WhenAvailable FullDocument = "whenAvailable" // as it was after the change, where there is an image of it
	Required      FullDocument = "required"      // the same, and the feed ends with ErrNoImage where there is none
	NoDocument    FullDocument = "default"       // none: the payload is the update description
)

// Before says whether events carry the document before the change, in Change.Before.
type Before string

// The documents before a change.
const (
	BeforeOff           Before = "off" // the default
	BeforeWhenAvailable Before = "whenAvailable"
	BeforeRequired      Before = "required" // the feed ends with ErrNoImage where there is none
)

// Policy says what the feed does about something that it cannot publish as it is.
type Policy string

// The policies. Which of them an option takes is said there.
const (
	Fail       Policy = "fail"     // the feed ends with an error
	Resync     Policy = "resync"   // a gap event, and then a copy of all documents
	Latest     Policy = "latest"   // a gap event, and then what changes from now on
	Continue   Policy = "continue" // the feed goes on
	DeadLetter Policy = "dlq"      // a dead letter of the topic; the feed goes on
	Skip       Policy = "skip"     // nothing; it is counted and logged
	KeyOnly    Policy = "key"      // an event with the document's key for a payload, and HeaderOmitted
)

// Format is how documents become payloads.
type Format string

// The formats.
const (
	Relaxed   Format = "relaxed"   // extended JSON, numbers and dates readable; the default
	Canonical Format = "canonical" // extended JSON that keeps every type
	BSON      Format = "bson"      // the bytes, with content type application/bson
)

// StartPoint is where a feed begins that has no position yet. The zero value is FromLatest.
type StartPoint struct {
	mode  string // "", startTime, startToken, startCopy
	at    time.Time
	token Token
}

const (
	startTime  = "timestamp"
	startToken = "token"
	startCopy  = "copy"
)

// FromLatest begins with the changes from now on.
func FromLatest() StartPoint { return StartPoint{} }

// FromTimestamp begins with the changes of that second, which MongoDB must still have.
// A time to come is waited for.
func FromTimestamp(t time.Time) StartPoint {
	return StartPoint{mode: startTime, at: t}
}

// FromToken begins behind a token of the same collection. One of another collection
// stands for its time: the feed begins with the changes behind it. One that MongoDB has
// not reached, as of another deployment, is treated as OnHistoryLost says.
func FromToken(t Token) StartPoint {
	return StartPoint{mode: startToken, token: t}
}

// FromCopy publishes all documents there are, and every change from the moment the
// copy began: nothing is missed between the two.
func FromCopy() StartPoint { return StartPoint{mode: startCopy} }

// Options configures a feed. The zero value of each field selects its default; Name, Database
// and Topic have none.
type Options struct {
	// Name is the feed's identity: it names its lock, its position and the IDs of its events. 1
	// to 64 letters, digits, '-' and '_'.
	Name string
	// Database and Collection are what the feed watches. Without Collection it watches the whole
	// database; the keys of events then begin with the collection's name, in which '%' is "%25"
	// and '/' is "%2F", and a slash. The collection need not exist yet.
	Database, Collection string
	// Topic is the topic to which the feed publishes. No other program may publish to it. If it
	// does not exist, it is declared with its own stream and without an age limit.
	Topic string
	// Mode defaults to Auto.
	Mode Mode
	// FullDocument defaults to UpdateLookup.
	FullDocument FullDocument
	// Before defaults to BeforeOff.
	Before Before
	// Expanded adds the events of indexes and collections (MongoDB 6.0), and the header
	// HeaderCollectionUUID.
	Expanded bool
	// Pipeline selects changes on the server. It may only have $match stages about operationType
	// and ns, because a stream that depends on the document cannot be resumed. Invalidate events
	// are always read and published, because the change stream ends with them. Defaults to none.
	Pipeline []bson.D
	// Filter selects changes further, in Go. It must be quick. Defaults to all changes.
	Filter func(*Change) bool
	// Map may change the event of a change: payload, key, headers, tags. OnPoison applies to an
	// error or a panic. Defaults to none.
	Map func(*Change, *jetbus.Event) error
	// Format defaults to Relaxed.
	Format Format
	// Start is where a feed without a position begins. FromCopy also applies if the topic was
	// deleted and created again, or was restored to the state before its first event. Defaults to
	// FromLatest.
	Start StartPoint
	// OnHistoryLost is Fail (the default), Resync or Latest. It also applies if the topic no
	// longer has published events and the feed cannot publish them again. There are two such
	// cases. The topic was deleted and created again, or was restored to the state before its
	// first event, and Start is not FromCopy. Or an event was in flight while the broker was
	// restored, and was stored although events before it are missing.
	OnHistoryLost Policy
	// OnInvalidate decides about a drop or rename. With Continue (the default), the feed waits
	// for a collection with that name to be created again. With Fail it ends. With Resync it
	// publishes a gap event, and then a copy of all documents of the collection that has the name
	// then: MongoDB reports no changes for documents that a rename brings in, such as the rename
	// of a rebuilt projection. If a whole database is watched, Resync copies it again after each
	// rename in it.
	OnInvalidate Policy
	// OnOversize applies to events that are larger than the broker accepts. It is Fail (the
	// default), DeadLetter, KeyOnly or Skip.
	OnOversize Policy
	// OnPoison applies to changes that Map or the topic's schema refuses. It is DeadLetter (the
	// default), Fail or Skip.
	OnPoison Policy
	// OnMissing applies to updates of documents that no longer exist when MongoDB looks them up.
	// It is KeyOnly (the default) or Skip. The event of their deletion follows.
	OnMissing Policy
	// AllowLoop lets the feed publish documents that a projection of its own topic wrote,
	// or of another topic of the same stream.
	AllowLoop bool
	// TokenStore holds the position while nothing is published, and decides between instances in
	// modes Atomic and Serial. Defaults to StoreInKeys of the bus.
	TokenStore TokenStore
	// ProgressInterval is the minimum time between two saves of the position. Defaults to 10
	// seconds.
	ProgressInterval time.Duration
	// LeaseTTL is how long the feed pauses if the instance that runs it dies; whole seconds, at
	// least 3. Defaults to 15 seconds.
	LeaseTTL time.Duration
	// MaxInFlight is the maximum number of changes that are read and not published yet. Defaults
	// to 6000.
	MaxInFlight int
	// MaxInFlightBytes is the same limit in bytes, accurate to one change. Defaults to 24 MiB.
	MaxInFlightBytes int
	// MaxAwaitTime is how long MongoDB waits for a change before it replies that there is none.
	// If the client has a Timeout, that must be longer: otherwise it ends each change stream,
	// which is then opened again. Defaults to 1 second.
	MaxAwaitTime time.Duration
	// CopyBatch is the maximum number of documents that a copy reads in one batch. Defaults to
	// 1000.
	CopyBatch int
	// Backoff is the wait after a failure. Defaults to 200 milliseconds up to 30 seconds.
	Backoff jetbus.Backoff
	// ReadyGrace is how long a feed may be reconnecting before it is not ready. Defaults to
	// 10 seconds.
	ReadyGrace time.Duration
	// Log receives errors that no call can return. Defaults to none.
	Log *slog.Logger
}

// Defaults of Options.
const (
	DefaultProgressInterval = 10 * time.Second
	DefaultLeaseTTL         = 15 * time.Second
	DefaultMaxInFlight      = 6000
	DefaultMaxInFlightBytes = 24 << 20
	DefaultMaxAwaitTime     = time.Second
	DefaultCopyBatch        = 1000
	DefaultReadyGrace       = 10 * time.Second

	inFlightShares = 4 // a page that was fetched, one that is gone through, a batch that is filled, one that is published
)

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Normalize returns the options with defaults filled in, apart from TokenStore, or
// an error wrapping [jetbus.ErrInvalidOption] or [jetbus.ErrInvalidTopic].
func (o Options) Normalize() (Options, error) {
	setDefault(&o.Mode, Auto)
	setDefault(&o.FullDocument, UpdateLookup)
	setDefault(&o.Before, BeforeOff)
	setDefault(&o.Format, Relaxed)
	setDefault(&o.OnHistoryLost, Fail)
	setDefault(&o.OnInvalidate, Continue)
	setDefault(&o.OnOversize, Fail)
	setDefault(&o.OnPoison, DeadLetter)
	setDefault(&o.OnMissing, KeyOnly)
	setDefault(&o.ProgressInterval, DefaultProgressInterval)
	setDefault(&o.LeaseTTL, DefaultLeaseTTL)
	setDefault(&o.MaxInFlight, DefaultMaxInFlight)
	setDefault(&o.MaxInFlightBytes, DefaultMaxInFlightBytes)
	setDefault(&o.MaxAwaitTime, DefaultMaxAwaitTime)
	setDefault(&o.CopyBatch, DefaultCopyBatch)
	setDefault(&o.ReadyGrace, DefaultReadyGrace)
	if o.Backoff == (jetbus.Backoff{}) {
		o.Backoff = jetbus.Backoff{Min: 200 * time.Millisecond, Max: 30 * time.Second}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	var err error
	if o.Backoff, err = o.Backoff.Normalize(); err != nil {
		return o, err
	}
	if err := o.validNames(); err != nil {
		return o, err
	}
	if err := o.validChoices(); err != nil {
		return o, err
	}
	return o, o.validLimits()
}

func (o *Options) validNames() error {
	switch {
	case !validName.MatchString(o.Name):
		return fmt.Errorf("%w: Name is %.100q, use 1 to 64 letters, digits, '-' and '_'", jetbus.ErrInvalidOption, o.Name)
	case o.Database == "" || strings.ContainsAny(o.Database, "/\\. \"$\x00") || len(o.Database) > 63:
		return fmt.Errorf("%w: Database is %.100q, which MongoDB does not take", jetbus.ErrInvalidOption, o.Database)
	case slices.Contains([]string{"admin", "local", "config"}, o.Database):
		return fmt.Errorf("%w: Database is %q, which has no change streams", jetbus.ErrInvalidOption, o.Database)
	case strings.ContainsAny(o.Collection, "$\x00") || strings.HasPrefix(o.Collection, "system."):
		return fmt.Errorf("%w: Collection is %.100q, which has no change streams", jetbus.ErrInvalidOption, o.Collection)
	case jetbus.IsDeadLetterTopic(o.Topic):
		return fmt.Errorf("%w: Topic is %s, which holds dead letters", jetbus.ErrInvalidTopic, o.Topic)
	}
	return jetbus.ValidTopic(o.Topic)
}

func (o *Options) validChoices() error {
	for _, c := range []struct {
		field string
		value string
		of    []string
	}{
		{"Mode", string(o.Mode), []string{string(Auto), string(Chain), string(Atomic), string(Serial)}},
		{"FullDocument", string(o.FullDocument), []string{string(UpdateLookup), string(WhenAvailable), string(Required), string(NoDocument)}},
		{"Before", string(o.Before), []string{string(BeforeOff), string(BeforeWhenAvailable), string(BeforeRequired)}},
		{"Format", string(o.Format), []string{string(Relaxed), string(Canonical), string(BSON)}},
		{"OnHistoryLost", string(o.OnHistoryLost), []string{string(Fail), string(Resync), string(Latest)}},
		{"OnInvalidate", string(o.OnInvalidate), []string{string(Continue), string(Fail), string(Resync)}},
		{"OnOversize", string(o.OnOversize), []string{string(Fail), string(DeadLetter), string(KeyOnly), string(Skip)}},
		{"OnPoison", string(o.OnPoison), []string{string(DeadLetter), string(Fail), string(Skip)}},
		{"OnMissing", string(o.OnMissing), []string{string(KeyOnly), string(Skip)}},
	} {
		if !slices.Contains(c.of, c.value) {
			return fmt.Errorf("%w: %s is %q, use one of %q", jetbus.ErrInvalidOption, c.field, c.value, c.of)
		}
	}
	switch {
	case o.Start.mode == startTime && o.Start.at.Unix() <= 0:
		return fmt.Errorf("%w: Start is the time %v", jetbus.ErrInvalidOption, o.Start.at)
	case o.Start.mode == startToken:
		if _, err := ParseToken(string(o.Start.token)); err != nil {
			return err
		}
	}
	return validPipeline(o.Pipeline)
}

func (o *Options) validLimits() error {
	for _, c := range []struct {
		field string
		value time.Duration
		least time.Duration
	}{
		{"ProgressInterval", o.ProgressInterval, 10 * time.Millisecond},
		{"MaxAwaitTime", o.MaxAwaitTime, time.Millisecond},
		{"ReadyGrace", o.ReadyGrace, time.Millisecond},
		{"LeaseTTL", o.LeaseTTL, 3 * time.Second},
	} {
		if c.value < c.least {
			return fmt.Errorf("%w: %s is %v, use at least %v", jetbus.ErrInvalidOption, c.field, c.value, c.least)
		}
	}
	switch {
	case o.LeaseTTL%time.Second != 0:
		return fmt.Errorf("%w: LeaseTTL is %v, use whole seconds", jetbus.ErrInvalidOption, o.LeaseTTL)
	case o.MaxInFlight < inFlightShares:
		return fmt.Errorf("%w: MaxInFlight is %d, use at least %d", jetbus.ErrInvalidOption, o.MaxInFlight, inFlightShares)
	case o.MaxInFlightBytes < inFlightShares:
		return fmt.Errorf("%w: MaxInFlightBytes is %d", jetbus.ErrInvalidOption, o.MaxInFlightBytes)
	case o.CopyBatch < 1:
		return fmt.Errorf("%w: CopyBatch is %d, use 1 or more", jetbus.ErrInvalidOption, o.CopyBatch)
	}
	return nil
}

// validPipeline takes $match about the kind and the place of a change. A stage that
// depends on more than the change itself hides the change of a stored token, from
// which the stream could not be resumed then.
func validPipeline(stages []bson.D) error {
	for i, stage := range stages {
		if len(stage) != 1 || stage[0].Key != "$match" {
			return fmt.Errorf("%w: Pipeline stage %d is no $match", jetbus.ErrInvalidOption, i)
		}
		match, ok := stage[0].Value.(bson.D)
		if !ok {
			return fmt.Errorf("%w: Pipeline stage %d: $match is a %T, use a bson.D", jetbus.ErrInvalidOption, i, stage[0].Value)
		}
		if err := validMatch(match); err != nil {
			return fmt.Errorf("stage %d of Pipeline: %w", i, err)
		}
	}
	return nil
}

func validMatch(match bson.D) error {
	for _, e := range match {
		switch e.Key {
		case "operationType", "ns", "ns.db", "ns.coll", "to", "to.db", "to.coll":
		case "$and", "$or", "$nor":
			list, ok := e.Value.(bson.A)
			if !ok {
				return fmt.Errorf("%w: %s is a %T, use a bson.A", jetbus.ErrInvalidOption, e.Key, e.Value)
			}
			for _, item := range list {
				d, ok := item.(bson.D)
				if !ok {
					return fmt.Errorf("%w: %s holds a %T, use bson.D", jetbus.ErrInvalidOption, e.Key, item)
				}
				if err := validMatch(d); err != nil {
					return err
				}
			}
		default:
			return fmt.Errorf("%w: $match on %s: only operationType and ns can be matched on the server; use Filter for the rest", jetbus.ErrInvalidOption, e.Key)
		}
	}
	return nil
}
