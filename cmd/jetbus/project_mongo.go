package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// defaultDatabase is used where neither --db nor the URI names one.
const defaultDatabase = "jetbus"

// mongoFlags name a MongoDB.
type mongoFlags struct{ uri, db string }

func (f *mongoFlags) add(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.uri, "mongo", "", "MongoDB, mongodb://host:port (env MONGODB_URI, which the process list does not show)")
	flags.StringVar(&f.db, "db", "", "database (default that of the URI, else "+defaultDatabase+")")
}

// withMongo connects to the MongoDB that the flags name, runs f on its database and
// disconnects.
func (a *app) withMongo(ctx context.Context, flags *mongoFlags, f func(*mongo.Database) error) (err error) {
	uri := a.env(flags.uri, "MONGODB_URI")
	if uri == "" {
		return usagef("name the MongoDB with --mongo or MONGODB_URI; jetbus dev runs a stand-in and says where")
	}
	client, err := connectMongo(ctx, a.stderr(), uri, a.timeout)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.timeout)
		defer cancel()
		err = errors.Join(err, client.Disconnect(ctx))
	}()
	return f(client.Database(or(flags.db, databaseOf(uri))))
}

// connectMongo returns a client of a MongoDB that has answered. What it was given to
// log in is in no error. Where it takes a while, it says so if w is a terminal.
func connectMongo(ctx context.Context, w io.Writer, uri string, timeout time.Duration) (*mongo.Client, error) {
	o := options.Client().ApplyURI(uri)
	if err := o.Validate(); err != nil {
		return nil, usagef("--mongo: %s", scrubbed(err.Error(), uri))
	}
	if o.AppName == nil {
		o.SetAppName("jetbus")
	}
	if o.ServerSelectionTimeout == nil {
		o.SetServerSelectionTimeout(timeout)
	}
	client, err := mongo.Connect(o)
	if err != nil {
		return nil, usagef("--mongo: %s", scrubbed(err.Error(), uri))
	}
	pingCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	over := sayLater(w, fmt.Sprintf("connecting to %s, for %v at most", mongoAddress(uri), timeout))
	err = client.Ping(pingCtx, nil)
	over()
	if err != nil {
		_ = client.Disconnect(context.WithoutCancel(ctx)) // nothing has used it
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("connect to %s: %w", mongoAddress(uri), mongoError(err, uri))
	}
	return client, nil
}

// codeAuthenticationFailed is what MongoDB answers to wrong credentials.
const codeAuthenticationFailed = 18

// mongoError says what a failed connect means here.
func mongoError(err error, uri string) error {
	if e, ok := errors.AsType[mongo.ServerError](err); ok && e.HasErrorCode(codeAuthenticationFailed) || strings.Contains(err.Error(), "AuthenticationFailed") {
		return errors.New("the user or the password is wrong: check them in the URI, and authSource")
	}
	text := scrubbed(err.Error(), uri)
	if mongo.IsTimeout(err) || strings.Contains(text, "server selection") {
		reason := ""
		// The topology that the driver prints has the reason for each server in it.
		if _, last, ok := strings.Cut(text, "Last error: "); ok {
			last, _, _ = strings.Cut(last, " }")
			reason = " (" + last + ")"
		}
		return fmt.Errorf("no primary answers there%s; check --mongo, its replicaSet, and whether the server runs", reason)
	}
	return errors.New(text)
}

// mongoAddress is where a URI leads to, without what follows the hosts and without
// what it takes to log in: options can be secrets, too.
func mongoAddress(uri string) string {
	u, ok := cutMongo(uri)
	if !ok {
		return "the server of --mongo"
	}
	return u.scheme + "://" + u.hosts + "/"
}

// mongoURI is a URI in its parts, without the password.
type mongoURI struct{ scheme, user, hosts, database, options string }

// cutMongo takes a URI apart. It is not ok where a part of it might be that of a password that
// is not escaped.
func cutMongo(uri string) (u mongoURI, ok bool) {
	scheme, rest, ok := strings.Cut(uri, "://")
	at := strings.LastIndexByte(rest, '@')
	if !ok || strings.Contains(rest[:max(at, 0)], "?") {
		return u, false
	}
	u.scheme = scheme
	u.user, _, _ = strings.Cut(rest[:max(at, 0)], ":")
	rest, u.options, _ = strings.Cut(rest[at+1:], "?")
	u.hosts, u.database, _ = strings.Cut(rest, "/")
	return u, true
}

// plainOptions are those of a URI that are no secret.
var plainOptions = []string{"authmechanism", "authsource", "directconnection", "replicaset", "ssl", "tls", "tlscafile"}

// withoutPassword is a URI from which only what may be secret is missing: the password, and
// options that this program does not know to be harmless.
func withoutPassword(uri string) string {
	u, ok := cutMongo(uri)
	if !ok {
		return mongoAddress(uri)
	}
	var options []string
	for _, option := range strings.FieldsFunc(u.options, func(r rune) bool { return r == '&' || r == ';' }) {
		if name, _, _ := strings.Cut(option, "="); slices.Contains(plainOptions, strings.ToLower(name)) {
			options = append(options, option)
		}
	}
	text := u.scheme + "://"
	if u.user != "" {
		text += u.user + "@"
	}
	if text += u.hosts + "/" + u.database; len(options) > 0 {
		text += "?" + strings.Join(options, "&")
	}
	return text
}

// databaseOf is the database that a URI names, or the default. As for the driver the first @ is
// that behind the user, and options may have others; where a password has one that is not
// escaped, what follows is no name.
func databaseOf(uri string) string {
	_, rest, _ := strings.Cut(uri, "://")
	if _, behind, ok := strings.Cut(rest, "@"); ok {
		rest = behind
	}
	rest, _, _ = strings.Cut(rest, "?")
	_, name, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(name, "@/") {
		return defaultDatabase
	}
	if decoded, err := url.PathUnescape(name); err == nil {
		name = decoded
	}
	return or(name, defaultDatabase)
}

// scrubbed is an error's text without the URI and its password, however they got there.
func scrubbed(text, uri string) string {
	text = strings.ReplaceAll(text, uri, mongoAddress(uri))
	_, rest, _ := strings.Cut(uri, "://")
	var secrets []string
	for _, at := range []int{strings.LastIndexByte(rest, '@'), strings.IndexByte(rest, '@')} { // it may have one; so may options
		_, password, _ := strings.Cut(rest[:max(at, 0)], ":")
		secrets = append(secrets, password)
		if decoded, err := url.PathUnescape(password); err == nil {
			secrets = append(secrets, decoded)
		}
	}
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "xxxxx")
		}
	}
	return text
}
