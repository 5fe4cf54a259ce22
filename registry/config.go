package registry

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Config configures a registry. The zero value is usable.
type Config struct {
	// Bucket is the name of the key-value bucket: letters, digits, '_' and '-'.
	// Registries with different buckets do not see each other. Defaults to "SCHEMAS".
	Bucket string
	// Replicas is how many copies of the bucket the cluster keeps, 1 to 5. It counts
	// when the bucket is made. Defaults to 1.
	Replicas int
	// Timeout bounds calls whose context has no deadline; Import and Export none but
	// each of their requests. Defaults to 10 seconds.
	Timeout time.Duration
	// Domain is the JetStream domain. Defaults to the server's own.
	Domain string
	// Logger receives what no caller can: records that cannot be read, and trouble
	// with following the bucket. Defaults to discarding it.
	Logger *slog.Logger
}

func (c Config) normalize() (Config, error) {
	if c.Bucket == "" {
		c.Bucket = "SCHEMAS"
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case len(c.Bucket) > 100 || strings.ContainsFunc(c.Bucket, func(r rune) bool { return r > '~' || !tokenByte(byte(r)) }):
		return c, fmt.Errorf("%w: Bucket %.120q: use at most 100 letters, digits, '_' and '-'", jetbus.ErrInvalidOption, c.Bucket)
	case c.Replicas < 1 || c.Replicas > 5:
		return c, fmt.Errorf("%w: Replicas is %d, use 1 to 5", jetbus.ErrInvalidOption, c.Replicas)
	case c.Timeout < 0:
		return c, fmt.Errorf("%w: Timeout is negative", jetbus.ErrInvalidOption)
	case strings.ContainsAny(c.Domain, ".*> \t\r\n"):
		return c, fmt.Errorf("%w: Domain %q is no subject token", jetbus.ErrInvalidOption, c.Domain)
	}
	return c, nil
}
