package mongolink

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

// broken is how the driver says that a connection broke.
var broken = mongo.CommandError{Labels: []string{"NetworkError"}, Message: "connection closed"}

// cleared is how it says that a connection broke under somebody else.
type cleared struct{}

func (cleared) Error() string   { return "connection pool was cleared" }
func (cleared) Retryable() bool { return true }

func TestPersist(t *testing.T) {
	errOther := errors.New("no such command")
	selection := fmt.Errorf("server selection error: %w", broken)
	for name, c := range map[string]struct {
		answers []error // the last one again and again
		want    error
		calls   int
	}{
		"well":              {[]error{nil}, nil, 1},
		"broken twice":      {[]error{broken, broken, nil}, nil, 3},
		"broken, then bad":  {[]error{broken, errOther}, errOther, 2},
		"broken for others": {[]error{fmt.Errorf("find: %w", cleared{}), nil}, nil, 2},
		"no server":         {[]error{selection}, selection, 1},
		"broken for good":   {[]error{broken}, broken, 36}, // 10 ms, doubling to 1 s, for 30 s
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			calls := 0
			err := Persist(ctx, func() error {
				calls++
				return c.answers[min(calls, len(c.answers))-1]
			})
			if fmt.Sprint(err) != fmt.Sprint(c.want) || calls != c.calls {
				t.Errorf("%s: %v after %d calls, want %v after %d", name, err, calls, c.want, c.calls)
			}
		})
	}
}
