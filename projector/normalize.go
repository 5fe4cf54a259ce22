package projector

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Defaults and bounds of Options.
const (
	DefaultMaxBatch        = 5000
	DefaultLinger          = 20 * time.Millisecond
	DefaultAckTimeout      = 30 * time.Second
	DefaultShutdownTimeout = 30 * time.Second

	maxBatch      = 10_000
	minAckTimeout = time.Second
	minLockTTL    = 3 * time.Second
	maxLockTTL    = time.Hour
)

// normalize returns the options with defaults filled in, or an error that names
// the field. It may be applied twice.
func (o Options) normalize() (Options, error) {
	setDefault(&o.MaxBatch, DefaultMaxBatch)
	setDefault(&o.Linger, DefaultLinger)
	setDefault(&o.AckTimeout, DefaultAckTimeout)
	setDefault(&o.ShutdownTimeout, DefaultShutdownTimeout)
	setDefault(&o.Logger, slog.New(slog.DiscardHandler))
	if err := errors.Join(jetbus.ValidGroup(o.Name), jetbus.ValidTopic(o.Topic)); err != nil {
		return o, err
	}
	if o.From != "" {
		if err := jetbus.ValidTopic(o.From); err != nil {
			return o, fmt.Errorf("option From: %w", err)
		}
	}
	bad := func(format string, args ...any) (Options, error) {
		return o, fmt.Errorf("%w: "+format, append([]any{jetbus.ErrInvalidOption}, args...)...)
	}
	switch {
	case o.From == o.Topic:
		return bad("From and Topic are both %s: From names its snapshot", o.Topic)
	case o.MaxBatch < 1 || o.MaxBatch > maxBatch:
		return bad("MaxBatch is %d, use 1 to %d", o.MaxBatch, maxBatch)
	case o.Linger < -1 || o.Linger > o.AckTimeout:
		return bad("Linger is %v, use at most AckTimeout (%v), or -1 for none", o.Linger, o.AckTimeout)
	case o.AckTimeout < minAckTimeout:
		return bad("AckTimeout is %v, use at least %v", o.AckTimeout, minAckTimeout)
	case o.Exclusive && (o.AckTimeout < minLockTTL || o.AckTimeout > maxLockTTL || o.AckTimeout%time.Second != 0):
		return bad("AckTimeout is %v, which with Exclusive is the TTL of a lock: use whole seconds, from %v to %v", o.AckTimeout, minLockTTL, maxLockTTL)
	case o.Every && !o.Exclusive:
		return bad("Every needs Exclusive: replicas that share the events know no order among them")
	case o.Every && o.From != "":
		return bad("Every takes each event, and From (%s) holds the last of each key only", o.From)
	case o.OnNewStream != RefuseNewStream && o.OnNewStream != RebuildOnNewStream:
		return bad("OnNewStream is %q, use %q or none", o.OnNewStream, RebuildOnNewStream)
	case o.ShutdownTimeout < 0:
		return bad("ShutdownTimeout is negative")
	}
	return o, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
