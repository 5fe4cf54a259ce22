package partition_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/partition"
)

// losses are ways in which a bucket loses its keys.
var losses = map[string]func(*memKeys){
	"purged": (*memKeys).purge, "created again": (*memKeys).recreate,
	"purged unnoticed by the bus": func(k *memKeys) { // which may not write to the bucket, but for the group's keys
		k.purge()
		k.mu.Lock()
		defer k.mu.Unlock()
		k.lost = false
	},
}

// A group whose bucket loses its keys is complete again within a TTL when its members live. No
// partition has two owners, and epochs ascend: the rig watches both.
func TestGroupOutlivesItsBucket(t *testing.T) {
	for how, lose := range losses {
		t.Run(how, func(t *testing.T) {
			bubble(t, 8, func(r *rig) {
				r.start("a", "b", "c")
				r.settled(3*time.Second, "a", "b", "c")
				for range 5 {
					time.Sleep(r.ttl + 700*time.Millisecond)
					writes := r.keys.written()
					lose(r.keys)
					time.Sleep(r.ttl)
					r.settled(0, "a", "b", "c")
					if n := r.keys.written() - writes; n > 100 {
						r.Errorf("%d writes in a TTL", n)
					}
				}
			})
		})
	}
}

// Members that die around the loss of the bucket, and members that join after it, wait until no
// former session can be alive.
func TestDeadMemberOfALostBucketIsWaitedFor(t *testing.T) {
	for how, lose := range losses {
		t.Run(how, func(t *testing.T) {
			bubble(t, 8, func(r *rig) {
				all := r.start("a", "b", "c")
				r.settled(3*time.Second, "a", "b", "c")
				time.Sleep(r.ttl)
				lose(r.keys)
				all[1].line.die()
				if r.keys.isLost() {
					r.start("d") // it has never seen the others
					r.settled(2*r.ttl, "a", "c", "d")
					return
				}
				r.settled(2*r.ttl, "a", "c")
				all[1].line.mend()
				r.settled(2*r.ttl, "a", "b", "c")
			})
		})
	}
}

// Members write the configuration of their group again.
func TestLostBucketRemembersItsGroup(t *testing.T) {
	bubble(t, 8, func(r *rig) {
		r.start("a", "b")
		r.settled(3*time.Second, "a", "b")
		r.keys.purge()
		time.Sleep(r.ttl)
		a, err := lookup(r)
		if err != nil || a != 8 {
			r.Errorf("%d partitions, %v", a, err)
		}
	})
}

// Members come, go and die while the bucket loses its keys at random.
func TestLossChaos(t *testing.T) {
	for seed := range uint64(4) {
		bubble(t, 12, func(r *rig) { lossChaos(r, rand.New(rand.NewPCG(11, seed))) }) //nolint:gosec // reproducible on purpose
	}
}

func lossChaos(r *rig, rng *rand.Rand) {
	ids := []string{"a", "b", "c", "d", "e"}
	r.start(ids...)
	r.settled(3*time.Second, ids...)
	before := r.took()
	for range 50 {
		switch m := r.members[rng.IntN(len(ids))]; rng.IntN(6) {
		case 0, 1:
			r.keys.purge()
		case 2:
			r.keys.recreate()
		case 3:
			m.line.cut(true)
			time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
			m.line.cut(false)
		case 4:
			m.line.mu.Lock()
			m.line.loses = 0.2
			m.line.mu.Unlock()
		case 5:
			for _, m := range r.members {
				m.line.mend()
			}
		}
		time.Sleep(time.Duration(rng.IntN(25000)) * time.Millisecond)
	}
	for _, m := range r.members {
		m.line.mend()
	}
	r.settled(3*r.ttl, ids...)
	if n := r.took() - before; n < 50 {
		r.Errorf("%d turns: that proves nothing", n)
	}
	for _, m := range r.members {
		if err := m.Err(); err != nil {
			r.Error(fmt.Errorf("member %s ended: %w", m.id, err))
		}
	}
}

// lookup is the number of partitions that the bucket has of the group.
func lookup(r *rig) (int, error) {
	a, err := partition.Lookup(r.Context(), r.keys, "", "t/g")
	return len(a.Partitions), err
}
