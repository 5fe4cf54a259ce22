package registry

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// snapshot is the bucket as it was at one sequence. It does not change; what is
// computed from it on demand is kept in it.
type snapshot struct {
	seq       uint64 // of the last record in it
	topics    map[string]*topicState
	global    ownSettings
	globalSeq uint64 // of the record of global
	ids       *identities
}

// topicState is all that is stored under the prefix of a topic.
type topicState struct {
	seq       uint64   // of the last record in it
	versions  []*entry // by number
	settings  ownSettings
	referrers map[int][]Reference // who refers, or was about to refer, to a version
	current   atomic.Pointer[Current]
}

// ownSettings are the settings that a topic has of its own, or all topics have.
type ownSettings struct {
	Settings

	broken error // why the record cannot be read; then they are read-only, and nobody has set that
}

// entry is one version.
type entry struct {
	Version
	seq    uint64
	nonce  string // of the registration that made it
	broken error  // why the record cannot be read; then only Topic and Number are known

	mu       sync.Mutex // held while it is compiled
	compiled atomic.Pointer[schema.Schema]
}

var noTopic = &topicState{}

// topic returns what is known of a topic; empty if nothing is.
func (s *snapshot) topic(name string) *topicState {
	if t := s.topics[name]; t != nil {
		return t
	}
	return noTopic
}

// effective returns the settings that hold for a topic.
func (s *snapshot) effective(topic string) Settings {
	return s.topic(topic).settings.over(s.global.Settings).withDefaults()
}

// find returns a version, nil if there is none.
func (s *snapshot) find(r Reference) *entry { return s.topic(r.Topic).version(r.Version) }

func (t *topicState) version(n int) *entry {
	i, ok := slices.BinarySearchFunc(t.versions, n, func(e *entry, n int) int { return e.Number - n })
	if !ok {
		return nil
	}
	return t.versions[i]
}

// latest returns the live version with the highest number, nil if there is none.
func (t *topicState) latest() *entry {
	for _, e := range slices.Backward(t.versions) {
		if e.live() {
			return e
		}
	}
	return nil
}

// next returns the number of the next version.
func (t *topicState) next() int {
	if len(t.versions) == 0 {
		return 1
	}
	return t.versions[len(t.versions)-1].Number + 1
}

// live reports whether the version counts. One whose record cannot be read does:
// it might be the latest, and is not to be passed over in silence.
func (e *entry) live() bool { return e.broken != nil || e.Live() }

// identities are the ids of fingerprints. They only grow.
type identities struct {
	mu            sync.RWMutex
	byID          map[int]string
	byFingerprint map[string]int // the smallest id
	highest       int
}

func newIdentities() *identities {
	return &identities{byID: map[int]string{}, byFingerprint: map[string]int{}}
}

// add notes an id. An empty fingerprint is one that cannot be read: the id is taken.
func (ids *identities) add(id int, fingerprint string) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	ids.byID[id] = fingerprint
	ids.highest = max(ids.highest, id)
	if old, ok := ids.byFingerprint[fingerprint]; fingerprint != "" && (!ok || id < old) {
		ids.byFingerprint[fingerprint] = id
	}
}

// of returns the id of a fingerprint, 0 if it has none yet, and the highest id.
func (ids *identities) of(fingerprint string) (id, highest int) {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	return ids.byFingerprint[fingerprint], ids.highest
}

// fingerprint returns that of an id, "" if nothing has it.
func (ids *identities) fingerprint(id int) string {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	return ids.byID[id]
}

// all returns a copy of the fingerprints by id.
func (ids *identities) all() map[int]string {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	return maps.Clone(ids.byID)
}

// record is a message of the bucket.
type record struct {
	key     string
	value   []byte
	seq     uint64
	deleted bool // somebody removed the key, which this package never does
}

// builder makes the next snapshot from one. The topics it changes are copied
// first, each once.
type builder struct {
	snapshot

	fresh map[string]bool // topics that are copies already
	warn  func(key string, err error)
}

func (s *snapshot) change(warn func(key string, err error)) *builder {
	b := &builder{snapshot: *s, fresh: map[string]bool{}, warn: warn}
	b.topics = maps.Clone(s.topics)
	return b
}

func emptySnapshot() *snapshot {
	return &snapshot{topics: map[string]*topicState{}, ids: newIdentities()}
}

// done returns the snapshot. The builder must not be used any more.
func (b *builder) done() *snapshot {
	s := b.snapshot
	return &s
}

// topicFor returns a topic's state for changing.
func (b *builder) topicFor(name string) *topicState {
	t := b.topics[name]
	if b.fresh[name] {
		return t
	}
	t = t.clone()
	b.topics[name], b.fresh[name] = t, true
	return t
}

// clone copies all but what is computed from it.
func (t *topicState) clone() *topicState {
	if t == nil {
		return &topicState{referrers: map[int][]Reference{}}
	}
	return &topicState{
		seq: t.seq, versions: slices.Clone(t.versions), settings: t.settings,
		referrers: maps.Clone(t.referrers), // the lists in it are replaced, not changed
	}
}

// apply takes in a record. Records come in the order of their sequences.
func (b *builder) apply(m record) {
	b.seq = max(b.seq, m.seq)
	k := parseKey(m.key)
	if k.topic != "" {
		t := b.topicFor(k.topic)
		t.seq = max(t.seq, m.seq)
	}
	switch k.kind {
	case kindVersion:
		b.applyVersion(k, m)
	case kindSettings:
		b.topicFor(k.topic).settings = b.settings(m)
	case kindReferrer:
		t := b.topicFor(k.topic)
		if list := t.referrers[k.n]; !slices.Contains(list, k.by) {
			t.referrers[k.n] = append(slices.Clip(list), k.by)
		}
	case kindGlobal:
		b.global, b.globalSeq = b.settings(m), m.seq
	case kindID:
		fingerprint, err := decodeIdentity(m.value)
		if err != nil {
			b.warn(m.key, err)
		}
		b.ids.add(k.n, fingerprint)
	case kindUnknown, kindForeign:
	}
}

func (b *builder) applyVersion(k key, m record) {
	t := b.topicFor(k.topic)
	e := &entry{seq: m.seq}
	if m.deleted { // the number stays taken
		e.Version = Version{Topic: k.topic, Number: k.n, Erased: true}
	} else if err := decodeVersion(m.value, Reference{Topic: k.topic, Version: k.n}, e); err != nil {
		b.warn(m.key, err)
		e.Version, e.broken = Version{Topic: k.topic, Number: k.n}, err
	}
	i, found := slices.BinarySearchFunc(t.versions, k.n, func(e *entry, n int) int { return e.Number - n })
	if !found {
		t.versions = slices.Insert(t.versions, i, e)
		return
	}
	if old := t.versions[i]; old.Text == e.Text && old.Fingerprint == e.Fingerprint {
		e.compiled.Store(old.compiled.Load())
	}
	t.versions[i] = e
}

func (b *builder) settings(m record) ownSettings {
	if m.deleted {
		return ownSettings{}
	}
	s, err := decodeSettings(m.value)
	if err != nil { // whatever it says, nothing may come in that it forbids
		b.warn(m.key, err)
		return ownSettings{Settings{Mode: ReadOnly}, err}
	}
	return ownSettings{Settings: s}
}

// adopt takes over from the snapshot before what was compiled.
func (s *snapshot) adopt(before *snapshot) {
	for name, t := range s.topics {
		for _, e := range t.versions {
			if old := before.find(Reference{Topic: name, Version: e.Number}); old != nil && old.Text == e.Text && old.Fingerprint == e.Fingerprint {
				e.compiled.Store(old.compiled.Load())
			}
		}
	}
}
