// Package mongolink waits out what breaks connections to a MongoDB: a failover, or a
// server's restart. The driver does so for reads and writes, once each, and not for every
// command.
package mongolink

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Pauses of Persist.
const (
	firstPause = 10 * time.Millisecond
	maxPause   = time.Second
)

// Persist calls f again while connections break under it, until ctx ends, and returns
// what f returned last. f can be repeated. Where the driver itself has waited in vain, for
// an answer or for a server, that is final.
func Persist(ctx context.Context, f func() error) error {
	for wait := firstPause; ; wait = min(2*wait, maxPause) {
		err := f()
		if !IsBroken(err) || mongo.IsTimeout(err) || IsSelection(err) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// IsBroken reports whether a connection broke under a command, or under another one
// while this one waited for its turn: the driver closes all connections then, and says
// so in an error without the label that the first one has.
func IsBroken(err error) bool {
	var cleared interface{ Retryable() bool } // the driver's type for it is not exported
	return mongo.IsNetworkError(err) || errors.As(err, &cleared) && cleared.Retryable()
}

// IsSelection reports whether the driver found no server to talk to.
func IsSelection(err error) bool {
	return err != nil && strings.Contains(err.Error(), "server selection error")
}
