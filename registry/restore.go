package registry

import (
	"cmp"
	"context"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
)

// one runs a step of an import within the time of one call.
func (r *Registry) one(ctx context.Context, attempt func(ctx context.Context, s *snapshot) error) error {
	ctx, cancel := r.bound(ctx)
	defer cancel()
	return r.decide(ctx, attempt)
}

// stored waits until the cache has what was put.
func (r *Registry) stored(ctx context.Context, seq uint64, err error) error {
	if err == nil {
		_, err = r.reach(ctx, seq)
	}
	return err
}

func appeared(what string) error {
	return fmt.Errorf("%w: %s came into being during the import, and differs", jetbus.ErrConflict, what)
}

func storeID(id int, fingerprint string) step {
	return func(ctx context.Context, r *Registry) error {
		return r.one(ctx, func(ctx context.Context, s *snapshot) error {
			if have := s.ids.all()[id]; have == fingerprint {
				return nil
			} else if have != "" {
				return appeared(fmt.Sprintf("id %d", id))
			}
			seq, err := r.put(ctx, idKey(id), identity{Fingerprint: fingerprint}, idKey(id), 0)
			return r.stored(ctx, seq, err)
		})
	}
}

// storeVersion stores a version as it is. What it refers to is checked as at a
// registration, since it may be deleted meanwhile.
func storeVersion(v Version) step {
	return func(ctx context.Context, r *Registry) error {
		nonce := jetbus.NewID()
		return r.one(ctx, func(ctx context.Context, s *snapshot) error {
			if e := s.find(v.Reference()); e != nil {
				if e.broken != nil || !e.equal(v) {
					return appeared(v.Reference().String())
				}
				return nil
			}
			for _, ref := range v.References {
				if e := s.find(ref); e == nil || e.Erased || v.Live() && !e.live() {
					return fmt.Errorf("%s: %w: %s was deleted during the import", v.Reference(), ErrInvalidReference, ref)
				}
			}
			if s.topic(v.Topic).next() != v.Number {
				return appeared(v.Reference().String())
			}
			return r.add(ctx, s, v, nonce)
		})
	}
}

func storeSettings(topic string, want Settings) step {
	return func(ctx context.Context, r *Registry) error {
		got, err := r.UpdateSettings(ctx, topic, func(own *Settings) { *own = cmp.Or(*own, want) })
		if err == nil && got != want {
			return appeared("settings of " + topic)
		}
		return err
	}
}

func storeGlobal(want Settings) step {
	return func(ctx context.Context, r *Registry) error {
		got, err := r.UpdateGlobalSettings(ctx, func(global *Settings) { *global = cmp.Or(*global, want) })
		if err == nil && got != want {
			return appeared("global settings")
		}
		return err
	}
}
