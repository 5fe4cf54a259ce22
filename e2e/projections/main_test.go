//go:build unix

package projections

import (
	"testing"

	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

func TestMain(m *testing.M) {
	rig.Main(m, map[string]rig.Role{
		"projector": runProjector,
		"rebuild":   runRebuild,
	})
}
