package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

const (
	annToken = "ann-0123456789abcdef"
	bobToken = "bob-0123456789abcdef"
)

func TestStaticTokens(t *testing.T) {
	sum := sha256.Sum256([]byte(bobToken))
	auth, err := StaticTokens(
		Token{Token: annToken, Subject: "ann", Scopes: []string{"topic:read:orders"}},
		Token{SHA256: hex.EncodeToString(sum[:]), Subject: "bob"},
		Token{Token: "old-0123456789abcdef", Subject: "old", Expires: time.Unix(1, 0)},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		token, subject string
		err            error
	}{
		{annToken, "ann", nil},
		{bobToken, "bob", nil},
		{"old-0123456789abcdef", "", ErrTokenExpired},
		{"", "", ErrBadToken},
		{annToken + "x", "", ErrBadToken},
		{annToken[1:], "", ErrBadToken},
		{hex.EncodeToString(sum[:]), "", ErrBadToken},
	} {
		who, err := auth.Authenticate(t.Context(), c.token)
		if !errors.Is(err, c.err) || who.Subject != c.subject {
			t.Errorf("%q: %+v, %v", c.token, who, err)
		}
	}
	if who, _ := auth.Authenticate(t.Context(), annToken); !who.Scopes.Allow(TopicRead, "orders") || who.Scopes.Allow(TopicRead, "other") {
		t.Errorf("scopes of ann: %+v", who)
	}
	if who, _ := auth.Authenticate(t.Context(), bobToken); who.Scopes.Allow(TopicRead, "orders") {
		t.Errorf("scopes of bob: %+v", who)
	}
}

func TestStaticTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auth, err := StaticTokens(Token{Token: annToken, Subject: "ann", Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := auth.Authenticate(t.Context(), annToken); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if _, err := auth.Authenticate(t.Context(), annToken); !errors.Is(err, ErrTokenExpired) {
			t.Error(err)
		}
	})
}

func TestStaticTokensRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		tokens []Token
		want   error
	}{
		"no token":     {[]Token{{Subject: "ann"}}, jetbus.ErrInvalidOption},
		"both":         {[]Token{{Token: annToken, SHA256: strings.Repeat("0", 64), Subject: "ann"}}, jetbus.ErrInvalidOption},
		"short":        {[]Token{{Token: "0123456789abcde", Subject: "ann"}}, jetbus.ErrInvalidOption},
		"long":         {[]Token{{Token: strings.Repeat("a", maxTokenBytes+1), Subject: "ann"}}, jetbus.ErrInvalidOption},
		"space":        {[]Token{{Token: annToken + "\n", Subject: "ann"}}, jetbus.ErrInvalidOption},
		"no hash":      {[]Token{{SHA256: "abc", Subject: "ann"}}, jetbus.ErrInvalidOption},
		"no subject":   {[]Token{{Token: annToken}}, jetbus.ErrInvalidOption},
		"line end":     {[]Token{{Token: annToken, Subject: "a\nb"}}, jetbus.ErrInvalidOption},
		"twice":        {[]Token{{Token: annToken, Subject: "ann"}, {Token: annToken, Subject: "bob"}}, jetbus.ErrInvalidOption},
		"scope":        {[]Token{{Token: annToken, Subject: "ann", Scopes: []string{"topic:read"}}}, ErrInvalidScope},
		"far too many": {make([]Token, maxStatic+1), jetbus.ErrInvalidOption},
	} {
		_, err := StaticTokens(c.tokens...)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), annToken) {
			t.Errorf("%s: the error shows the token: %v", name, err)
		}
	}
}

func TestReadTokens(t *testing.T) {
	list, err := ReadTokens(strings.NewReader(`[{"token":"` + annToken + `","subject":"ann","scopes":["ops:read"],"expires":"2030-01-02T03:04:05Z"}]`))
	if err != nil || len(list) != 1 || list[0].Subject != "ann" || list[0].Expires.Year() != 2030 {
		t.Errorf("%+v, %v", list, err)
	}
	for _, text := range []string{"", "{}", `[{"tokn":"secret-value"}]`, `[{"token":1}]`, `[{"Token":"secret-value"}]`, `[{"token":"secret-value","token":"secret-value"}]`, `[] x`, `[][]`, `[{"token":"secret-value`, strings.Repeat(" ", maxTokensFile+1)} {
		_, err := ReadTokens(strings.NewReader(text))
		if !errors.Is(err, jetbus.ErrInvalidOption) || strings.Contains(err.Error(), "secret-value") {
			t.Errorf("%.30q: %v", text, err)
		}
	}
}

// fixed is an Authenticator that always says the same.
type fixed struct {
	who Principal
	err error
}

func (f fixed) Authenticate(context.Context, string) (Principal, error) { return f.who, f.err }

func TestAnyOf(t *testing.T) {
	down := errors.New("down")
	ann, bad, expired, away := fixed{who: Principal{Subject: "ann"}}, fixed{err: ErrBadToken}, fixed{err: ErrTokenExpired}, fixed{err: down}
	for _, c := range []struct {
		list []Authenticator
		want error
	}{
		{nil, ErrBadToken},
		{[]Authenticator{bad, ann}, nil},
		{[]Authenticator{away, ann}, nil},
		{[]Authenticator{bad, away, bad}, down},
		{[]Authenticator{away, expired}, ErrTokenExpired},
		{[]Authenticator{expired, away}, ErrTokenExpired},
		{[]Authenticator{bad, bad}, ErrBadToken},
	} {
		who, err := AnyOf(c.list...).Authenticate(t.Context(), "x")
		if !errors.Is(err, c.want) || (err == nil) != (who.Subject == "ann") {
			t.Errorf("%v: %+v, %v", c.list, who, err)
		}
	}
}

// unready is an Authenticator that says that it cannot tell.
type unready struct {
	fixed

	err error
}

func (u unready) Ready(context.Context) error { return u.err }

func TestReady(t *testing.T) {
	down := errors.New("down")
	if err := authReady(t.Context(), AnyOf(fixed{}, unready{}, unready{err: down})); !errors.Is(err, down) {
		t.Errorf("one cannot tell: %v", err)
	}
	for _, a := range []Authenticator{nil, fixed{}, AnyOf(), AnyOf(fixed{}, unready{})} {
		if err := authReady(t.Context(), a); err != nil {
			t.Errorf("%v: %v", a, err)
		}
	}
}
