package partition_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus/partition"
)

// rig is a group in fake time. It watches that a partition has one owner.
type rig struct {
	*testing.T
	keys *memKeys
	n    int
	ttl  time.Duration

	mu      sync.Mutex
	owners  map[int]*holding // who has a partition, by its own account
	epochs  map[int]uint64
	moves   int
	seeds   uint64
	members []*member

	prepare func(*line)  // of members that join; nil: they are well
	log     bytes.Buffer // of all members
}

// holding is a turn as the rig sees it.
type holding struct {
	who  string
	ctx  context.Context // it ends when the turn is taken away
	turn *partition.Turn
	at   time.Time
}

// member is one process of the group.
type member struct {
	*partition.Membership
	r     *rig
	line  *line
	id    string
	drain time.Duration // how long it takes to give a partition up
}

func bubble(t *testing.T, n int, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, keys: newMemKeys(), n: n, ttl: 15 * time.Second, owners: map[int]*holding{}, epochs: map[int]uint64{}}
		defer r.stopAll()
		f(r)
	})
}

func (r *rig) stopAll() {
	for _, m := range r.members {
		m.line.mend()
	}
	for _, m := range r.members {
		if err := m.Stop(context.Background()); err != nil {
			r.Error(err)
		}
	}
}

func (r *rig) options(id string) partition.Options {
	return partition.Options{Partitions: r.n, Member: id, TTL: r.ttl, Log: slog.New(slog.NewTextHandler(r, nil))}
}

// Write keeps what members log.
func (r *rig) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(text)
}

// logged counts the lines of the log that have a text.
func (r *rig) logged(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.log.String(), text)
}

func (r *rig) join(o partition.Options) *member {
	r.Helper()
	r.seeds++
	m := &member{r: r, line: newLine(r.keys, r.seeds), id: o.Member}
	if r.prepare != nil {
		r.prepare(m.line)
	}
	joined, err := partition.Join(r.Context(), m.line, "t/g", m.own, o)
	if err != nil {
		r.Fatal(err)
	}
	m.Membership = joined
	r.members = append(r.members, m)
	return m
}

// start lets members of these names join.
func (r *rig) start(ids ...string) []*member {
	r.Helper()
	out := make([]*member, len(ids))
	for i, id := range ids {
		out[i] = r.join(r.options(id))
	}
	return out
}

func (m *member) own(ctx context.Context, t *partition.Turn) (bool, error) {
	m.r.begin(ctx, m.id, t)
	select {
	case <-ctx.Done():
		m.r.end(t)
		return false, nil
	case <-t.Revoked():
	}
	select {
	case <-ctx.Done():
	case <-time.After(m.drain):
	}
	m.r.end(t)
	return ctx.Err() == nil, nil
}

// begin notes an owner. The one before must have given up or have been told to.
func (r *rig) begin(ctx context.Context, who string, t *partition.Turn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.owners[t.Partition]; before != nil && before.ctx.Err() == nil {
		r.Errorf("%s has partition %d, which %s has since %v", who, t.Partition, before.who, before.at)
	}
	if t.Epoch <= r.epochs[t.Partition] {
		r.Errorf("%s has partition %d with epoch %d, after %d", who, t.Partition, t.Epoch, r.epochs[t.Partition])
	}
	r.owners[t.Partition], r.epochs[t.Partition] = &holding{who, ctx, t, time.Now()}, t.Epoch
	r.moves++
}

// took is how many turns there were so far.
func (r *rig) took() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.moves
}

// turn is that of a partition's owner.
func (r *rig) turn(p int) *partition.Turn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owners[p].turn
}

func (r *rig) end(t *partition.Turn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.owners[t.Partition]; h != nil && h.turn == t {
		delete(r.owners, t.Partition)
	}
}

// owned is who has each partition.
func (r *rig) owned() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]string, r.n)
	for p, h := range r.owners {
		if h.ctx.Err() == nil {
			out[p] = h.who
		}
	}
	return out
}

// settled waits until every partition is owned and each of the members has its
// share, and returns how long that took.
func (r *rig) settled(within time.Duration, ids ...string) time.Duration {
	r.Helper()
	began := time.Now()
	for {
		synctest.Wait()
		owned := r.owned()
		if why := r.fair(owned, ids); why == "" {
			for _, id := range ids {
				if m := r.last(id); !slices.Equal(m.Owned(), places(owned, id)) {
					r.Errorf("%s says that it owns %v, and has %v", id, m.Owned(), places(owned, id))
				}
			}
			return time.Since(began)
		} else if time.Since(began) > within {
			r.Fatalf("after %v: %s: %v", within, why, owned)
		}
		time.Sleep(max(10*time.Millisecond, time.Since(began)/20))
	}
}

// last is the newest member of that name.
func (r *rig) last(id string) *member {
	for _, m := range slices.Backward(r.members) {
		if m.id == id {
			return m
		}
	}
	return nil
}

func (r *rig) fair(owned, ids []string) string {
	for _, id := range ids {
		if n := len(places(owned, id)); n < r.n/len(ids) || n > (r.n+len(ids)-1)/len(ids) {
			return fmt.Sprintf("%s has %d of %d", id, n, r.n)
		}
	}
	for p, id := range owned {
		if !slices.Contains(ids, id) {
			return fmt.Sprintf("partition %d is with %q", p, id)
		}
	}
	return ""
}

func places(owned []string, id string) []int {
	var out []int
	for p, who := range owned {
		if who == id {
			out = append(out, p)
		}
	}
	return out
}

func (r *rig) stop(m *member) {
	r.Helper()
	if err := m.Stop(r.Context()); err != nil {
		r.Error(err)
	}
}

func (r *rig) wants(what string, got, want any) {
	r.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("%s: %v, want %v", what, got, want)
	}
}
