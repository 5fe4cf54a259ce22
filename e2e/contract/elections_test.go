//go:build elections

package contract

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/cluster"
)

// The promises hold while leaders step down and nodes die all the time: see make
// contract-elections. Elections take their time, so it is not in make e2e, which has
// TestElections of e2e/cluster.
func TestContractInElections(t *testing.T) {
	c := election.Cluster(t, cluster.Config{})
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // a number is a number
	t.Logf("seed %d", seed)
	e := chaos.Elect(t, c, seed)
	t.Cleanup(e.Stop)
	bustest.Contract(t, bustest.Options{
		RealTime: true,
		Repeats:  true,
		Parallel: true,
		Without:  bustest.NeedRestart | bustest.NeedPipe | bustest.NeedOpen | bustest.NeedMany,
		Only:     func(b bustest.Behavior) bool { return slices.ContainsFunc(b.Cases, clustered) },
	}, func(t *testing.T) bustest.Subject {
		t.Helper()
		return bustest.SubjectOn(t, c, adapter.Config{Replicas: 3, Timeout: 2 * time.Minute})
	})
}
