package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/seed-63e9a637/jetbus"
)

// makeCost is how many requests the creation or deletion of a group counts for. The broker stores a consumer for each
// group, and before the gateway creates one it lists all groups of the topic.
const makeCost = 100

// mayMake returns an error if the principal may not create the group in the topic. An existing group
// is always allowed. Groups are stored at the broker, so their number is limited:
//
//   - A topic has at most Limits.Groups shared groups, and as many groups that belong to subjects.
//   - A subject has at most Limits.OwnGroups groups of its own in a topic.
//
// mayMake creates a group that belongs to the principal, and sets Limits.GroupIdle, after which the
// broker deletes the group if it is idle.
func (g *Gateway) mayMake(ctx context.Context, who Principal, info jetbus.TopicInfo, group string, from jetbus.Start) error {
	if !who.owns(group) && info.Groups < g.c.Limits.Groups {
		return nil
	}
	release, err := g.gate.making.take(ctx, who.Subject) // so that each request counts the groups of the others
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

// countGroups returns an error if the topic already has the maximum of groups of this kind.
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
		return refuse(CodeTooManySubs, "topic %s has %d groups, and clients may not create more; join an existing group, or ask for one to be deleted", topic, len(all))
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
		err = refuse(CodeForbidden, "the token does not allow deleting %.250q: a subject may delete its own groups, u.<subject>; other groups need ops:admin", group)
	}
	if err == nil {
		err = g.charge(who, makeCost-1)
	}
	if err == nil {
		if err = g.enter(); err == nil {
			// A client that disconnects must not leave a partitioned group half deleted.
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

// turns is a mutex for each name. The zero value is ready to use.
type turns struct {
	mu sync.Mutex
	of map[string]*turn
}

// turn is the mutex of one name. It exists while a caller holds it or waits for it.
type turn struct {
	taken chan struct{} // capacity 1
	users int           // callers that hold it or wait; guarded by turns.mu
}

// take locks a name until release is called. It waits until the name is free or ctx ends.
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
