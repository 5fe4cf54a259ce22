package registry

import (
	"context"
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
