package reads_test

import (
	"testing"

	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// rig is a broker with a bus, and what these tests do with it.
type rig struct{ *adaptertest.Rig }

func inBubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	adaptertest.InBubble(t, func(r *adaptertest.Rig) { f(&rig{r}) })
}

func inRealTime(t *testing.T, f func(r *rig)) {
	t.Helper()
	adaptertest.InRealTime(t, func(r *adaptertest.Rig) { f(&rig{r}) })
}

// must returns a result, or ends the test: must(f())(t).
func must[T any](v T, err error) func(t *testing.T) T { return adaptertest.Must(v, err) }
