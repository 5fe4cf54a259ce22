package gateway

// Inflight is how many events WebSocket clients hold of a group.
type Inflight struct {
	Topic, Group string
	Events       int
}

// Inflight counts what WebSocket clients hold now, one entry for each topic and group to
// which one of them is subscribed, in no order. Those whose connection broke, and that may
// come back, count too. What is pulled over HTTP does not.
func (g *Gateway) Inflight() []Inflight {
	g.mu.Lock()
	sessions := make(map[*session]struct{}, len(g.conns)+len(g.kept))
	for c := range g.conns {
		c.mu.Lock()
		sessions[c.ses] = struct{}{}
		c.mu.Unlock()
	}
	for _, s := range g.kept {
		sessions[s] = struct{}{}
	}
	g.mu.Unlock()
	counts := map[[2]string]int{}
	for s := range sessions {
		s.countHeld(counts)
	}
	out := make([]Inflight, 0, len(counts))
	for of, n := range counts {
		out = append(out, Inflight{of[0], of[1], n})
	}
	return out
}

// countHeld adds what the session's client holds, by topic and group.
func (s *session) countHeld(counts map[[2]string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.subs {
		if one.group == "" || !one.hasStarted() { // a reader holds nothing; a group may be made up until then
			continue
		}
		for _, topic := range one.topics {
			counts[[2]string{topic, one.group}] += 0
		}
	}
	for _, h := range s.holds {
		counts[[2]string{h.d.Topic, h.s.group}]++
	}
}

// hasStarted reports whether the client knows of the subscription.
func (s *sub) hasStarted() bool {
	select {
	case <-s.started:
		return true
	default:
		return false
	}
}
