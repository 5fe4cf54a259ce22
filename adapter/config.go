package adapter

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Config configures a bus. The zero value is usable.
type Config struct {
	// Prefix is the first token of every subject: one lower-case subject token,
	// or several separated by dots. Buses with different prefixes do not see each other. Defaults to "ev".
	Prefix string
	// AutoCreate declares a topic with defaults at its first publish, subscribe or
	// read. Off, an undeclared topic is an error. Defaults to off.
	AutoCreate bool
	// Storage is that of topics that do not say. Defaults to jetbus.FileStorage.
	Storage jetbus.Storage
	// Replicas is that of topics that do not say. Defaults to 1.
	Replicas int
	// SID is the session id stamped on events that have none. Defaults to a new UUIDv7.
	SID string
	// Timeout bounds calls whose context has no deadline. Defaults to 10 seconds.
	Timeout time.Duration
	// Domain is the JetStream domain. Defaults to the server's own.
	Domain string
	// Logger receives what no caller can: failures of background work. Defaults to
	// discarding it.
	Logger *slog.Logger
	// Observer is told what the bus does. Defaults to nobody.
	Observer jetbus.Observer
}

func (c Config) normalize() (Config, error) {
	if c.Prefix == "" {
		c.Prefix = "ev"
	}
	if c.Storage == "" {
		c.Storage = jetbus.FileStorage
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
	if c.SID == "" {
		c.SID = jetbus.NewID()
	}
	switch {
	case jetbus.ValidTopic(c.Prefix) != nil || len(c.Prefix) > 32:
		return c, fmt.Errorf("%w: Prefix %q: use at most 32 bytes of dot-separated a-z, 0-9, '_' and '-'", jetbus.ErrInvalidOption, c.Prefix)
	case c.Storage != jetbus.FileStorage && c.Storage != jetbus.MemoryStorage:
		return c, fmt.Errorf("%w: Storage %q: use file or memory", jetbus.ErrInvalidOption, c.Storage)
	case c.Replicas < 1 || c.Replicas > 5:
		return c, fmt.Errorf("%w: Replicas is %d, use 1 to 5", jetbus.ErrInvalidOption, c.Replicas)
	case c.Timeout < 0:
		return c, fmt.Errorf("%w: Timeout is negative", jetbus.ErrInvalidOption)
	case strings.ContainsAny(c.Domain, ".*> \t\r\n"):
		return c, fmt.Errorf("%w: Domain %q is no subject token", jetbus.ErrInvalidOption, c.Domain)
	}
	if err := (&jetbus.Event{Topic: "t", SID: c.SID}).Validate(); err != nil {
		return c, fmt.Errorf("%w: SID: %w", jetbus.ErrInvalidOption, err)
	}
	return c, nil
}
