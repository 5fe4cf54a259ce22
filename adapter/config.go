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
	// or several separated by dots. Buses with different prefixes do not see each other, nor
	// what the others keep in buckets (jetbus.Keys): locks, positions. One bucket all share, that of
	// partition.Join, whose groups are to have a name of their own. Defaults to "ev".
	Prefix string
	// AutoCreate declares a topic with defaults at its first publish, subscribe or
	// read. Off, an undeclared topic is an error. Defaults to off.
	AutoCreate bool
	// Storage is that of topics that do not say. Defaults to jetbus.FileStorage.
	Storage jetbus.Storage
	// Replicas is that of topics that do not say, and the least that the bus's own streams
	// and buckets have; those have as many as the topic with most that a group of this bus
	// was joined in. Defaults to 1.
	Replicas int
	// PartitionBy returns what chooses the partition of an event that is published
	// ([jetbus.PartitionOf]), or "" for what does so without it: the event's key, or its
	// ID where that is empty. The order of a key is kept only if its events have one
	// result, in every process. It is called for events of topics with partitions alone,
	// complete but for Partition and Seq, by any number of goroutines. In topics with
	// KeyInSubject, whose keys lie in one place each, it must return "" or the key.
	// Defaults to none.
	PartitionBy func(e jetbus.Event) string
	// SID is the session id stamped on events that have none. Defaults to a new UUIDv7.
	SID string
	// Timeout bounds calls whose context has no deadline. Defaults to 10 seconds.
	Timeout time.Duration
	// DeadLetterRetention is how long dead letters are kept, and DeadLetterBytes how
	// many bytes of them; when those are full, events that fail are kept and tried
	// again. They count when the first group of all joins and creates the stream.
	// Default to 30 days and 1 GiB (64 MiB in memory).
	DeadLetterRetention time.Duration
	DeadLetterBytes     int64
	// NoAdvisories leaves what other clients terminate, or let the server give up
	// on, in groups of this bus unnoticed. Off, such events become dead letters too, of which
	// the server tells by advisories that the bus keeps in a stream. Defaults to off.
	NoAdvisories bool
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
	if c.DeadLetterRetention == 0 {
		c.DeadLetterRetention = 30 * 24 * time.Hour
	}
	if c.DeadLetterBytes == 0 {
		c.DeadLetterBytes = 1 << 30
		if c.Storage == jetbus.MemoryStorage {
			c.DeadLetterBytes = memoryDeadBytes
		}
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
	case c.DeadLetterRetention < time.Minute || c.DeadLetterBytes < 1:
		return c, fmt.Errorf("%w: DeadLetterRetention is %v and DeadLetterBytes %d, use at least a minute and a byte", jetbus.ErrInvalidOption, c.DeadLetterRetention, c.DeadLetterBytes)
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
