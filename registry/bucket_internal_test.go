package registry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go/jetstream"
)

// tidying is a server that fails to make a bucket's store, so many times.
type tidying struct {
	jetstream.JetStream

	failures, calls int
}

func (s *tidying) CreateKeyValue(context.Context, jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	if s.calls++; s.calls <= s.failures {
		return nil, &jetstream.APIError{Code: 500, ErrorCode: codeStreamCreate, Description: "error creating store for stream"}
	}
	return nil, nil //nolint:nilnil // nobody looks at it
}

// The server may tidy up after its last stream while the bucket is made.
func TestBucketIsAskedForAgain(t *testing.T) {
	for failures, want := range map[int]struct {
		calls  int
		failed bool
	}{0: {1, false}, 2: {3, false}, 1000: {3, true}} {
		synctest.Test(t, func(t *testing.T) {
			s := &tidying{failures: failures}
			_, err := (&Registry{js: s}).createBucket(t.Context())
			if s.calls != want.calls || (err != nil) != want.failed {
				t.Errorf("%d failures: %d calls, ended with %v", failures, s.calls, err)
			}
		})
	}
}

// What one server says of replicas is told by what it means, and can be asked for.
func TestReplicasWithoutCluster(t *testing.T) {
	said := &jetstream.APIError{Code: 500, ErrorCode: codeNoCluster, Description: "replicas > 1 not supported in non-clustered mode"}
	err := (&Registry{}).translate("", said)
	if got, ok := errors.AsType[*jetstream.APIError](err); !ok || got != said {
		t.Errorf("got %v", err)
	}
	if want := "replicas need a cluster, and this server is alone (see Config.Replicas)"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}
