//go:build unix

package schemas

import (
	"testing"

	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

func TestMain(m *testing.M) {
	rig.Main(m, map[string]rig.Role{
		"backfill":  runBackfill,
		"member":    runMember,
		"registrar": runRegistrar,
	})
}
