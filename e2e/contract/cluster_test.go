package contract

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/cluster"
)

// The cluster is one for all behaviors, and its time is real.
func TestContractInCluster(t *testing.T) {
	c := election.Cluster(t, cluster.Config{})
	o := bustest.Options{
		RealTime: true,
		Without:  bustest.NeedRestart | bustest.NeedPipe | bustest.NeedOpen | bustest.NeedMany,
		Only:     func(b bustest.Behavior) bool { return slices.ContainsFunc(b.Cases, clustered) },
	}
	bustest.Contract(t, o, func(t *testing.T) bustest.Subject {
		t.Helper()
		return bustest.SubjectOn(t, c, adapter.Config{Replicas: 3, Timeout: time.Minute}) // an election may come, and a second one
	})
}

// clustered reports whether a cluster can make a difference for an edge case:
// whether it is about storing, positions or ownership, and not about what the
// client checks or does alone.
func clustered(n int) bool {
	return slices.Contains([]int{1, 2, 3, 4, 5, 12, 13, 30, 35, 37, 38, 39, 40, 53, 54, 57, 59, 64, 65, 66, 69, 70}, n)
}
