package gateway

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/seed-63e9a637/jetbus"
)

const (
	issuer   = "https://id.example.com"
	audience = "jetbus"
)

var (
	secret   = bytes.Repeat([]byte("s"), 32)
	previous = bytes.Repeat([]byte("p"), 32)
)

// pairs are key pairs that tests share, since RSA keys take long to make.
var pairs = sync.OnceValue(func() (p struct {
	rsa *rsa.PrivateKey
	ec  *ecdsa.PrivateKey
	ed  ed25519.PrivateKey
},
) {
	p.rsa, _ = rsa.GenerateKey(rand.Reader, 2048)
	p.ec, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, p.ed, _ = ed25519.GenerateKey(rand.Reader)
	return p
})

// good are claims that count.
func good() jwt.MapClaims {
	return jwt.MapClaims{
		"iss": issuer, "aud": audience, "sub": "ann", "scope": "topic:read:orders openid",
		"exp": time.Now().Add(time.Hour).Unix(),
	}
}

// with returns the claims with one changed; nil removes it.
func with(name string, v any) jwt.MapClaims {
	c := good()
	if c[name] = v; v == nil {
		delete(c, name)
	}
	return c
}

// inLetters returns the claims with one under a name that differs from its own in case alone.
func inLetters(name string, v any) jwt.MapClaims {
	c := with(strings.ToLower(name), nil)
	c[name] = v
	return c
}

func sign(t *testing.T, m jwt.SigningMethod, key any, c jwt.MapClaims, header map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(m, c)
	maps.Copy(token.Header, header)
	s, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newTestJWT(t *testing.T, c JWTConfig) *JWT {
	t.Helper()
	c.Issuer, c.Audience = issuer, audience
	j, err := NewJWT(c)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func publicPEM(t *testing.T, keys ...crypto.PublicKey) []byte {
	t.Helper()
	var out []byte
	for _, k := range keys {
		der, err := x509.MarshalPKIXPublicKey(k)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})...)
	}
	return out
}

func TestJWTCounts(t *testing.T) {
	p := pairs()
	j := newTestJWT(t, JWTConfig{Secret: secret, Previous: previous, Keys: publicPEM(t, &p.rsa.PublicKey, &p.ec.PublicKey, p.ed.Public())})
	for name, token := range map[string]string{
		"secret":      sign(t, jwt.SigningMethodHS256, secret, good(), nil),
		"previous":    sign(t, jwt.SigningMethodHS256, previous, good(), nil),
		"RSA":         sign(t, jwt.SigningMethodRS256, p.rsa, good(), nil),
		"RSA-PSS":     sign(t, jwt.SigningMethodPS384, p.rsa, good(), nil),
		"ECDSA":       sign(t, jwt.SigningMethodES256, p.ec, good(), nil),
		"EdDSA":       sign(t, jwt.SigningMethodEdDSA, p.ed, good(), nil),
		"audiences":   sign(t, jwt.SigningMethodHS256, secret, with("aud", []string{"other", audience}), nil),
		"scope array": sign(t, jwt.SigningMethodHS256, secret, with("scope", []string{"topic:read:orders"}), nil),
		"bus claim": sign(t, jwt.SigningMethodHS256, secret, func() jwt.MapClaims {
			c := with("scope", nil)
			c["bus"] = map[string]any{"read": []string{"orders"}}
			return c
		}(), nil),
		"leeway":      sign(t, jwt.SigningMethodHS256, secret, with("exp", time.Now().Add(-20*time.Second).Unix()), nil),
		"foreign jku": sign(t, jwt.SigningMethodHS256, secret, good(), map[string]any{"jku": "http://127.0.0.1:1/", "x5u": "http://127.0.0.1:1/", "jwk": map[string]any{"kty": "oct"}}),
	} {
		who, err := j.Authenticate(t.Context(), token)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if who.Subject != "ann" || !who.Scopes.Allow(TopicRead, "orders") || who.Scopes.Allow(TopicRead, "other") || who.Scopes.Allow(TopicWrite, "orders") {
			t.Errorf("%s: %+v", name, who)
		}
		if who.Expires.IsZero() || !who.Expires.After(time.Now()) {
			t.Errorf("%s: expires %v", name, who.Expires)
		}
	}
}

// Claims in other letters are unknown claims: they are ignored, whatever they are.
func TestJWTIgnoresUnknownClaims(t *testing.T) {
	j := newTestJWT(t, JWTConfig{Secret: secret})
	c := good()
	maps.Copy(c, map[string]any{
		"SCOPE": "ops:admin", "Scope": map[string]any{"a": 1}, "Bus": map[string]any{"write": []string{">"}}, "SUB": "eve", "EXP": "never", "AUD": 7,
		"NBF": math.MaxInt64, "future": []any{nil, map[string]any{"sub": "eve"}}, "bus": map[string]any{"WRITE": []string{">"}, "Read": 1},
	})
	who, err := j.Authenticate(t.Context(), sign(t, jwt.SigningMethodHS256, secret, c, nil))
	if err != nil || who.Subject != "ann" || !who.Scopes.Allow(TopicRead, "orders") || who.Scopes.Allow(TopicWrite, "orders") || who.Scopes.Allow(OpsAdmin, "") {
		t.Errorf("%+v, %v", who, err)
	}
}

func TestJWTRefuses(t *testing.T) {
	p := pairs()
	text := publicPEM(t, &p.rsa.PublicKey, &p.ec.PublicKey, p.ed.Public())
	j := newTestJWT(t, JWTConfig{Secret: secret, Keys: text})
	onlyKeys := newTestJWT(t, JWTConfig{Keys: text})
	hs := func(c jwt.MapClaims) string { return sign(t, jwt.SigningMethodHS256, secret, c, nil) }
	raw := func(payload string) string { // signed as it is
		text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
		mac, err := jwt.SigningMethodHS256.Sign(text, secret)
		if err != nil {
			t.Fatal(err)
		}
		return text + "." + base64.RawURLEncoding.EncodeToString(mac)
	}
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	fine := hs(good())
	other, _ := rsa.GenerateKey(rand.Reader, 2048)
	parts := strings.Split(fine, ".")
	for _, c := range []struct {
		name, token string
		want        error
	}{
		{"empty", "", ErrBadToken},
		{"dots", strings.Repeat(".", 9<<10), ErrBadToken},
		{"few dots", "..", ErrBadToken},
		{"too long", fine + strings.Repeat("A", maxTokenBytes), ErrBadToken},
		{"four parts", fine + ".a", ErrBadToken},
		{"JWE", part(`{"alg":"dir","enc":"A256GCM"}`) + "....", ErrBadToken},
		{"none", sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, good(), nil), ErrBadToken},
		{"None", part(`{"alg":"None"}`) + "." + parts[1] + ".", ErrBadToken},
		{"no alg", part(`{}`) + "." + parts[1] + "." + parts[2], ErrBadToken},
		{"alg is a number", part(`{"alg":1}`) + "." + parts[1] + "." + parts[2], ErrBadToken},
		{"header is null", part(`null`) + "." + parts[1] + "." + parts[2], ErrBadToken},
		{"header is deep", part(strings.Repeat("[", 5000)) + "." + parts[1] + "." + parts[2], ErrBadToken},
		{"no signature", parts[0] + "." + parts[1] + ".", ErrBadToken},
		{"padded", fine + "=", ErrBadToken},
		{"other payload", parts[0] + "." + part(`{"sub":"eve"}`) + "." + parts[2], ErrBadToken},
		{"other secret", sign(t, jwt.SigningMethodHS256, previous, good(), nil), ErrBadToken},
		{"other RSA key", sign(t, jwt.SigningMethodRS256, other, good(), nil), ErrBadToken},
		{"HS512 with a secret that is too short for it", sign(t, jwt.SigningMethodHS512, secret, good(), nil), ErrBadToken},
		{"HS with the RSA key's text", sign(t, jwt.SigningMethodHS256, publicPEM(t, &p.rsa.PublicKey), good(), nil), ErrBadToken},
		{"HS with all keys' text", sign(t, jwt.SigningMethodHS256, text, good(), nil), ErrBadToken},
		{"crit", sign(t, jwt.SigningMethodHS256, secret, good(), map[string]any{"crit": []string{"exp"}}), ErrBadToken},
		{"no exp", hs(with("exp", nil)), ErrBadToken},
		{"exp is text", hs(with("exp", "tomorrow")), ErrBadToken},
		{"exp is huge", hs(with("exp", 1e18)), ErrBadToken},
		{"exp in other letters", hs(inLetters("EXP", time.Now().Add(time.Hour).Unix())), ErrBadToken},
		{"iss in other letters", hs(inLetters("Iss", issuer)), ErrBadToken},
		{"aud in other letters", hs(inLetters("AUD", audience)), ErrBadToken},
		{"sub in other letters", hs(inLetters("SUB", "ann")), ErrBadToken},
		{"sub twice", raw(fmt.Sprintf(`{"iss":%q,"aud":%q,"exp":%d,"sub":"ann","sub":"eve"}`, issuer, audience, time.Now().Add(time.Hour).Unix())), ErrBadToken},
		{"exp beyond int64", raw(fmt.Sprintf(`{"iss":%q,"aud":%q,"sub":"ann","exp":1e300}`, issuer, audience)), ErrBadToken},
		{"exp is quoted", hs(with("exp", "9999999999")), ErrBadToken},
		{"nbf is the largest int64", hs(with("nbf", int64(math.MaxInt64))), ErrBadToken},
		{"nbf beyond int64", hs(with("nbf", 1e300)), ErrBadToken},
		{"nbf is the year 10000", hs(with("nbf", 253402300800)), ErrBadToken},
		{"nbf before 1970", hs(with("nbf", -1e300)), ErrBadToken},
		{"iat is the largest int64", hs(with("iat", int64(math.MaxInt64))), ErrBadToken},
		{"iat beyond int64", hs(with("iat", 1e300)), ErrBadToken},
		{"iat is text", hs(with("iat", "now")), ErrBadToken},
		{"expired", hs(with("exp", time.Now().Add(-time.Minute).Unix())), ErrTokenExpired},
		{"expired, of another issuer", hs(func() jwt.MapClaims { c := with("iss", "x"); c["exp"] = 1; return c }()), ErrBadToken},
		{"not yet", hs(with("nbf", time.Now().Add(time.Hour).Unix())), ErrBadToken},
		{"no issuer", hs(with("iss", nil)), ErrBadToken},
		{"other issuer", hs(with("iss", issuer+"/")), ErrBadToken},
		{"no audience", hs(with("aud", nil)), ErrBadToken},
		{"other audience", hs(with("aud", "jetbus2")), ErrBadToken},
		{"no subject", hs(with("sub", nil)), ErrBadToken},
		{"subject with a line end", hs(with("sub", "ann\n")), ErrBadToken},
		{"long subject", hs(with("sub", strings.Repeat("a", maxSubjectBytes+1))), ErrBadToken},
		{"scope is a number", hs(with("scope", 1)), ErrBadToken},
		{"scope without pattern", hs(with("scope", "topic:read")), ErrBadToken},
		{"subject in a pattern", hs(func() jwt.MapClaims { c := with("sub", "a.>"); c["scope"] = "topic:read:u.{sub}"; return c }()), ErrBadToken},
		{"claims are null", part(`{"alg":"HS256"}`) + "." + part("null") + "." + parts[2], ErrBadToken},
	} {
		who, err := j.Authenticate(t.Context(), c.token)
		if !errors.Is(err, c.want) || who.Subject != "" || who.Scopes.Allow(TopicRead, "orders") {
			t.Errorf("%s: %+v, %v", c.name, who, err)
		}
		if errors.Is(c.want, ErrBadToken) && errors.Is(err, ErrTokenExpired) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := onlyKeys.Authenticate(t.Context(), fine); !errors.Is(err, ErrBadToken) {
		t.Errorf("HS256 without a secret: %v", err)
	}
}

func TestNewJWTRefuses(t *testing.T) {
	weak, _ := rsa.GenerateKey(rand.Reader, 1024)
	curve, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	for name, c := range map[string]JWTConfig{
		"nothing":               {},
		"no keys":               {Issuer: issuer, Audience: audience},
		"no audience":           {Issuer: issuer, Secret: secret},
		"short secret":          {Issuer: issuer, Audience: audience, Secret: secret[:31]},
		"short previous secret": {Issuer: issuer, Audience: audience, Secret: secret, Previous: []byte("x")},
		"previous alone":        {Issuer: issuer, Audience: audience, Previous: secret, JWKS: "https://a"},
		"no PEM":                {Issuer: issuer, Audience: audience, Keys: []byte("x")},
		"private key":           {Issuer: issuer, Audience: audience, Keys: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte{1}})},
		"weak RSA":              {Issuer: issuer, Audience: audience, Keys: publicPEM(t, &weak.PublicKey)},
		"other curve":           {Issuer: issuer, Audience: audience, Keys: publicPEM(t, &curve.PublicKey)},
		"leeway":                {Issuer: issuer, Audience: audience, Secret: secret, Leeway: time.Hour},
		"http":                  {Issuer: issuer, Audience: audience, JWKS: "http://id.example.com/keys"},
		"file":                  {Issuer: issuer, Audience: audience, JWKS: "file:///etc/passwd"},
		"user":                  {Issuer: issuer, Audience: audience, JWKS: "https://a:b@id.example.com"},
	} {
		if j, err := NewJWT(c); !errors.Is(err, jetbus.ErrInvalidOption) || j != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// keyServer answers with a key set, and counts how often.
type keyServer struct {
	mu     sync.Mutex
	body   string
	status int
	reads  atomic.Int64
	hold   chan struct{} // nil: answer at once
}

func (s *keyServer) set(status int, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.body = status, body
}

// RoundTrip is the server without a network.
func (s *keyServer) RoundTrip(*http.Request) (*http.Response, error) {
	s.reads.Add(1)
	if s.hold != nil {
		<-s.hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := httptest.NewRecorder()
	w.WriteHeader(s.status)
	_, _ = w.WriteString(s.body)
	return w.Result(), nil
}

// jwk is a public key as JSON, with more members.
func jwk(key crypto.PublicKey, more map[string]any) map[string]any {
	b64 := base64.RawURLEncoding.EncodeToString
	m := map[string]any{}
	switch k := key.(type) {
	case *rsa.PublicKey:
		m["kty"], m["n"], m["e"] = "RSA", b64(k.N.Bytes()), b64(big.NewInt(int64(k.E)).Bytes())
	case *ecdsa.PublicKey:
		raw, _ := k.Bytes()
		m["kty"], m["crv"], m["x"], m["y"] = "EC", "P-256", b64(raw[1:33]), b64(raw[33:])
	case ed25519.PublicKey:
		m["kty"], m["crv"], m["x"] = "OKP", "Ed25519", b64(k)
	}
	maps.Copy(m, more)
	return m
}

func keySetOf(keys ...map[string]any) string {
	text, _ := json.Marshal(map[string]any{"keys": keys})
	return string(text)
}

func TestJWKSKeys(t *testing.T) {
	p := pairs()
	s := &keyServer{status: 200, body: keySetOf(
		jwk(&p.rsa.PublicKey, map[string]any{"kid": "r", "alg": "RS256", "use": "sig"}),
		jwk(&p.ec.PublicKey, map[string]any{"kid": "e"}),
		jwk(p.ed.Public().(ed25519.PublicKey), map[string]any{"kid": "d", "key_ops": []string{"verify"}}),
		jwk(p.ed.Public().(ed25519.PublicKey), map[string]any{"kid": "d2", "alg": "Ed25519"}),
		jwk(&p.rsa.PublicKey, map[string]any{"kid": "enc", "use": "enc"}),
		jwk(&p.rsa.PublicKey, map[string]any{"kid": "ops", "key_ops": []string{"encrypt"}}),
		map[string]any{"kty": "oct", "kid": "o", "k": base64.RawURLEncoding.EncodeToString(secret)},
		map[string]any{"kty": "RSA", "kid": "weak", "n": "AQAB", "e": "AQAB"},
		map[string]any{"kty": "EC", "kid": "off", "crv": "P-256", "x": strings.Repeat("A", 43), "y": strings.Repeat("A", 43)},
		map[string]any{"kty": 1, "kid": "odd"},
	)}
	j := newTestJWT(t, JWTConfig{JWKS: "https://id.example.com/keys", Client: &http.Client{Transport: s}})
	if err := j.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	kid := func(k any) map[string]any { return map[string]any{"kid": k} }
	for name, token := range map[string]string{
		"RSA":            sign(t, jwt.SigningMethodRS256, p.rsa, good(), kid("r")),
		"ECDSA":          sign(t, jwt.SigningMethodES256, p.ec, good(), kid("e")),
		"EdDSA":          sign(t, jwt.SigningMethodEdDSA, p.ed, good(), kid("d")),
		"Ed25519":        sign(t, jwt.SigningMethodEdDSA, p.ed, good(), kid("d2")),
		"one of its alg": sign(t, jwt.SigningMethodES256, p.ec, good(), nil),
	} {
		if _, err := j.Authenticate(t.Context(), token); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, token := range map[string]string{
		"another alg than the key's": sign(t, jwt.SigningMethodRS512, p.rsa, good(), kid("r")),
		"another key":                sign(t, jwt.SigningMethodES256, p.ec, good(), kid("r")),
		"for encryption":             sign(t, jwt.SigningMethodRS256, p.rsa, good(), kid("enc")),
		"key_ops":                    sign(t, jwt.SigningMethodRS256, p.rsa, good(), kid("ops")),
		"a secret of the set":        sign(t, jwt.SigningMethodHS256, secret, good(), kid("o")),
		"HS with the key's text":     sign(t, jwt.SigningMethodHS256, publicPEM(t, &p.rsa.PublicKey), good(), kid("r")),
		"kid is a number":            sign(t, jwt.SigningMethodRS256, p.rsa, good(), kid(7)),
		"kid is empty":               sign(t, jwt.SigningMethodRS256, p.rsa, good(), kid("")),
		"kid is a path":              sign(t, jwt.SigningMethodRS256, p.rsa, good(), kid("../../etc/passwd")),
		"off the curve":              sign(t, jwt.SigningMethodES256, p.ec, good(), kid("off")),
	} {
		if _, err := j.Authenticate(t.Context(), token); !errors.Is(err, ErrBadToken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Keys of a set that cannot be used are counted, with the reason; padding does no harm.
func TestJWKSSkippedKeys(t *testing.T) {
	p := pairs()
	ec := func(more map[string]any) map[string]any { return jwk(&p.ec.PublicKey, more) }
	x := ec(nil)["x"].(string)
	raw, _ := base64.RawURLEncoding.DecodeString(x)
	for name, c := range map[string]struct {
		key  map[string]any
		want string
	}{
		"+ in base64":          {ec(map[string]any{"x": "+" + x[1:]}), "x is base64, not base64url"},
		"/ in base64":          {ec(map[string]any{"y": "/" + x[1:]}), "y is base64, not base64url"},
		"no base64":            {ec(map[string]any{"x": "*"}), "x is not base64url"},
		"no coordinate":        {ec(map[string]any{"y": nil}), "y is missing"},
		"numeric kid":          {ec(map[string]any{"kid": 7}), "kid"},
		"leading zero":         {ec(map[string]any{"x": base64.RawURLEncoding.EncodeToString(raw[1:])}), "x and y have 31 and 32 bytes, P-256 needs 32"},
		"curve":                {ec(map[string]any{"crv": "secp256k1"}), `the curve "secp256k1" is not supported`},
		"secret":               {map[string]any{"kty": "oct", "k": "AAAA"}, `keys of type "oct" are not supported`},
		"exponent":             {jwk(&p.rsa.PublicKey, map[string]any{"e": "Ag"}), "e is not an odd number"},
		"alg of RSA":           {ec(map[string]any{"alg": "RS256"}), `alg is "RS256", a key of this type and curve is for ES256`},
		"alg of another curve": {ec(map[string]any{"alg": "ES384"}), `alg is "ES384", a key of this type and curve is for ES256`},
		"alg in other case":    {jwk(&p.rsa.PublicKey, map[string]any{"alg": "rs256"}), `alg is "rs256", a key of this type and curve is for RS256, `},
		"alg for encryption":   {jwk(&p.rsa.PublicKey, map[string]any{"alg": "RSA-OAEP"}), `alg is "RSA-OAEP"`},
		"use in other case":    {ec(map[string]any{"use": "SIG"}), `use is "SIG", not "sig"`},
		"other operations":     {ec(map[string]any{"key_ops": []string{"sign"}}), `key_ops has no "verify"`},
		"no operations":        {ec(map[string]any{"key_ops": []string{}}), `key_ops has no "verify"`},
		"names in other case":  {map[string]any{"KTY": "EC", "crv": "P-256"}, `keys of type "" are not supported`},
	} {
		var log bytes.Buffer
		s := &keyServer{status: 200, body: keySetOf(c.key)}
		j := newTestJWT(t, JWTConfig{JWKS: "https://id.example.com/keys", Client: &http.Client{Transport: s}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err := j.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "no usable key: 1 skipped: key 1 (kid ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.Contains(log.String(), "usable=0") || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%s: the log has %q", name, log.String())
		}
	}

	var log bytes.Buffer
	s := &keyServer{status: 200, body: keySetOf(ec(map[string]any{"kid": "padded", "x": x + "="}), ec(map[string]any{"kid": 7}), ec(map[string]any{"use": "enc"}))}
	j := newTestJWT(t, JWTConfig{JWKS: "https://id.example.com/keys", Client: &http.Client{Transport: s}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err := j.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := j.Authenticate(t.Context(), sign(t, jwt.SigningMethodES256, p.ec, good(), map[string]any{"kid": "padded"})); err != nil {
		t.Errorf("a key with padding: %v", err)
	}
	if !strings.Contains(log.String(), "usable=1") || !strings.Contains(log.String(), "1 skipped: key 2") {
		t.Errorf("the log has %q", log.String())
	}

	empty := newTestJWT(t, JWTConfig{JWKS: "https://id.example.com/keys", Client: &http.Client{Transport: &keyServer{status: 200, body: `{"keys":[]}`}}})
	if err := empty.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "no usable key: 0 skipped") {
		t.Errorf("an empty set: %v", err)
	}
}

func TestJWKSUnknownKids(t *testing.T) {
	p := pairs()
	synctest.Test(t, func(t *testing.T) {
		s := &keyServer{status: 200, body: keySetOf(jwk(&p.ec.PublicKey, map[string]any{"kid": "a"})), hold: make(chan struct{})}
		j := newTestJWT(t, JWTConfig{JWKS: "https://id.example.com/keys", Client: &http.Client{Transport: s}})
		try := func(kid string) error {
			_, err := j.Authenticate(context.Background(), sign(t, jwt.SigningMethodES256, p.ec, good(), map[string]any{"kid": kid}))
			return err
		}
		// All who come while the first read is under way wait for that one.
		var wg sync.WaitGroup
		var failed atomic.Int64
		for i := range 100 {
			wg.Go(func() {
				if err := try([]string{"a", fmt.Sprintf("no%d", i)}[i%2]); (err == nil) != (i%2 == 0) {
					failed.Add(1)
				}
			})
		}
		synctest.Wait()
		close(s.hold)
		wg.Wait()
		if n := s.reads.Load(); n != 1 || failed.Load() > 0 {
			t.Fatalf("%d reads, %d wrong answers", n, failed.Load())
		}
		// A flood of kids that nobody knows costs one read in 10 seconds.
		for i := range 300 {
			if err := try(fmt.Sprintf("x%d", i)); !errors.Is(err, ErrBadToken) {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := s.reads.Load(); n < 3 || n > 4 {
			t.Errorf("%d reads in 30 seconds", n)
		}
		// A kid that was not there is not looked for again for a minute, then it is.
		time.Sleep(time.Minute)
		_ = try("b")
		before := s.reads.Load()
		s.set(200, keySetOf(jwk(&p.ec.PublicKey, map[string]any{"kid": "b"})))
		time.Sleep(15 * time.Second)
		if err := try("b"); !errors.Is(err, ErrBadToken) || s.reads.Load() != before {
			t.Errorf("looked for again: %v", err)
		}
		time.Sleep(time.Minute)
		if err := try("b"); err != nil {
			t.Errorf("a new key: %v", err)
		}
		if err := try("a"); !errors.Is(err, ErrBadToken) {
			t.Errorf("a key that was withdrawn: %v", err)
		}
	})
}

func TestJWKSStale(t *testing.T) {
	p := pairs()
	synctest.Test(t, func(t *testing.T) {
		s := &keyServer{status: 500}
		j := newTestJWT(t, JWTConfig{JWKS: "https://id.example.com/keys", Client: &http.Client{Transport: s}})
		try := func() error {
			_, err := j.Authenticate(context.Background(), sign(t, jwt.SigningMethodES256, p.ec, good(), map[string]any{"kid": "a"}))
			return err
		}
		if err := try(); err == nil || errors.Is(err, ErrBadToken) || j.Ready(context.Background()) == nil {
			t.Errorf("without keys: %v", err)
		}
		s.set(200, keySetOf(jwk(&p.ec.PublicKey, map[string]any{"kid": "a"})))
		time.Sleep(keySetSpacing)
		if err := try(); err != nil {
			t.Fatal(err)
		}
		for _, broken := range []string{"", "{}", `{"keys":null}`, `[]`, `{"keys":[` + strings.Repeat(`{},`, maxSetKeys) + `{}]}`, strings.Repeat(" ", keySetBytes+1)} {
			s.set(200, broken)
			before := s.reads.Load()
			time.Sleep(2 * keySetRefresh)
			if err := try(); err != nil || s.reads.Load() != before+1 {
				t.Errorf("after %.20q: %v, %d reads", broken, err, s.reads.Load()-before)
			}
		}
		time.Sleep(keySetStale)
		if err := try(); err == nil || errors.Is(err, ErrBadToken) {
			t.Errorf("after a day: %v", err)
		}
	})
}

func TestJWKSRedirect(t *testing.T) {
	from := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://id.example.com/keys", http.StatusFound)
	}))
	defer from.Close()
	defer http.DefaultClient.CloseIdleConnections()
	j := newTestJWT(t, JWTConfig{JWKS: from.URL})
	if err := j.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "redirected") {
		t.Errorf("redirected to http: %v", err)
	}
}

func TestMint(t *testing.T) {
	o := MintOptions{Secret: secret, Issuer: issuer, Audience: audience, Subject: "ann", Scopes: []string{"topic:read:u.{sub}.>"}, TTL: time.Minute}
	token, err := Mint(o)
	if err != nil {
		t.Fatal(err)
	}
	who, err := newTestJWT(t, JWTConfig{Secret: secret}).Authenticate(t.Context(), token)
	if err != nil || who.Subject != "ann" || !who.Scopes.Allow(TopicRead, "u.ann.x") || who.Scopes.Allow(TopicRead, "u.bob.x") {
		t.Errorf("%+v, %v", who, err)
	}
	for name, change := range map[string]func(*MintOptions){
		"secret":   func(o *MintOptions) { o.Secret = secret[1:] },
		"issuer":   func(o *MintOptions) { o.Issuer = "" },
		"audience": func(o *MintOptions) { o.Audience = "" },
		"subject":  func(o *MintOptions) { o.Subject = "" },
		"scopes":   func(o *MintOptions) { o.Scopes = nil },
		"ttl":      func(o *MintOptions) { o.TTL = 0 },
		"long":     func(o *MintOptions) { o.TTL = 2 * maxMintTTL },
		"size": func(o *MintOptions) {
			for range maxScopes {
				o.Scopes = append(o.Scopes, "topic:read:"+strings.Repeat("a", 100))
			}
			o.Scopes = o.Scopes[:maxScopes]
		},
	} {
		bad := o
		change(&bad)
		if token, err := Mint(bad); !errors.Is(err, jetbus.ErrInvalidOption) || token != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	o.Scopes = []string{"topic:read"}
	if _, err := Mint(o); !errors.Is(err, ErrInvalidScope) {
		t.Errorf("scope: %v", err)
	}
}

func FuzzParseKeySet(f *testing.F) {
	p := pairs()
	f.Add([]byte(keySetOf(jwk(&p.ec.PublicKey, map[string]any{"kid": "a"}), jwk(p.ed.Public(), nil))))
	f.Add([]byte(keySetOf(jwk(&p.rsa.PublicKey, map[string]any{"alg": "RS256"}))))
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","x":"","y":""},null,7]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, _, err := parseKeySet(text)
		if err != nil && keys != nil || len(keys) > maxSetKeys {
			t.Fatalf("%d keys, %v", len(keys), err)
		}
		for _, k := range keys {
			for _, alg := range k.algs {
				if _, secret := hmacBytes[alg]; secret || alg == "none" {
					t.Fatalf("a public key serves %s", alg)
				}
			}
		}
	})
}
