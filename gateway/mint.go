package gateway

import (
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/seed-63e9a637/jetbus"
)

// MintOptions say what a token says. All are required.
type MintOptions struct {
	Secret   []byte // 32 bytes or more: JWTConfig.Secret
	Issuer   string // JWTConfig.Issuer
	Audience string // JWTConfig.Audience
	Subject  string
	Scopes   []string // see ParseScopes
	TTL      time.Duration
}

// maxMintTTL bounds tokens that nobody can revoke.
const maxMintTTL = 366 * 24 * time.Hour

// Mint makes a token for development and tests, signed with HS256, that a [JWT] with the same
// secret takes. In production tokens are an identity provider's. The error wraps
// [jetbus.ErrInvalidOption] or [ErrInvalidScope].
func Mint(o MintOptions) (string, error) {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", jetbus.ErrInvalidOption, fmt.Errorf(format, args...))
	}
	switch least := hmacBytes["HS256"]; {
	case len(o.Secret) < least:
		return "", wrong("the secret has %d bytes, use %d or more", len(o.Secret), least)
	case o.Issuer == "" || o.Audience == "":
		return "", wrong("a token needs an issuer and an audience")
	case len(o.Scopes) == 0:
		return "", wrong("a token without scopes allows nothing")
	case o.TTL < time.Second || o.TTL > maxMintTTL:
		return "", wrong("the token's time is %v, use 1s to %v", o.TTL, maxMintTTL)
	}
	if err := validSubject(o.Subject); err != nil {
		return "", wrong("%w", err)
	}
	if _, err := ParseScopes(o.Subject, o.Scopes...); err != nil {
		return "", err
	}
	now := time.Now()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": o.Issuer, "aud": o.Audience, "sub": o.Subject, "scope": strings.Join(o.Scopes, " "),
		"iat": now.Unix(), "exp": now.Add(o.TTL).Unix(),
	}).SignedString(o.Secret)
	if err != nil {
		return "", fmt.Errorf("sign the token: %w", err)
	}
	if len(token) > maxTokenBytes {
		return "", wrong("the token has %d bytes, at most %d are allowed: use fewer scopes", len(token), maxTokenBytes)
	}
	return token, nil
}
