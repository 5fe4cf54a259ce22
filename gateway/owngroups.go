package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/seed-63e9a637/jetbus"
)

// makeCost is how many requests of its subject the making or deletion of a group counts for: the
// broker stores a consumer for it.
const makeCost = 20

// mayMake reports what keeps a principal from subscribing a group to a topic, if it would be the
// first of the group. Groups stay at the broker, so they are bounded:
//
//   - A topic has Limits.Groups that services share, and as many that belong to subjects.
//   - Of these a subject has Limits.OwnGroups.
//
// A group of the principal's own is made here, since the broker is to delete it when it has been
// idle for Limits.GroupIdle.
func (g *Gateway) mayMake(ctx context.Context, who Principal, info jetbus.TopicInfo, group string, from jetbus.Start) error {
	if !who.owns(group) && info.Groups < g.c.Limits.Groups {
		return nil
	}
	release, err := g.gate.making.take(ctx, who.Subject) // of several requests each counts what the others made
	if err != nil {
		return err
	}
	defer release()
	topic := info.Config.Name
	if _, err := g.b.Cursor(ctx, topic, group); !errors.Is(err, jetbus.ErrNoGroup) {
		return err // nil: the group exists
	}
	if err := g.charge(who, makeCost); err != nil {
		return err
	}
	if err := g.countGroups(ctx, who, topic, group); err != nil || !who.owns(group) {
		return err
	}
	_, err = g.b.EnsureGroup(ctx, topic, jetbus.GroupConfig{Group: group, From: from, Inactive: g.c.Limits.GroupIdle})
	return err
}

// countGroups reports that a topic has as many groups of the kind as it may have.
func (g *Gateway) countGroups(ctx context.Context, who Principal, topic, group string) error {
	all, err := g.b.Groups(ctx, topic)
	if err != nil {
		return err
	}
	own, personal := 0, 0
	for _, one := range all {
		if who.owns(one.Group) {
			own++
		}
		if isPersonal(one.Group) {
			personal++
		}
	}
	l := g.c.Limits
	switch {
	case who.owns(group) && own >= l.OwnGroups:
		return refuse(CodeTooManySubs, "topic %s has %d groups of %.100s, at most %d are allowed; delete one of them", topic, own, who.Subject, l.OwnGroups)
	case isPersonal(group) && personal >= l.Groups, !isPersonal(group) && len(all)-personal >= l.Groups:
		return refuse(CodeTooManySubs, "topic %s has %d groups, and clients may not make more; join one, or have one deleted", topic, len(all))
	}
	return nil
}

// isPersonal reports whether a group belongs to a subject; see Principal.owns.
func isPersonal(group string) bool { return strings.HasPrefix(group, personalPrefix) }

// deleteGroup serves DELETE /v1/groups/{topic}/{group}.
func (g *Gateway) deleteGroup(w http.ResponseWriter, r *http.Request) {
	who, ok := g.admit(w, r, "", "")
	if !ok {
		return
	}
	topic, err := topicOf(r)
	group := r.PathValue("group")
	if err == nil {
		err = jetbus.ValidGroup(group)
	}
	if err == nil && !who.mayDelete(topic, group) {
		err = refuse(CodeForbidden, "the token does not allow deleting %.250q: a subject deletes its own groups, u.<subject>, and ops:admin all", group)
	}
	if err == nil {
		err = g.charge(who, makeCost-1)
	}
	if err == nil {
		if err = g.enter(); err == nil {
			// A client that goes away does not leave a group by partition half deleted.
			err = g.b.DeleteGroup(context.WithoutCancel(r.Context()), topic, group)
			g.leave()
		}
	}
	if err != nil {
		g.problem(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// turns lets one caller at a time go on for each name. The zero value is ready to use.
type turns struct {
	mu sync.Mutex
	of map[string]*turn
}

// turn is the turn of a name, as long as a caller has it or waits for it.
type turn struct {
	taken chan struct{} // capacity 1
	users int           // guarded by turns.mu
}

// take waits for the caller's turn, which lasts until release is called.
func (t *turns) take(ctx context.Context, name string) (release func(), err error) {
	t.mu.Lock()
	one := t.of[name]
	if one == nil {
		one = &turn{taken: make(chan struct{}, 1)}
		if t.of == nil {
			t.of = map[string]*turn{}
		}
		t.of[name] = one
	}
	one.users++
	t.mu.Unlock()
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(t.of, name)
		}
	}
	select {
	case one.taken <- struct{}{}:
		return func() { <-one.taken; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	}
}
