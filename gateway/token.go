package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/exactjson"
)

// Token is a token that does not change, and what it stands for. Token or SHA256 is
// required, and so are Subject and Scopes.
type Token struct {
	// Token is the token: 16 bytes or more, and best 32 random ones. It is not kept.
	Token string `json:"token,omitempty"`
	// SHA256 stands for the token: the hash of it, 64 hexadecimal digits.
	SHA256 string `json:"sha256,omitempty"`
	// Subject names who uses it; see Principal.
	Subject string `json:"subject"`
	// Scopes are what it allows; see [ParseScopes].
	Scopes []string `json:"scopes"`
	// Expires is when it ends. Zero: never.
	Expires time.Time `json:"expires,omitzero"`
}

// Bounds of static tokens.
const (
	minTokenBytes   = 16
	maxStatic       = 10_000
	maxSubjectBytes = 200
	maxTokensFile   = 16 << 20
)

type staticToken struct {
	hash [sha256.Size]byte
	who  Principal
}

type staticTokens []staticToken

// StaticTokens returns an Authenticator for tokens that do not change. It keeps their
// hashes, and compares in the same time whether a token is one of them or not. The error
// wraps [jetbus.ErrInvalidOption] or [ErrInvalidScope], and names a token by its subject.
func StaticTokens(tokens ...Token) (Authenticator, error) {
	if len(tokens) > maxStatic {
		return nil, fmt.Errorf("%w: %d tokens, at most %d are allowed", jetbus.ErrInvalidOption, len(tokens), maxStatic)
	}
	out := make(staticTokens, 0, len(tokens))
	known := map[[sha256.Size]byte]string{}
	for i, t := range tokens {
		s, err := t.static()
		if err != nil {
			return nil, fmt.Errorf("token %d (%.100q): %w", i+1, t.Subject, err)
		}
		if other, ok := known[s.hash]; ok {
			return nil, fmt.Errorf("%w: %.100q and %.100q have the same token", jetbus.ErrInvalidOption, other, t.Subject)
		}
		known[s.hash] = t.Subject
		out = append(out, s)
	}
	return out, nil
}

func (t Token) static() (staticToken, error) {
	s := staticToken{who: Principal{Subject: t.Subject, Expires: t.Expires}}
	if err := validSubject(t.Subject); err != nil {
		return s, fmt.Errorf("%w: %w", jetbus.ErrInvalidOption, err)
	}
	switch {
	case (t.Token == "") == (t.SHA256 == ""):
		return s, fmt.Errorf("%w: it needs token or sha256, and not both", jetbus.ErrInvalidOption)
	case t.Token != "" && (len(t.Token) < minTokenBytes || len(t.Token) > maxTokenBytes):
		return s, fmt.Errorf("%w: it has %d bytes, use %d to %d", jetbus.ErrInvalidOption, len(t.Token), minTokenBytes, maxTokenBytes)
	case t.Token != "" && strings.TrimSpace(t.Token) != t.Token:
		return s, fmt.Errorf("%w: it begins or ends with a space", jetbus.ErrInvalidOption)
	case t.Token != "":
		s.hash = sha256.Sum256([]byte(t.Token))
	default:
		sum, err := hex.DecodeString(t.SHA256)
		if err != nil || len(sum) != sha256.Size {
			return s, fmt.Errorf("%w: sha256 is not %d hexadecimal digits", jetbus.ErrInvalidOption, 2*sha256.Size)
		}
		copy(s.hash[:], sum)
	}
	var err error
	s.who.Scopes, err = ParseScopes(t.Subject, t.Scopes...)
	return s, err
}

// Authenticate implements [Authenticator].
func (s staticTokens) Authenticate(_ context.Context, token string) (Principal, error) {
	hash := sha256.Sum256([]byte(token))
	found := -1
	for i := range s {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(hash[:], s[i].hash[:]), i, found)
	}
	if found < 0 {
		return Principal{}, ErrBadToken
	}
	who := s[found].who
	if !who.Expires.IsZero() && !time.Now().Before(who.Expires) {
		return Principal{}, ErrTokenExpired
	}
	return who, nil
}

// ReadTokens reads a file of static tokens: a JSON array of [Token]. A member that is unknown,
// differs from a known one in case, or is given twice is an error. So a misspelled "expires"
// cannot create a token that never expires. The error does not show any text of the file.
func ReadTokens(r io.Reader) ([]Token, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxTokensFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the tokens: %w", err)
	}
	if len(text) > maxTokensFile {
		return nil, fmt.Errorf("%w: the tokens have more than %d bytes", jetbus.ErrInvalidOption, maxTokensFile)
	}
	var out []Token
	if err := exactjson.Unmarshal(text, &out, exactjson.RefuseAll); err != nil {
		return nil, fmt.Errorf("%w: the tokens are not a JSON array of {\"token\" or \"sha256\", \"subject\", \"scopes\", \"expires\"}%s", jetbus.ErrInvalidOption, place(err))
	}
	return out, nil
}

// place returns the position of a JSON error, without showing any of the text.
func place(err error) string {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf(", at byte %d", e.Offset)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Sprintf(", at byte %d", e.Offset)
	}
	if e, ok := errors.AsType[*exactjson.MemberError](err); ok {
		return fmt.Sprintf(", at byte %d", e.Offset)
	}
	return ""
}

// validSubject reports what keeps a subject from being one.
func validSubject(subject string) error {
	switch {
	case subject == "":
		return errors.New("there is no subject")
	case len(subject) > maxSubjectBytes:
		return fmt.Errorf("the subject has %d bytes, at most %d are allowed", len(subject), maxSubjectBytes)
	case jetbus.ValidKey(subject) != nil:
		return errors.New("the subject has control characters, or is no UTF-8")
	}
	return nil
}

type anyOf []Authenticator

// AnyOf returns an Authenticator that asks several, in their order. The first one that
// knows the token decides; where one cannot tell at the moment and no other knows the
// token, that is the answer.
func AnyOf(list ...Authenticator) Authenticator { return anyOf(list) }

// Authenticate implements [Authenticator].
func (l anyOf) Authenticate(ctx context.Context, token string) (Principal, error) {
	answer := ErrBadToken
	for _, a := range l {
		who, err := a.Authenticate(ctx, token)
		switch {
		case err == nil:
			return who, nil
		case errors.Is(err, ErrBadToken):
		case errors.Is(answer, ErrBadToken), errors.Is(err, ErrTokenExpired):
			answer = err
		}
	}
	return Principal{}, answer
}

// Ready returns why those of the list that can say so cannot tell at the moment.
func (l anyOf) Ready(ctx context.Context) error {
	var errs []error
	for _, a := range l {
		errs = append(errs, authReady(ctx, a))
	}
	return errors.Join(errs...)
}

// authReady returns why an Authenticator cannot tell at the moment, if it can say so by a method
// Ready, as [JWT] does.
func authReady(ctx context.Context, a Authenticator) error {
	if r, ok := a.(interface{ Ready(context.Context) error }); ok {
		return r.Ready(ctx)
	}
	return nil
}
