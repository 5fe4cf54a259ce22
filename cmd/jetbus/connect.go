package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// withBus connects to the server that the flags name, runs f and closes both
// connection and bus.
func (a *app) withBus(ctx context.Context, f func(*adapter.Bus) error) error {
	return withOpened(ctx, a, f, func(nc *nats.Conn) (*adapter.Bus, error) {
		return adapter.Open(ctx, nc, adapter.Config{Prefix: a.prefix, Timeout: a.timeout})
	})
}

// withOpened connects to the server that the flags name, runs f on what open opens
// there, and closes both.
func withOpened[T interface{ Close(context.Context) error }](ctx context.Context, a *app, f func(T) error, open func(*nats.Conn) (T, error)) (err error) {
	if a.timeout <= 0 {
		return usagef("--timeout %v: use more than 0", a.timeout)
	}
	nc, err := a.connect()
	if err != nil {
		return err
	}
	defer nc.Close()
	opened, err := open(nc)
	if err != nil {
		return fmt.Errorf("%s: %w", redacted(nc.ConnectedUrl()), err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.timeout)
		defer cancel()
		err = errors.Join(err, opened.Close(ctx))
	}()
	return f(opened)
}

// connect connects to the server. Its errors do not contain credentials.
func (a *app) connect() (*nats.Conn, error) {
	server := a.env(a.server, "NATS_URL")
	if server == "" {
		server = defaultServer
	}
	o := []nats.Option{
		nats.Name("jetbus"), nats.Timeout(a.timeout), nats.MaxReconnects(-1),
		// Commands report their errors themselves. Without a handler, nats.go writes to standard error.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}
	user, password, token := a.env(a.user, "JETBUS_USER"), a.env(a.password, "JETBUS_PASSWORD"), a.env(a.token, "JETBUS_TOKEN")
	switch {
	case token != "" && (user != "" || password != "" || a.creds != "") || user != "" && a.creds != "":
		return nil, usagef("give one of --user with --password, --token and --creds")
	case password != "" && user == "":
		return nil, usagef("--password without --user")
	case token != "":
		o = append(o, nats.Token(token))
	case user != "":
		o = append(o, nats.UserInfo(user, password))
	case a.creds != "":
		if _, err := os.Stat(a.creds); err != nil {
			return nil, usagef("--creds: %w", fileError(err))
		}
		o = append(o, nats.UserCredentials(a.creds))
	}
	if a.tlsCA != "" {
		if _, err := os.Stat(a.tlsCA); err != nil {
			return nil, usagef("--tls-ca: %w", fileError(err))
		}
		o = append(o, nats.RootCAs(a.tlsCA))
	}
	nc, err := nats.Connect(server, o...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", redacted(server), connectError(err))
	}
	return nc, nil
}

// connectError says what a failed connect means here.
func connectError(err error) error {
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		return &safeError{jetbus.ErrDenied.Error(), fmt.Errorf("%w: %w", jetbus.ErrDenied, err)} // see remedy
	case errors.Is(err, nats.ErrNoServers):
		return errors.New("no server answers there; start one with jetbus dev, or name another with --server")
	}
	if _, ok := errors.AsType[*url.Error](err); ok { // it has the address, with its password
		return usagef("the address is no URL; what is special in a user or a password has to be escaped, as %%25 for %%")
	}
	return hostError(err)
}

// redacted is a list of server addresses without passwords and tokens.
func redacted(servers string) string {
	list := strings.Split(servers, ",")
	for i, s := range list {
		u, err := url.Parse(strings.TrimSpace(s))
		switch {
		case err == nil && u.User != nil:
			u.User = url.User("xxxxx")
			list[i] = u.String()
		case strings.Contains(s, "@"): // no URL, but it may hold a password all the same
			list[i] = "..." + s[strings.LastIndexByte(s, '@'):]
		}
	}
	return strings.Join(list, ",")
}
