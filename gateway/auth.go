package gateway

import (
	"context"
	"errors"
	"time"
)

// Errors of authentication. Neither says anything about the token itself.
var (
	// ErrBadToken: there is no token, or it is not one that counts here.
	ErrBadToken = errors.New("bad token")
	// ErrTokenExpired: the token counted once. A fresh one may be tried.
	ErrTokenExpired = errors.New("token expired")
)

// An Authenticator tells whom a bearer token stands for. It is used by several
// goroutines at once.
type Authenticator interface {
	// Authenticate returns whom the token stands for: [ErrBadToken], [ErrTokenExpired],
	// or another error where it cannot tell at the moment, which a client may try again.
	// The token comes as it was sent, at most Limits.TokenBytes long; empty: there was none.
	Authenticate(ctx context.Context, token string) (Principal, error)
}

// Principal is whom a connection or a request acts for.
type Principal struct {
	// Subject names it in audits and logs; stands for {sub} in the patterns of scopes. A
	// principal without one is refused: what belongs to a subject would be everyone's.
	Subject string
	// Scopes are what it may do. None: nothing.
	Scopes Scopes
	// Expires is when the token ends, and with it what was begun under it. Zero: never.
	Expires time.Time
}

// maxTokenBytes is the default of Limits.TokenBytes, and what no token of this package exceeds.
const maxTokenBytes = 8 << 10
