package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// sqliteBusy is how long a statement waits for another process that writes the file.
const sqliteBusy = 10 * time.Second

// outboxTable says how an outbox is opened.
type outboxTable struct {
	create   bool // make it where it does not exist
	skipDead bool
	keep     time.Duration
}

// withOutbox opens the outbox that the flags name and runs f on it, with a context that
// is bounded by --timeout. What it takes to log in is in no error.
func (a *app) withOutbox(ctx context.Context, flags *outboxFlags, t outboxTable, f func(context.Context, outboxBox) error) error {
	return a.withOutboxOpen(ctx, flags, t, func(box outboxBox) error {
		ctx, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		return f(ctx, box)
	})
}

// withOutboxOpen is withOutbox for work that takes as long as it takes.
func (a *app) withOutboxOpen(ctx context.Context, flags *outboxFlags, t outboxTable, f func(outboxBox) error) error {
	if err := checkOutput(flags.output); err != nil {
		return err
	}
	if a.timeout <= 0 {
		return usagef("--timeout %v: use more than 0", a.timeout)
	}
	uri := a.env(flags.db, "JETBUS_OUTBOX_DB")
	if uri == "" {
		return usagef("name the database with --db or JETBUS_OUTBOX_DB: postgres://..., sqlite:FILE or mongodb://...")
	}
	scheme, _, isURI := strings.Cut(uri, "://")
	var err error
	switch {
	case isURI && (scheme == "postgres" || scheme == "postgresql"):
		err = a.withSQL(ctx, "pgx", uri, flags.table, outbox.PostgreSQL, t, f)
	case isURI && strings.HasPrefix(scheme, "mongodb"):
		err = a.withMongoBox(ctx, uri, flags.table, t, f)
	case isURI && scheme != "sqlite" && scheme != "file":
		return usagef("--db %.20s://...: use postgres://, sqlite:FILE or mongodb://", scheme)
	default:
		var dsn string
		if dsn, err = sqliteDSN(uri, t.create); err == nil {
			err = a.withSQL(ctx, "sqlite", dsn, flags.table, outbox.SQLite, t, f)
		}
	}
	return hideSecrets(err, uri)
}

// sqliteDSN is what the driver takes for a file, which must exist unless create says
// so: a name that is wrong would be an empty database otherwise.
func sqliteDSN(db string, create bool) (string, error) {
	if strings.HasPrefix(db, "file:") {
		return db, nil // with options of its own
	}
	name := strings.TrimPrefix(strings.TrimPrefix(db, "sqlite:"), "//")
	mode := "rw"
	info, err := os.Stat(name)
	switch {
	case name == "":
		return "", usagef("--db %s: name the file, sqlite:FILE", db)
	case err == nil && info.IsDir():
		return "", usagef("--db %s: it is a folder, not the file of a database", name)
	case create:
		mode = "rwc"
	case errors.Is(err, fs.ErrNotExist):
		return "", usagef("--db %s: there is no such file; jetbus outbox run --create makes it", name)
	case err != nil:
		return "", usagef("--db: %w", err)
	}
	escaped := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(name)
	return fmt.Sprintf("file:%s?mode=%s&_txlock=immediate&_pragma=busy_timeout(%d)", escaped, mode, sqliteBusy.Milliseconds()), nil
}

func (a *app) withSQL(ctx context.Context, driver, dsn, name string, d outbox.Dialect, t outboxTable, f func(outboxBox) error) (err error) {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return usagef("--db: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	opening, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := db.PingContext(opening); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if d == outbox.SQLite {
			return fmt.Errorf("open the database: %w; check --db, which must name a file of SQLite that may be read and written", err)
		}
		return fmt.Errorf("connect to the database: %w; check --db, and whether the server runs", err)
	}
	if t.create {
		if err := outbox.Create(opening, db, d, name); err != nil {
			return err
		}
	}
	box, err := outbox.Open(opening, db, outbox.Options{Dialect: d, Table: name, SkipDead: t.skipDead, Keep: t.keep})
	if errors.Is(err, outbox.ErrNoTable) { // whose remedy is one for programs
		return &safeError{strings.ReplaceAll(err.Error(), outbox.ErrNoTable.Error(), "no table of an outbox"), err}
	}
	if err != nil {
		return err
	}
	return f(box)
}

func (a *app) withMongoBox(ctx context.Context, uri, name string, t outboxTable, f func(outboxBox) error) error {
	var opened error
	err := a.withMongo(ctx, &mongoFlags{uri: uri}, func(db *mongo.Database) error {
		opened = a.withCollection(ctx, db, name, t, f)
		return opened
	})
	if err != nil && opened == nil { // it is about the connection, whose flag has another name here
		return &safeError{strings.ReplaceAll(err.Error(), "--mongo", "--db"), err}
	}
	return err
}

func (a *app) withCollection(ctx context.Context, db *mongo.Database, name string, t outboxTable, f func(outboxBox) error) error {
	opening, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if !t.create {
		names, err := db.ListCollectionNames(opening, bson.D{{Key: "name", Value: name}})
		if err != nil {
			return fmt.Errorf("look for collection %s: %w", name, err)
		}
		if len(names) == 0 {
			return fmt.Errorf("open outbox %s.%s: %w", db.Name(), name, errNoCollection)
		}
	}
	box, err := mongobox.Open(opening, db.Collection(name), mongobox.Options{SkipDead: t.skipDead, Keep: t.keep})
	if err != nil {
		return err
	}
	return f(box)
}

// errNoCollection is outbox.ErrNoTable of a MongoDB.
var errNoCollection = errors.New("no collection of an outbox")

// safeError is an error whose text has been cleared of secrets.
type safeError struct {
	text string
	err  error
}

func (e *safeError) Error() string { return e.text }
func (e *safeError) Unwrap() error { return e.err }

// hideSecrets takes a URI and the passwords in it out of an error's text.
func hideSecrets(err error, uri string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if strings.Contains(uri, "://") {
		text = scrubbed(text, uri)
	}
	for _, s := range querySecrets(uri) {
		text = strings.ReplaceAll(text, s, "xxxxx")
	}
	if text == err.Error() {
		return err
	}
	return &safeError{text, err}
}

// querySecrets are the passwords among the options of a URI, as they stand there and
// decoded.
func querySecrets(uri string) (secrets []string) {
	_, query, _ := strings.Cut(uri, "?")
	for pair := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		name = strings.ToLower(name)
		if value == "" || !strings.Contains(name, "password") && !strings.Contains(name, "secret") && !strings.Contains(name, "token") {
			continue
		}
		secrets = append(secrets, value)
		if decoded, err := url.QueryUnescape(value); err == nil && decoded != value {
			secrets = append(secrets, decoded)
		}
	}
	return secrets
}
