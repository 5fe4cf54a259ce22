package outrow

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"
)

// TestRefused hides each row for its lease.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Refused
		want := func(refs ...string) {
			t.Helper()
			set := map[string]bool{}
			for _, ref := range refs {
				set[ref] = true
			}
			if got := r.Hidden(); !maps.Equal(got, set) {
				t.Errorf("hidden: %v, want %v", got, set)
			}
		}
		want()
		r.Hide("1", time.Minute)
		r.Hide("2", 2*time.Minute)
		want("1", "2")
		time.Sleep(time.Minute)
		want("2")
		r.Hide("2", 2*time.Minute)
		time.Sleep(time.Minute)
		want("2")
		time.Sleep(time.Minute)
		want()
	})
}
