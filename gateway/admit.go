package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus/internal/loopback"
)

// gate holds the state that admits or refuses clients.
type gate struct {
	origins   []origin
	rates     limiters // of requests, by subject
	frames    limiters // of frames, by subject
	strangers limiters // of documents requested without a token, by address
	preAuth   preAuth
	making    turns // to create a group, by subject
}

// newGate reads what the configuration says of it.
func newGate(c Config) (*gate, error) {
	origins, err := parseOrigins(c.Origins)
	if err != nil {
		return nil, err
	}
	return &gate{origins: origins}, nil
}

// Validate returns the error that New would, without a bus.
func (c Config) Validate() error {
	if err := c.normalize(); err != nil {
		return err
	}
	_, err := newGate(c)
	return err
}

// bearerProtocol is in front of a token that browsers send as a WebSocket subprotocol, since
// they cannot set headers.
const bearerProtocol = "bearer."

// bearer returns the token that a request carries, in its Authorization header or as a
// WebSocket subprotocol. Empty: none, or more than one.
func bearer(r *http.Request) string {
	var found []string
	for _, v := range r.Header.Values("Authorization") {
		scheme, token, _ := strings.Cut(v, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "" // other credentials are no token
		}
		found = append(found, strings.TrimSpace(token))
	}
	for _, v := range r.Header.Values("Sec-WebSocket-Protocol") {
		for protocol := range strings.SplitSeq(v, ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(protocol), bearerProtocol); ok {
				found = append(found, token)
			}
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// local is whom everyone stands for where there are no tokens.
const local = "local"

// errNoSubject: all whom an Authenticator gives no name would be one, with what belongs to each.
var errNoSubject = errors.New("the Authenticator gives no subject")

// authenticate tells whom a token stands for, which came with r or in a frame of a connection
// that r began. Without Config.Auth it is everyone on this machine. The error is a failure.
func (g *Gateway) authenticate(ctx context.Context, r *http.Request, token string) (Principal, error) {
	if g.c.Auth == nil {
		if err := loopback.Check(r); err != nil {
			return Principal{}, refuse(CodeForbidden, "this gateway has no tokens and serves its own machine alone: %v", err)
		}
		return Principal{Subject: local, Scopes: AllScopes()}, nil
	}
	most := g.c.Limits.TokenBytes
	if most <= 0 {
		most = maxTokenBytes
	}
	if len(token) > most {
		return Principal{}, refuse(CodeBadToken, "the token is longer than %d bytes", most)
	}
	p, err := g.c.Auth.Authenticate(ctx, token)
	if err == nil && p.Subject == "" {
		err = errNoSubject
	}
	switch {
	case err == nil && (p.Expires.IsZero() || time.Now().Before(p.Expires)):
		return p, nil
	case err == nil, errors.Is(err, ErrTokenExpired):
		return Principal{}, refuse(CodeTokenExpired, "%s", plain[CodeTokenExpired])
	case errors.Is(err, ErrBadToken) && token == "":
		return Principal{}, refuse(CodeUnauthorized, "a token is needed")
	case errors.Is(err, ErrBadToken):
		return Principal{}, refuse(CodeBadToken, "%s", plain[CodeBadToken])
	}
	if g.c.Log != nil && ctx.Err() == nil {
		g.c.Log.LogAttrs(ctx, slog.LevelWarn, "tokens cannot be checked", slog.Any("err", err))
	}
	return Principal{}, refuse(CodeInternal, "tokens cannot be checked at the moment; try again")
}

// admit lets a request in: it tells whom it acts for, and whether that may do p upon the
// name, and often enough. An empty Permission asks for a token alone. Where it may not,
// the request is answered.
func (g *Gateway) admit(w http.ResponseWriter, r *http.Request, p Permission, name string) (Principal, bool) {
	who, err := g.authenticate(r.Context(), r, bearer(r))
	if err == nil {
		err = g.charge(who, 1)
	}
	if err == nil && p != "" && !who.Scopes.Allow(p, name) {
		err = forbidden(p, name)
	}
	if err != nil {
		g.problem(w, r, err)
		return Principal{}, false
	}
	return who, true
}

// charge counts n requests of a principal.
func (g *Gateway) charge(who Principal, n int) error {
	ok, wait := g.gate.rates.take(who.Subject, g.c.Limits.Rate, g.c.Limits.Burst, n)
	if ok {
		return nil
	}
	return tooOften(wait)
}

// tooOften returns the error of a rate limit: the client may repeat the request after wait.
func tooOften(wait time.Duration) error {
	return &failure{Code: CodeRateLimited, Msg: "too many requests at once", After: max(wait, time.Millisecond)}
}

// forbidden is what somebody is told who lacks a scope.
func forbidden(p Permission, name string) error {
	if !p.takesPattern() {
		return refuse(CodeForbidden, "the token does not allow %s", p)
	}
	return refuse(CodeForbidden, "the token does not allow %s upon %.250q", p, name)
}
