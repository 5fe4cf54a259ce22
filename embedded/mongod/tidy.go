package mongod

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// tidy ends what is too old, until the server stops.
func (s *Server) tidy() {
	ttl := time.NewTicker(s.cfg.TTLInterval)
	defer ttl.Stop()
	rest := time.NewTicker(max(time.Millisecond, min(time.Second, s.cfg.CursorTimeout, s.cfg.TransactionLifetime, s.cfg.SessionTimeout)))
	defer rest.Stop()
	for {
		select {
		case <-s.stopping:
			return
		case <-ttl.C:
			s.Expire()
		case <-rest.C:
			s.mu.Lock()
			s.tidyOnce(time.Now())
			s.mu.Unlock()
		}
	}
}

// tidyOnce ends transactions, cursors and sessions that are too old.
func (s *Server) tidyOnce(now time.Time) {
	for t := range s.st.open {
		if now.Sub(t.began) > s.cfg.TransactionLifetime {
			s.st.finish(t, txnAborted)
		}
	}
	for id, c := range s.cursors {
		if c.busy == 0 && now.Sub(c.used) > s.cfg.CursorTimeout {
			delete(s.cursors, id)
		}
	}
	s.dropSessions(s.cfg.SessionTimeout)
}

// Expire removes the documents whose time is over according to the TTL indexes,
// and returns how many there were. The server does so by itself in the interval
// of its config.
func (s *Server) Expire() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || !s.primary {
		return 0
	}
	v := &view{st: s.st}
	n := 0
	now := bson.NewDateTimeFromTime(time.Now())
	for _, c := range s.st.colls {
		for _, ix := range c.idx {
			if ix.expire < 0 {
				continue
			}
			for _, f := range ix.expired(v, c, now) {
				if v.delete(c, f) == nil { // one that a transaction writes has its turn later
					n++
				}
			}
		}
	}
	return n
}

// expired are the documents with a date in the indexed field, the earliest if
// there are several, that is as old as the index says.
func (ix *indexDef) expired(v *view, c *collection, now bson.DateTime) []found {
	path := splitPath(ix.keys[0].Key)
	limit := now - bson.DateTime(min(ix.expire, int64(now)/1000)*1000)
	var out []found
	v.scan(c, func(key string, d bson.D) bool {
		if d == nil {
			return true
		}
		due := reachOf(d, path).each(func(val any) bool {
			t, ok := val.(bson.DateTime)
			return ok && t <= limit
		})
		if due && ix.covers(d) {
			out = append(out, found{key, d})
		}
		return true
	})
	return out
}

// covers says whether a document is in the index.
func (ix *indexDef) covers(d bson.D) bool {
	if ix.partial == nil {
		return true
	}
	ok, err := match(d, ix.partial)
	return ok && err == nil
}

// Databases are the names of the databases that have collections.
func (s *Server) Databases() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, c := range s.st.colls {
		names = append(names, c.db)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
