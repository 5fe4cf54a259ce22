package gateway

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/exactjson"
)

// JWTConfig configures which JSON Web Tokens are accepted. Issuer, Audience and at least one
// source of keys are required.
type JWTConfig struct {
	// Issuer is the required value of the claim iss.
	Issuer string
	// Audience is the required value of the claim aud, or one of its values.
	Audience string
	// Secret verifies tokens that are signed with HS256. It has 32 bytes or more. A secret of
	// 48 bytes also verifies HS384, one of 64 bytes HS512. Nil: no secret.
	Secret []byte
	// Previous is the previous secret. Its tokens are accepted until they expire. Nil: none.
	Previous []byte
	// Keys are public keys in PEM, PKIX or certificates: RSA (2048 bits or more), ECDSA or
	// Ed25519. Nil: none.
	Keys []byte
	// JWKS is the URL of the issuer's key set: https, or http of a loopback host. The set is
	// read again every hour, and at most every 10 seconds if a token names a key that is not
	// in it. If it cannot be read, the last set is used for up to 24 hours. Empty: none.
	JWKS string
	// Leeway is how far clocks may differ. Defaults to 30 seconds.
	Leeway time.Duration
	// Client reads the key set. Defaults to a client with a timeout of 5 seconds.
	Client *http.Client
	// Logger receives a warning for each read of a key set with unusable keys. Defaults to none.
	Logger *slog.Logger
}

// defaultLeeway is that of JWTConfig.
const defaultLeeway = 30 * time.Second

// maxLeeway is more than clocks differ.
const maxLeeway = 10 * time.Minute

// JWT is an Authenticator of JSON Web Tokens. The subject is the claim sub. Scopes are in
// the claim scope, words between spaces or an array of them, of which those of other
// programs are passed over; or in the claim bus, {"read": [patterns], "write": [patterns],
// "groups": [patterns]}. The claims sub and exp are required.
//
// A key serves the algorithms of its own type: a token cannot choose. The headers jku, x5u,
// x5c and jwk are not looked at; a token with crit does not count.
type JWT struct {
	parser *jwt.Parser
	leeway time.Duration
	hmac   map[string][][]byte // secrets by algorithm
	public []publicKey
	set    *keySet // nil: none
}

// NewJWT returns an Authenticator for the tokens of one issuer. It reads no key set yet:
// see Ready. The error wraps [jetbus.ErrInvalidOption].
func NewJWT(c JWTConfig) (*JWT, error) {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", jetbus.ErrInvalidOption, fmt.Errorf(format, args...))
	}
	switch {
	case c.Issuer == "" || c.Audience == "":
		return nil, wrong("JWTConfig needs Issuer and Audience")
	case c.Secret == nil && c.Previous != nil:
		return nil, wrong("JWTConfig.Previous needs Secret")
	case c.Secret == nil && c.Keys == nil && c.JWKS == "":
		return nil, wrong("JWTConfig needs Secret, Keys or JWKS")
	case c.Leeway < 0 || c.Leeway > maxLeeway:
		return nil, wrong("JWTConfig.Leeway is %v, use 0 to %v", c.Leeway, maxLeeway)
	}
	j := &JWT{leeway: c.Leeway, hmac: map[string][][]byte{}}
	if j.leeway == 0 {
		j.leeway = defaultLeeway
	}
	for _, secret := range [][]byte{c.Secret, c.Previous} {
		if err := j.addSecret(secret); err != nil {
			return nil, wrong("JWTConfig: %w", err)
		}
	}
	var err error
	if j.public, err = parsePEM(c.Keys); err != nil {
		return nil, wrong("JWTConfig.Keys: %w", err)
	}
	if c.JWKS != "" {
		if j.set, err = newKeySet(c.JWKS, c.Client, c.Logger); err != nil {
			return nil, wrong("JWTConfig.JWKS: %w", err)
		}
	}
	j.parser = jwt.NewParser(
		jwt.WithValidMethods(j.methods()), jwt.WithIssuer(c.Issuer), jwt.WithAudience(c.Audience),
		jwt.WithExpirationRequired(), jwt.WithLeeway(j.leeway), jwt.WithStrictDecoding(), jwt.WithTimeFunc(time.Now),
	)
	return j, nil
}

// hmacBytes are the algorithms of secrets, with how long these must be.
var hmacBytes = map[string]int{"HS256": 32, "HS384": 48, "HS512": 64}

func (j *JWT) addSecret(secret []byte) error {
	if secret == nil {
		return nil
	}
	if least := hmacBytes["HS256"]; len(secret) < least {
		return fmt.Errorf("a secret has %d bytes, use %d or more", len(secret), least)
	}
	for alg, least := range hmacBytes {
		if len(secret) >= least {
			j.hmac[alg] = append(j.hmac[alg], slices.Clone(secret))
		}
	}
	return nil
}

// methods are the algorithms that there can be a key for.
func (j *JWT) methods() []string {
	var out []string
	for alg := range j.hmac {
		out = append(out, alg)
	}
	for _, k := range j.public {
		out = append(out, k.algs...)
	}
	if j.set != nil {
		out = append(out, "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
	}
	return out
}

// Ready returns an error if the key set cannot check any token: it was not read within the last 24
// hours, or has no usable key. The error has the reasons. Ready reads the set if a read is due, and
// returns nil if no key set is configured.
func (j *JWT) Ready(ctx context.Context) error {
	if j.set == nil {
		return nil
	}
	return j.set.ready(ctx)
}

// claims are the claims of a token.
type claims struct {
	jwt.RegisteredClaims

	Scope words      `json:"scope"`
	Bus   *busClaims `json:"bus"`
}

// UnmarshalJSON decodes claims by their exact names and ignores unknown ones (RFC 7519, sections 4
// and 10.1.1). It rejects a claim that is given twice, and times that would overflow a NumericDate
// of package jwt.
func (c *claims) UnmarshalJSON(text []byte) error {
	type plain claims // without this method
	var times struct {
		Expires   date `json:"exp"`
		NotBefore date `json:"nbf"`
		IssuedAt  date `json:"iat"`
	}
	if err := exactjson.Unmarshal(text, &times, exactjson.Ignore); err != nil {
		return err
	}
	return exactjson.Unmarshal(text, (*plain)(c), exactjson.Ignore)
}

// date checks a NumericDate: a number of seconds since 1970, up to the year 9999.
type date struct{}

// maxDate is the last second of the year 9999.
const maxDate = 253402300799

// UnmarshalJSON implements json.Unmarshaler. It only checks the number.
func (date) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	var seconds float64
	if err := json.Unmarshal(text, &seconds); err != nil {
		return err
	}
	if seconds < 0 || seconds > maxDate {
		return errors.New("a time is not between the years 1970 and 9999")
	}
	return nil
}

type busClaims struct {
	Read   []string `json:"read"`
	Write  []string `json:"write"`
	Groups []string `json:"groups"`
}

// words are the claim scope, in either of its forms.
type words []string

// UnmarshalJSON reads a string of words, or an array of them.
func (w *words) UnmarshalJSON(text []byte) error {
	var list []string
	if err := json.Unmarshal(text, &list); err == nil {
		*w = list
		return nil
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return errors.New("the claim scope is neither a string nor an array of strings")
	}
	*w = strings.Fields(s)
	return nil
}

// Authenticate implements [Authenticator].
func (j *JWT) Authenticate(ctx context.Context, token string) (Principal, error) {
	if token == "" || len(token) > maxTokenBytes {
		return Principal{}, ErrBadToken
	}
	var c claims
	var unknown error // the keys could not be read: that is not the token's fault
	_, err := j.parser.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) {
		keys, err := j.keys(ctx, t)
		if err != nil && !errors.Is(err, ErrBadToken) {
			unknown = err
		}
		return keys, err
	})
	switch {
	case unknown != nil:
		return Principal{}, unknown
	case expiredAlone(err):
		return Principal{}, ErrTokenExpired
	case err != nil:
		return Principal{}, fmt.Errorf("%w: %w", ErrBadToken, err)
	}
	who, err := c.principal(j.leeway)
	if err != nil {
		return Principal{}, fmt.Errorf("%w: %w", ErrBadToken, err)
	}
	return who, nil
}

// expiredAlone reports whether a token, well signed, would count if it were younger.
func expiredAlone(err error) bool {
	if !errors.Is(err, jwt.ErrTokenExpired) {
		return false
	}
	for _, other := range []error{jwt.ErrTokenInvalidAudience, jwt.ErrTokenInvalidIssuer, jwt.ErrTokenNotValidYet, jwt.ErrTokenRequiredClaimMissing, jwt.ErrTokenUsedBeforeIssued} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}

// keys are those that may have signed a token.
func (j *JWT) keys(ctx context.Context, t *jwt.Token) (any, error) {
	if _, ok := t.Header["crit"]; ok {
		return nil, fmt.Errorf("%w: it has the header crit", ErrBadToken)
	}
	alg := t.Method.Alg()
	var set jwt.VerificationKeySet
	if secrets, ok := j.hmac[alg]; ok {
		for _, s := range secrets {
			set.Keys = append(set.Keys, s)
		}
		return set, nil
	}
	for _, k := range j.public {
		if slices.Contains(k.algs, alg) {
			set.Keys = append(set.Keys, k.key)
		}
	}
	if j.set == nil || len(set.Keys) > 0 && t.Header["kid"] == nil {
		return set, nil
	}
	kid, ok := t.Header["kid"].(string)
	if t.Header["kid"] != nil && (!ok || kid == "" || len(kid) > maxKidBytes) {
		return nil, fmt.Errorf("%w: its kid is none", ErrBadToken)
	}
	found, err := j.set.find(ctx, kid, alg)
	if err != nil && len(set.Keys) == 0 {
		return nil, err
	}
	for _, key := range found {
		set.Keys = append(set.Keys, key)
	}
	return set, nil
}

// families are in front of the scopes of this package; words without one are of others.
var families = []string{"topic:", "group:", "dlq:", "schema:", "ops:"}

// principal is whom the claims are about.
func (c *claims) principal(leeway time.Duration) (Principal, error) {
	if err := validSubject(c.Subject); err != nil {
		return Principal{}, err
	}
	end := c.ExpiresAt.Time
	var scopes []string
	for _, w := range c.Scope {
		if slices.ContainsFunc(families, func(f string) bool { return strings.HasPrefix(w, f) }) {
			scopes = append(scopes, w)
		}
	}
	if c.Bus != nil {
		for p, patterns := range map[Permission][]string{TopicRead: c.Bus.Read, TopicWrite: c.Bus.Write, GroupJoin: c.Bus.Groups} {
			for _, pattern := range patterns {
				scopes = append(scopes, string(p)+":"+pattern)
			}
		}
	}
	s, err := ParseScopes(c.Subject, scopes...)
	if err != nil {
		return Principal{}, err
	}
	return Principal{Subject: c.Subject, Scopes: s, Expires: end.Add(leeway)}, nil
}

// publicKey is a key with the algorithms that it serves.
type publicKey struct {
	key  crypto.PublicKey
	algs []string
}

// newPublicKey binds a key to its algorithms, if it is strong enough.
func newPublicKey(key crypto.PublicKey) (publicKey, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < 2048 || bits > 16384 {
			return publicKey{}, fmt.Errorf("an RSA key has %d bits, use 2048 to 16384", bits)
		}
		return publicKey{k, []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}}, nil
	case *ecdsa.PublicKey:
		alg, ok := map[string]string{"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}[k.Curve.Params().Name]
		if !ok {
			return publicKey{}, fmt.Errorf("no algorithm has keys of the curve %s", k.Curve.Params().Name)
		}
		return publicKey{k, []string{alg}}, nil
	case ed25519.PublicKey:
		return publicKey{k, []string{"EdDSA"}}, nil
	}
	return publicKey{}, fmt.Errorf("a key is %T, use RSA, ECDSA or Ed25519", key)
}

// parsePEM reads public keys.
func parsePEM(text []byte) ([]publicKey, error) {
	var out []publicKey
	for len(strings.TrimSpace(string(text))) > 0 {
		block, rest := pem.Decode(text)
		if block == nil {
			return nil, errors.New("it has something that is no PEM")
		}
		text = rest
		var key crypto.PublicKey
		var err error
		switch block.Type {
		case "PUBLIC KEY":
			key, err = x509.ParsePKIXPublicKey(block.Bytes)
		case "CERTIFICATE":
			var cert *x509.Certificate
			if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
				key = cert.PublicKey
			}
		default:
			return nil, fmt.Errorf("it has a %q, use PUBLIC KEY or CERTIFICATE", block.Type)
		}
		if err != nil {
			return nil, err
		}
		k, err := newPublicKey(key)
		if err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, nil
}
