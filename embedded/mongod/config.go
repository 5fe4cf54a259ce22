package mongod

import (
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Config configures a [Server]. The zero value is a replica set of one member
// on a free port of loopback, without authentication.
type Config struct {
	// Listen is the host:port to serve on, a loopback address unless Username is
	// set. Default "127.0.0.1:0": a free port.
	Listen string
	// ReplicaSet is the name of the set. Default "rs0".
	ReplicaSet string
	// Standalone makes the server say that it is no member of a replica set:
	// change streams and transactions are refused. Default false.
	Standalone bool
	// Version is the version of MongoDB that the server says it is: 4.2, 4.4,
	// 5.0, 6.0, 7.0 or 8.0 with a patch number. It changes what drivers send, not
	// what the server can do. Default "7.0.14".
	Version string

	// Username and Password are the credentials that clients have to present by
	// SCRAM-SHA-256, in ASCII. Default "": none.
	Username, Password string

	// MaxConnections bounds the open connections; the ones above are closed at
	// once. Default 1,000.
	MaxConnections int
	// MaxCursors bounds the open cursors, change streams among them. Default 1,000.
	MaxCursors int
	// CursorTimeout is how long an idle cursor lives. Default 10 minutes.
	CursorTimeout time.Duration
	// TransactionLifetime is when an open transaction is aborted. Default 1 minute.
	TransactionLifetime time.Duration
	// SessionTimeout is how long an idle session is known. Default 30 minutes.
	SessionTimeout time.Duration
	// TTLInterval is the time between two removals of expired documents.
	// Default 1 minute.
	TTLInterval time.Duration
	// OplogBytes bounds the history of changes that change streams can go back
	// to, in bytes of the documents in it; at least the latest change is kept.
	// Default 128 MiB.
	OplogBytes int
	// MaxEventBytes is the size above which a change event has to be split
	// ($changeStreamSplitLargeEvent) or fails its stream. Smaller values make
	// large events cheap to test. Default 16 MiB and 16 KiB, as MongoDB has it.
	MaxEventBytes int

	// Log receives what the server does: its start and its faults at level Info,
	// commands at level Debug. Default nil: nothing is logged.
	Log *slog.Logger
}

// Validate reports the first field with a value that cannot work.
func (c Config) Validate() error {
	if _, ok := wireVersions[major(c.withDefaults().Version)]; !ok {
		return fmt.Errorf("%w: version %q: want one of 4.2, 4.4, 5.0, 6.0, 7.0, 8.0 with a patch number", ErrConfig, c.Version)
	}
	host, _, err := net.SplitHostPort(c.withDefaults().Listen)
	if err != nil {
		return fmt.Errorf("%w: listen %q: %w", ErrConfig, c.Listen, err)
	}
	if ip := net.ParseIP(host); c.Username == "" && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("%w: listen %q is not on loopback: set Username and Password, or listen on 127.0.0.1", ErrConfig, c.Listen)
	}
	if (c.Username == "") != (c.Password == "") {
		return fmt.Errorf("%w: Username and Password are set together or not at all", ErrConfig)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"MaxConnections", int64(c.MaxConnections)},
		{"MaxCursors", int64(c.MaxCursors)},
		{"CursorTimeout", int64(c.CursorTimeout)},
		{"TransactionLifetime", int64(c.TransactionLifetime)},
		{"SessionTimeout", int64(c.SessionTimeout)},
		{"TTLInterval", int64(c.TTLInterval)},
		{"OplogBytes", int64(c.OplogBytes)},
		{"MaxEventBytes", int64(c.MaxEventBytes)},
	} {
		if f.value < 0 {
			return fmt.Errorf("%w: %s is negative", ErrConfig, f.name)
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	or(&c.Listen, "127.0.0.1:0")
	or(&c.ReplicaSet, "rs0")
	or(&c.Version, "7.0.14")
	or(&c.MaxConnections, 1000)
	or(&c.MaxCursors, 1000)
	or(&c.CursorTimeout, 10*time.Minute)
	or(&c.TransactionLifetime, time.Minute)
	or(&c.SessionTimeout, 30*time.Minute)
	or(&c.TTLInterval, time.Minute)
	or(&c.OplogBytes, 128<<20)
	or(&c.MaxEventBytes, maxDocumentBytes+16<<10)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func or[T comparable](p *T, def T) {
	var zero T
	if *p == zero {
		*p = def
	}
}

// wireVersions are the versions of the protocol, by version of the server.
var wireVersions = map[string]int32{"4.2": 8, "4.4": 9, "5.0": 13, "6.0": 17, "7.0": 21, "8.0": 25}

// major is the first two numbers of a version.
func major(version string) string {
	dots := 0
	for i, r := range version {
		if r == '.' {
			if dots++; dots == 2 {
				return version[:i]
			}
		} else if r < '0' || r > '9' {
			return ""
		}
	}
	return ""
}
