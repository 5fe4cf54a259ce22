package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// Limits of what is kept with a version.
const (
	maxMetadata      = 64
	maxMetadataBytes = 16 << 10
	maxByBytes       = 200
)

// RegisterOptions are what Register is told beyond the schema.
type RegisterOptions struct {
	// Metadata is kept with the version: at most 64 entries of together 16 KiB.
	Metadata map[string]string
	// By is who registers, in at most 200 bytes; the version keeps it. Needed with Force.
	By string
	// Force lets the schema in though it is incompatible, or could not be proved to
	// be compatible. The version then says that By forced it. It changes nothing
	// where the schema is compatible, and no other refusal.
	Force bool
	// DryRun does all but store: the version that is returned is what would be, with
	// the ID 0 where the schema is new to the registry.
	DryRun bool
}

func (o RegisterOptions) valid() error {
	total := 0
	for k, v := range o.Metadata {
		total += len(k) + len(v)
		if k == "" || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("%w: Metadata %.40q: use UTF-8, and names that are not empty", jetbus.ErrInvalidOption, k)
		}
	}
	switch {
	case len(o.Metadata) > maxMetadata || total > maxMetadataBytes:
		return fmt.Errorf("%w: Metadata has %d entries of %d bytes, at most %d of %d are allowed", jetbus.ErrInvalidOption, len(o.Metadata), total, maxMetadata, maxMetadataBytes)
	case len(o.By) > maxByBytes || !utf8.ValidString(o.By) || strings.ContainsFunc(o.By, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("%w: By %.40q: use at most %d bytes of UTF-8 without control characters", jetbus.ErrInvalidOption, o.By, maxByBytes)
	case o.Force && o.By == "":
		return fmt.Errorf("%w: Force without By: say who forces it", jetbus.ErrInvalidOption)
	}
	return nil
}

// registration is one call of Register.
type registration struct {
	RegisterOptions

	topic      string
	text       string
	schema     *schema.Schema
	references []Reference
	nonce      string // by which its version is known to be its own
	judge      *judge
}

// Register stores a schema as the next version of a topic. If a live version has
// the same schema (the same fingerprint) that is returned instead, and nothing is
// stored. Otherwise the schema is compared with the latest live version, or with
// all of them, as the topic's settings say.
//
// The error is an [IncompatibleError] where a comparison is not proved, a
// *schema.CompileError where the text is no schema, or wraps [ErrInvalidReference],
// [ErrReadOnly], [ErrTooLarge], jetbus.ErrInvalidTopic, jetbus.ErrInvalidOption or
// jetbus.ErrUnavailable. No version is stored then, except that an error that says so
// leaves it open; to register again is safe. What a race leaves behind is harmless: an id
// of the schema, or that it was about to refer to others.
func (r *Registry) Register(ctx context.Context, topic, text string, o RegisterOptions) (Version, error) {
	if err := jetbus.ValidTopic(topic); err != nil {
		return Version{}, fmt.Errorf("register: %w", err)
	}
	v, err := r.register(ctx, &registration{RegisterOptions: o, topic: topic, text: text, nonce: jetbus.NewID()})
	if err != nil {
		return Version{}, fmt.Errorf("register %s: %w", topic, err)
	}
	return v, nil
}

func (r *Registry) register(ctx context.Context, g *registration) (v Version, err error) {
	if err := g.valid(); err != nil {
		return v, err
	}
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return v, err
	}
	defer leave()
	ctx, cancel := r.bound(ctx)
	defer cancel()
	if g.schema, g.references, err = r.parse(ctx, g.text); err != nil {
		return v, err
	}
	g.judge = newJudge(g.schema)
	err = r.decide(ctx, func(ctx context.Context, s *snapshot) (err error) {
		v, err = r.attempt(ctx, s, g)
		return err
	})
	return v, err
}

// attempt decides a registration on the cache, and stores it on condition that the
// cache is what the broker has.
func (r *Registry) attempt(ctx context.Context, s *snapshot, g *registration) (Version, error) {
	t := s.topic(g.topic)
	if i := slices.IndexFunc(t.versions, func(e *entry) bool { return e.nonce == g.nonce }); i >= 0 {
		return t.versions[i].Version, nil // stored before, and the answer was lost
	}
	if e := t.equal(g.schema.Fingerprint()); e != nil {
		return e.Version, nil
	}
	rules := s.effective(g.topic)
	if rules.Mode == ReadOnly {
		return Version{}, fmt.Errorf("%w: change its mode first", ErrReadOnly)
	}
	for _, ref := range g.references {
		if e := s.find(ref); e == nil || !e.live() {
			return Version{}, fmt.Errorf("%w: %s is deleted: %w", ErrInvalidReference, ref, ErrNoVersion)
		}
	}
	admission, err := g.admit(ctx, s, rules)
	if err != nil {
		return Version{}, err
	}
	id, _ := s.ids.of(g.schema.Fingerprint())
	v := Version{
		Topic: g.topic, Number: t.next(), ID: id, Fingerprint: g.schema.Fingerprint(), Text: g.text, Draft: g.schema.Draft(),
		References: g.references, Metadata: maps.Clone(g.Metadata), Level: rules.Level, Model: rules.Model,
		Admission: admission, By: g.By, Created: time.Now().UTC().Truncate(time.Millisecond),
	}
	if g.DryRun {
		return v, nil
	}
	if v.ID == 0 {
		if v.ID, err = r.identify(ctx, s, v.Fingerprint); err != nil {
			return Version{}, err
		}
	}
	return v, r.add(ctx, s, v, g.nonce)
}

// admit says how a schema comes in, or why it does not.
func (g *registration) admit(ctx context.Context, s *snapshot, rules Settings) (Admission, error) {
	versions := s.topic(g.topic).against(rules.Level, nil)
	switch {
	case len(versions) == 0:
		return First, nil
	case rules.Level == LevelNone:
		return Unchecked, nil
	}
	for _, e := range versions {
		for _, d := range rules.Level.Directions() {
			c, err := g.judge.compare(ctx, s, e, d, rules.Model)
			switch {
			case err != nil:
				return "", err
			case c.Verdict.Result == schema.Proved:
			case g.Force:
				return Forced, nil
			default:
				return "", &IncompatibleError{
					Topic: g.topic, Level: rules.Level, Model: rules.Model,
					Against: e.Number, Direction: d, Written: c.Written, Verdict: c.Verdict,
				}
			}
		}
	}
	return Proved, nil
}

// identify gives a fingerprint that has no id the next one. Ids are given in order,
// and nobody gives one without knowing those before it: no fingerprint gets two. The
// ids grow under the snapshot, so that it may have one by now.
func (r *Registry) identify(ctx context.Context, s *snapshot, fingerprint string) (int, error) {
	known, highest := s.ids.of(fingerprint)
	if known != 0 {
		return known, nil
	}
	id := highest + 1
	if id > maxNumber {
		return 0, fmt.Errorf("%w: the registry has given its last id, %d: export it, and import it with lower ids into an empty bucket", ErrTooLarge, highest)
	}
	seq, err := r.put(ctx, idKey(id), identity{Fingerprint: fingerprint}, idKey(id), 0)
	if err != nil {
		return 0, err
	}
	_, err = r.reach(ctx, seq)
	return id, err
}

// add stores a version whose number is the next one, and before it that it refers
// to others. The order matters. Whoever deletes a version looks who refers to it;
// where a referrer does not exist yet, it writes to the referrer's topic, so that
// the referring version, whose condition is older than the reference, is refused.
func (r *Registry) add(ctx context.Context, s *snapshot, v Version, nonce string) error {
	seqs := map[string]uint64{v.Topic: s.topic(v.Topic).seq}
	for _, ref := range v.References {
		last, ok := seqs[ref.Topic]
		if !ok {
			last = s.topic(ref.Topic).seq
		}
		seq, err := r.put(ctx, referrerKey(ref, v.Reference()), mark{Why: "refers"}, topicPrefix(ref.Topic)+">", last)
		if err != nil {
			return err
		}
		seqs[ref.Topic] = seq
	}
	seq, err := r.put(ctx, versionKey(v.Reference()), storedVersion{Version: v, Nonce: nonce}, topicPrefix(v.Topic)+">", seqs[v.Topic])
	if err != nil {
		return err
	}
	_, _ = r.reach(ctx, seq) // it is stored, whether the cache hears of it in time or not
	return nil
}
