package partition

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// A group's keys begin with its name: <group>/.c is what all agree on, <group>/.m/<id>
// the session of a member, which ends by its TTL, and <group>/.l/<p> the lease of a
// partition, which is its holder's as long as the session that it names goes on. The
// dot is what brokers can select by ([jetbus.Keys.KeyWatch]).
const (
	groupKeys    = "/."
	configKey    = groupKeys + "c"
	memberPrefix = groupKeys + "m/"
	leasePrefix  = groupKeys + "l/"
)

// The states of a member.
const (
	stateLive    = "live"
	stateLeaving = "leaving" // it gives up its partitions, for others where it is not static
	stateAway    = "away"    // it stopped, and its partitions wait for it
)

// sessionValue is what the bucket holds of a member.
type sessionValue struct {
	State  string    `json:"state"`
	Nonce  string    `json:"session"`
	Weight int       `json:"weight"`
	Static bool      `json:"static,omitempty"`
	Joined time.Time `json:"joined"` // by its own clock, for people
	// Meta is a raw value, so that an unreadable one does not hide the member. Older versions do not write it.
	Meta json.RawMessage `json:"meta,omitempty"`
}

// leaseValue is what the bucket holds of a partition.
type leaseValue struct {
	Owner   string `json:"owner,omitempty"` // "": it is free
	Session string `json:"session,omitempty"`
	After   bool   `json:"after,omitempty"` // how the turn before ended; while it is held
	Clean   bool   `json:"clean,omitempty"` // how this turn ended; while it is free, or its owner away
}

type seenSession struct {
	sessionValue
	revision uint64
	text     string    // as it is in the bucket
	since    time.Time // when it was first seen; zero: it was there when we came
}

type seenLease struct {
	leaseValue
	revision uint64
}

// view is what a member knows of its group. It knows nothing of the network.
type view struct {
	members map[string]seenSession
	leases  map[int]seenLease
	removed map[int]uint64       // revisions at which leases were deleted
	ended   map[string]time.Time // sessions that certainly ended, and when the member learned it
	missing map[string]time.Time // sessions that a lease names but that were never seen, and since when
	ghosts  map[string]ghost     // static members that have just died and may return soon
	life    uint64               // changes with each loss of the bucket's keys ([jetbus.KeyEntry].Lost)
	doubt   time.Time            // until then, a partition without a lease may have an owner; see lostKeys
	unaware map[string]string    // sessions, by member, that may not have noticed the loss; nil: unknown
}

// ghost is a member that is counted for a moment longer than it lives.
type ghost struct {
	weight int
	until  time.Time
}

func newView() *view {
	return &view{
		members: map[string]seenSession{}, leases: map[int]seenLease{}, removed: map[int]uint64{}, ended: map[string]time.Time{},
		missing: map[string]time.Time{}, ghosts: map[string]ghost{},
	}
}

// apply takes in a change of the bucket and reports whether it matters. fresh says
// that the change is news, and not how things were when the watch began.
func (v *view) apply(e jetbus.KeyEntry, group string, now time.Time, fresh bool, grace time.Duration) bool {
	rest, ok := strings.CutPrefix(e.Key, group)
	if !ok {
		return false
	}
	if id, ok := strings.CutPrefix(rest, memberPrefix); ok {
		return v.applyMember(id, e, now, fresh, grace)
	}
	number, ok := strings.CutPrefix(rest, leasePrefix)
	p, err := strconv.Atoi(number)
	if !ok || err != nil || p < 0 || p >= jetbus.MaxPartitions {
		return false
	}
	if e.Deleted {
		delete(v.leases, p)
		v.removed[p] = e.Revision
		return true
	}
	var l leaseValue
	if json.Unmarshal(e.Value, &l) != nil {
		return false // nobody's, and not free either: what stands is what was read before
	}
	v.leases[p] = seenLease{l, e.Revision}
	delete(v.removed, p)
	return true
}

func (v *view) applyMember(id string, e jetbus.KeyEntry, now time.Time, fresh bool, grace time.Duration) bool {
	old, had := v.members[id]
	if e.Deleted {
		if !had {
			return false
		}
		delete(v.members, id)
		v.died(id, old, now, grace)
		return true
	}
	if had && old.text == string(e.Value) { // a renewal, as nearly always
		old.revision = e.Revision
		v.members[id] = old
		return false
	}
	next := seenSession{revision: e.Revision, text: string(e.Value), since: old.since}
	if json.Unmarshal(e.Value, &next.sessionValue) != nil {
		return false
	}
	if had && old.Nonce != next.Nonce {
		v.ended[old.Nonce] = now
	}
	_, ghost := v.ghosts[id]
	_, unaware := v.unaware[id]
	if !had && !ghost && !unaware && fresh {
		next.since = now
	}
	v.noticed(id, next.Nonce)
	delete(v.ghosts, id)
	v.members[id] = next
	return !had || old.Nonce != next.Nonce || old.State != next.State || old.Weight != next.Weight
}

// died notes the end of a session that was nobody's wish, as far as is known.
func (v *view) died(id string, s seenSession, now time.Time, grace time.Duration) {
	v.ended[s.Nonce] = now
	if s.Static && s.State != stateAway {
		v.ghosts[id] = ghost{s.Weight, now.Add(grace)}
	}
}

// resumed makes a view that was read anew go on where the one before was: what
// ended has ended, who was there is not new, and a lease that is gone was deleted.
func (v *view) resumed(before *view, now time.Time) {
	maps.Copy(v.ended, before.ended)
	maps.Copy(v.missing, before.missing)
	maps.Copy(v.ghosts, before.ghosts)
	for p, l := range before.leases {
		if _, there := v.leases[p]; !there {
			v.removed[p] = l.revision + 1
		}
	}
	v.doubt, v.unaware = before.doubt, before.unaware
	for id, m := range v.members {
		v.noticed(id, m.Nonce)
		old, had := before.members[id]
		m.since = old.since
		if _, ghost := v.ghosts[id]; !had && !ghost && len(before.members) > 0 { // it came meanwhile
			m.since = now
		}
		delete(v.ghosts, id)
		v.members[id] = m
		if had && old.Nonce != m.Nonce {
			v.ended[old.Nonce] = now
		}
	}
}

// lostKeys records that the bucket lost keys of the group. Members notice this at different
// times. A member that renewed its session just before the loss owns its partitions until it
// notices, for at most a TTL, and no lease tells which partitions these are. The doubt ends
// earlier if all members of the previous view have begun new sessions, as they do when they
// notice the loss.
func (v *view) lostKeys(before *view, until time.Time) {
	v.doubt = until
	if len(before.members) == 0 {
		v.unaware = nil
		return
	}
	unaware := maps.Clone(before.unaware)
	if unaware == nil {
		unaware = map[string]string{}
	}
	for id, m := range before.members {
		unaware[id] = m.Nonce
	}
	v.unaware = unaware
	for id, m := range v.members {
		v.noticed(id, m.Nonce)
	}
}

// missesAll reports whether all leases of the previous view are gone. A single lease may have
// been deleted by an operator; members delete none.
func (v *view) missesAll(before *view) bool {
	for p := range before.leases {
		if _, there := v.leases[p]; there {
			return false
		}
	}
	return len(before.leases) > 0
}

// noticed records a member's session. If it differs from the session before the loss, the member
// has noticed the loss.
func (v *view) noticed(id, nonce string) {
	if old, unaware := v.unaware[id]; unaware && old != nonce {
		delete(v.unaware, id)
	}
}

// isDoubtful reports whether partitions without a lease may have an owner.
func (v *view) isDoubtful(now time.Time) bool {
	return now.Before(v.doubt) && (v.unaware == nil || len(v.unaware) > 0)
}

// unseen returns the members of the previous view that v does not have.
func (v *view) unseen(before *view) map[string]seenSession {
	out := maps.Clone(before.members)
	maps.DeleteFunc(out, func(id string, _ seenSession) bool {
		_, there := v.members[id]
		return there
	})
	return out
}

// newcomer notes that a member's own session is new to the others, whenever its
// view of the group began.
func (v *view) newcomer(id string, s *session) {
	if m, there := v.members[id]; there && m.Nonce == s.nonce && !s.known {
		m.since, s.known = s.joined, true
		v.members[id] = m
	}
}

// sharers are the members among which partitions are shared out, and when that
// changes with time alone; zero: it does not. Those that are new wait until the delay
// of the first of them is over, and come in together.
func (v *view) sharers(now time.Time, delay time.Duration) (members []Member, next time.Time) {
	first := now
	for _, m := range v.members {
		if !m.since.IsZero() && m.since.Before(first) {
			first = m.since
		}
	}
	due := first.Add(delay)
	for id, m := range v.members {
		switch {
		case m.State == stateLeaving && !m.Static:
		case m.since.IsZero() || !now.Before(due):
			m.since = time.Time{}
			v.members[id] = m
			members = append(members, Member{ID: id, Weight: m.Weight})
		default:
			next = due
		}
	}
	for id, g := range v.ghosts {
		if !now.Before(g.until) {
			delete(v.ghosts, id)
			continue
		}
		if next.IsZero() || g.until.Before(next) {
			next = g.until
		}
		members = append(members, Member{ID: id, Weight: g.weight})
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return members, next
}

// holders are those who have the partitions by their leases.
func (v *view) holders(n int) []string {
	out := make([]string, n)
	for p, l := range v.leases {
		if p < n {
			out[p] = l.Owner
		}
	}
	return out
}

// over reports whether a session has ended for sure. One that was never seen is
// over when it was not seen for a whole ttl: a watch may begin while a key is being
// written anew. Until then, next is when to ask again.
func (v *view) over(owner, session string, now time.Time, ttl time.Duration) (over bool, next time.Time) {
	if _, ended := v.ended[session]; ended {
		return true, time.Time{}
	}
	if m, there := v.members[owner]; there && m.Nonce == session {
		delete(v.missing, session)
		return false, time.Time{}
	}
	since, known := v.missing[session]
	if !known {
		v.missing[session] = now
		since = now
	}
	due := since.Add(ttl + ttl/5)
	return !now.Before(due), due
}

// forget drops what no lease names any more.
func (v *view) forget(now time.Time, ttl time.Duration) {
	named := make(map[string]bool, len(v.leases))
	for _, l := range v.leases {
		named[l.Session] = true
	}
	maps.DeleteFunc(v.ended, func(nonce string, at time.Time) bool { return !named[nonce] && now.Sub(at) > 2*ttl })
	maps.DeleteFunc(v.missing, func(nonce string, _ time.Time) bool { return !named[nonce] })
}
