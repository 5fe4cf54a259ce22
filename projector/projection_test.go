package projector_test

import (
	"testing"

	"github.com/seed-63e9a637/jetbus/projector"
)

// Row 1 of the table: batches, folded to the newest of each key, acknowledged when
// they are written.
func TestA8Row1Batches(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		s := m.sink()
		r.publish(numbered(0, 1000, 10)...)
		p := r.project(r.bus, s, options())
		r.caughtUp(p)
		r.publish(numbered(1000, 1020, 10)...)
		r.caughtUp(p)
		m.want(t, "k0=1010 k1=1011 k2=1012 k3=1013 k4=1014 k5=1015 k6=1016 k7=1017 k8=1018 k9=1019")
		st := p.Stats()
		r.equal("events", st.Events, 1020)
		if st.Applied+st.Stale != 1020 || st.Batches > 10 || st.Phase != projector.Following || st.Seq != 1020 {
			t.Errorf("stats %+v, batches %v", st, s.written())
		}
		r.stop(p)
		g := r.group("p")
		if g.Held != 0 || g.Pending != 0 || g.AckedSeq != 1020 {
			t.Errorf("group %+v", g)
		}
		r.equal("phase", p.Stats().Phase, projector.Ended)
		r.equal("error", p.Err(), nil)
	})
}
