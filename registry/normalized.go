package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// NormalizedOptions say how events are brought to one version. The zero value is
// usable where all versions of a topic are compatible.
type NormalizedOptions struct {
	// Upcasters lead from one version to the next. They must not be changed any more.
	Upcasters Upcasters
	// Versions are the versions that events are brought to, by topic: those that the
	// program was written for. Pin them in each release, as Bind does. Defaults to the
	// latest one of a topic at that moment: whoever registers another one then changes
	// what this program gets while it runs. Under a forward level events of the versions
	// before it, stored or still to come, need an upcaster then. While a version that is named
	// here is erased, events of its topic are put off.
	Versions map[string]int
	// NewerDelay is how long an event of a newer version that cannot be read is put
	// off, so that a newer member of the group takes it; and one for which the
	// registry could not be asked. Defaults to 1 second.
	NewerDelay time.Duration
}

// DefaultNewerDelay is that of NormalizedOptions.
const DefaultNewerDelay = time.Second

func (o NormalizedOptions) valid() error {
	if err := o.Upcasters.Valid(); err != nil {
		return err
	}
	for topic, n := range o.Versions {
		if n < 1 {
			return fmt.Errorf("%w: Versions has %d for %s, use 1 or more", jetbus.ErrInvalidOption, n, topic)
		}
	}
	if o.NewerDelay < 0 {
		return fmt.Errorf("%w: NewerDelay is negative", jetbus.ErrInvalidOption)
	}
	return nil
}

// Normalizer brings events to the version that a program was written for. It is
// what [Normalized] uses, for events that come another way: by Read, Scan or
// LatestByKey. It is safe for concurrent use.
type Normalizer struct {
	r     *Registry
	o     NormalizedOptions
	wrong error    // the options are not valid
	hops  sync.Map // hopKey to verdict
}

type hopKey struct {
	topic         string
	from, to      int
	written, read schema.Model
}

// verdict is that on a hop between two schemas. Versions do not change, but in a registry
// whose bucket was deleted and made anew.
type verdict struct {
	before, after *schema.Schema
	proved        bool
}

// NewNormalizer returns a normalizer. Options that are not valid
// (jetbus.ErrInvalidOption) are an error of each of its calls.
func NewNormalizer(r *Registry, o NormalizedOptions) *Normalizer {
	n := &Normalizer{r: r, o: o, wrong: o.valid()}
	if n.o.NewerDelay == 0 {
		n.o.NewerDelay = DefaultNewerDelay
	}
	n.o.Versions = maps.Clone(o.Versions)
	return n
}

// ErrNewer says that an event follows a newer version of its schema than this
// program was written for, and cannot be read as one of that.
var ErrNewer = errors.New("the event is of a newer version")

// Normalize returns the event in the version that it is to have, upcast hop by hop
// and then validated:
//
//   - An event of an older version goes through the upcaster of each hop. A hop
//     without one is passed over where it is proved that what is valid before it is
//     valid after it, under the topic's model. So are, in one, hops to and from versions
//     that were deleted. Where it is proved of what is declared, and the version before it
//     was registered under the strict model, the event itself must be valid after it.
//   - An event that states no version is of Settings.AssumeVersion. Where that is
//     not set it must be valid as it is.
//   - An event of a newer version is returned as it is where it can be read as one
//     of the wanted version.
//   - What states another version then has that in its headers and, in
//     [HeaderUpcastedFrom], the one it was stored under.
//   - Dead letters, tombstones and events of topics without a schema are returned as
//     they are.
//
// The event that is passed is not changed. Errors that match jetbus.ErrSchema are
// final: a SchemaError, an UpcastError, a version that does not exist or is not
// stated. [ErrNewer] is for another program, or a later release. An upcaster's error
// may steer (jetbus.DispositionOf). Others are those of the registry or ctx: try again.
func (n *Normalizer) Normalize(ctx context.Context, e jetbus.Event) (jetbus.Event, error) {
	if n.wrong != nil {
		return e, fmt.Errorf("normalize: %w", n.wrong)
	}
	if isUnjudged(&e) {
		return e, nil
	}
	t, err := n.target(ctx, e.Topic)
	if err != nil || t.schema == nil {
		return e, err
	}
	stated, err := statedVersion(&e)
	if err != nil {
		return e, err
	}
	if err := judgeable(&e, t.version); err != nil {
		return e, err
	}
	from := stated
	if from == 0 {
		from = t.settings.AssumeVersion
	}
	if from == 0 {
		return n.unstated(e, t)
	}
	if from > t.version {
		if t, err = n.learn(ctx, from, t); err != nil && stated == 0 {
			return e, fmt.Errorf("AssumeVersion of topic %s is %d: %w", e.Topic, from, err)
		} else if err != nil {
			return e, err
		}
	}
	if from > t.version {
		return n.newer(e, from, t)
	}
	way, err := n.way(ctx, from, t)
	if err != nil {
		return e, err
	}
	out := e
	for v := from; v < t.version; {
		if out, v, err = n.hop(ctx, out, v, way); err != nil {
			return e, err
		}
	}
	if err := judgment(e.Topic, t.version, validateRead(t.schema, t.settings.Model, out.Payload)); err != nil {
		return e, err
	}
	if from < t.version {
		out.Headers = maps.Clone(out.Headers)
		if out.Headers == nil {
			out.Headers = map[string]string{}
		}
		out.Headers[HeaderUpcastedFrom] = strconv.Itoa(from)
	}
	if from < t.version || stated == 0 {
		stamp(&out, t.version)
	}
	return out, nil
}

// target is what events of a topic are brought to.
type target struct {
	topic    string
	version  int
	schema   *schema.Schema // nil: the topic has no schema
	settings Settings
}

// way is how an event of an older version comes to its target.
type way struct {
	target
	written schema.Model // what the event was written in, whatever the versions between are of
}

func (n *Normalizer) way(ctx context.Context, from int, t target) (way, error) {
	w := way{t, t.settings.Model}
	if from == t.version {
		return w, nil
	}
	v, err := n.r.Version(ctx, t.topic, from)
	if errors.Is(err, ErrErased) || errors.Is(err, ErrNoVersion) { // the hop says so
		w.written, err = schema.Strict, nil
	} else if err == nil {
		w.written = v.writtenIn(w.written)
	}
	return w, err
}

func (n *Normalizer) target(ctx context.Context, topic string) (target, error) {
	return wanted(ctx, n.r, topic, n.o.Versions[topic])
}

// wanted returns a version of a topic's schema, the latest live one where version
// is 0. The schema is nil where the topic has none.
func wanted(ctx context.Context, r *Registry, topic string, version int) (target, error) {
	current, err := r.Current(topic)
	switch {
	case err == nil && (version == 0 || version == current.Version.Number):
		return target{topic, current.Version.Number, current.Schema, current.Settings}, nil
	case err != nil && !errors.Is(err, ErrNoSchema):
		return target{}, err
	case version == 0:
		return target{topic: topic}, nil
	}
	t := target{topic: topic, version: version}
	if t.schema, err = r.Compiled(ctx, topic, version); err != nil {
		return target{}, err
	}
	t.settings, err = r.Settings(ctx, topic)
	return t, err
}

// unstated judges an event that states no version, where none is assumed.
func (n *Normalizer) unstated(e jetbus.Event, t target) (jetbus.Event, error) {
	if err := judgment(e.Topic, t.version, validateRead(t.schema, t.settings.Model, e.Payload)); err != nil {
		return e, fmt.Errorf("the event states no version: set AssumeVersion of topic %s if it is of an older one: %w", e.Topic, err)
	}
	stamp(&e, t.version)
	return e, nil
}

// newer judges an event of a newer version than t.
func (n *Normalizer) newer(e jetbus.Event, from int, t target) (jetbus.Event, error) {
	err := judgment(e.Topic, t.version, validateRead(t.schema, t.settings.Model, e.Payload))
	if err == nil {
		return e, nil
	}
	if n.o.Versions[e.Topic] == 0 { // there is no later release to wait for: it is newer than the latest since that was deleted
		return e, fmt.Errorf("the event states version %d, which is deleted, and cannot be read as an older one: %w", from, err)
	}
	return e, fmt.Errorf("%w: it states version %d, this program reads version %d: %v", ErrNewer, from, t.version, err) //nolint:errorlint // not final, as a SchemaError is
}

// learn looks up a version that is newer than what an event is to be brought to.
// It becomes the target where that is the latest version: this process had not
// heard of it.
func (n *Normalizer) learn(ctx context.Context, from int, t target) (target, error) {
	v, err := n.r.Version(ctx, t.topic, from)
	switch {
	case errors.Is(err, ErrNoVersion), errors.Is(err, ErrNoSchema):
		return t, fmt.Errorf("%w: it is of a version that does not exist: %w", jetbus.ErrSchema, err)
	case err != nil || !v.Live() || n.o.Versions[t.topic] != 0:
		return t, err
	}
	return wanted(ctx, n.r, t.topic, from)
}

// hop brings an event from one version to the next, or to the one behind versions that were
// deleted, which nobody is to follow: a new version is compared with the latest live one, and
// need not follow from a mistake that was taken back.
func (n *Normalizer) hop(ctx context.Context, e jetbus.Event, from int, t way) (out jetbus.Event, to int, err error) {
	fail := func(to int, err error) error { return &UpcastError{Topic: t.topic, From: from, To: to, Err: err} }
	if up := n.o.Upcasters[t.topic][from]; up != nil {
		out, err := upcast(ctx, up, e)
		if err != nil && !steers(ctx, err) {
			err = fail(from+1, err)
		}
		return out, from + 1, err
	}
	deleted := 0 // the nearest version that is proved and was deleted
	no := errNoHop
	for to = from + 1; ; to++ {
		proved, err := n.passes(ctx, &e, from, to, t)
		if gone := errors.Is(err, ErrErased) || errors.Is(err, ErrNoVersion); gone && to == from+1 {
			no = fmt.Errorf("%w: %w", errNoHop, err)
		} else if err != nil && !gone {
			return e, 0, err
		}
		live, err := n.isFollowed(ctx, to, t.target)
		switch {
		case err != nil:
			return e, 0, err
		case proved && (live || n.o.Upcasters[t.topic][to] != nil): // which leads on from a deleted one
			return e, to, nil
		case proved && deleted == 0:
			deleted = to
		}
		if live && deleted > 0 {
			return e, deleted, nil // the way goes on from there, or ends
		}
		if live {
			return e, 0, fail(to, no)
		}
	}
}

// isFollowed reports whether a version is live, or the one that events are brought to.
func (n *Normalizer) isFollowed(ctx context.Context, version int, t target) (bool, error) {
	if version >= t.version {
		return true, nil
	}
	v, err := n.r.Version(ctx, t.topic, version)
	if errors.Is(err, ErrErased) || errors.Is(err, ErrNoVersion) {
		return false, nil
	}
	return err == nil && v.Live(), err
}

// passes reports whether an event of one version is one of another as it is. That is
// proved of all events; or, for one that was written when the topic was strict, of those
// that have only what their version declares, and then this one is looked at.
func (n *Normalizer) passes(ctx context.Context, e *jetbus.Event, from, to int, t way) (bool, error) {
	read := t.settings.Model
	ok, err := n.proved(ctx, hopKey{t.topic, from, to, t.written, read})
	if ok || err != nil || t.written == read {
		return ok, err
	}
	if ok, err = n.proved(ctx, hopKey{t.topic, from, to, read, read}); !ok {
		return false, err
	}
	after, err := n.r.Compiled(ctx, t.topic, to)
	if err != nil {
		return false, err
	}
	return validateRead(after, read, e.Payload) == nil, nil
}

// proved reports whether it is proved that what is valid for one version is valid
// for another. It compares two versions once.
func (n *Normalizer) proved(ctx context.Context, hop hopKey) (bool, error) {
	before, err := n.r.Compiled(ctx, hop.topic, hop.from)
	if err != nil {
		return false, err
	}
	after, err := n.r.Compiled(ctx, hop.topic, hop.to)
	if err != nil {
		return false, err
	}
	if known, ok := n.hops.Load(hop); ok {
		if v := known.(verdict); v.before == before && v.after == after {
			return v.proved, nil
		}
	}
	ok := schema.CompareModels(before, after, hop.written, hop.read).Result == schema.Proved
	n.hops.Store(hop, verdict{before, after, ok})
	return ok, nil
}
