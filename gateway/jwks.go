package gateway

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus/internal/exactjson"
	"github.com/seed-63e9a637/jetbus/internal/loopback"
)

// Bounds of key sets.
const (
	keySetBytes   = 1 << 20
	maxSetKeys    = 200
	maxKidBytes   = 256
	keysOfKid     = 4 // that are tried for one token
	keySetRefresh = time.Hour
	keySetSpacing = 10 * time.Second // between two reads
	keySetStale   = 24 * time.Hour   // for how long a set counts that cannot be read again
	unknownKid    = time.Minute      // for how long a kid is not looked for again
	maxUnknown    = 1024
	keySetTimeout = 5 * time.Second
)

// keySet is the key set of an issuer. The call that needs it reads it, one call at a time. No
// goroutine runs between calls.
type keySet struct {
	url    string
	client *http.Client
	log    *slog.Logger

	mu      sync.Mutex
	keys    []setKey
	skipped []string             // one reason for each key of the set that cannot be used
	read    time.Time            // when keys were read; zero: never
	tried   time.Time            // when the last read began
	err     error                // of the last read
	unknown map[string]time.Time // kids that the set does not have, and when they were looked up
	flight  chan struct{}        // closed when the current read ends; nil: no read is running
}

// setKey is a key of a set.
type setKey struct {
	kid string
	alg string // that it is for; empty: any that fits it
	publicKey
}

func newKeySet(address string, client *http.Client, log *slog.Logger) (*keySet, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || !mayFetch(u) {
		return nil, errors.New("use an https URL without user, or http of a loopback host")
	}
	c := http.Client{Timeout: keySetTimeout}
	if client != nil {
		c = *client
	}
	c.Jar = nil
	c.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		if len(via) > 3 || !mayFetch(r.URL) {
			return errors.New("redirected to where keys are not read from")
		}
		return nil
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &keySet{url: address, client: &c, log: log, unknown: map[string]time.Time{}}, nil
}

// mayFetch reports whether keys may be read from a URL: nobody on the way can change them.
func mayFetch(u *url.URL) bool {
	return u.Scheme == "https" || u.Scheme == "http" && loopback.Host(u.Hostname())
}

// ready reads the set if a read is due. It returns the reason if the set cannot check any token.
func (s *keySet) ready(ctx context.Context) error {
	s.mu.Lock()
	due := time.Since(s.read) >= keySetRefresh && time.Since(s.tried) >= keySetSpacing
	s.mu.Unlock()
	if due {
		s.refresh(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if len(s.keys) == 0 {
		return errors.New("the key set has no usable key: " + skippedText(s.skipped))
	}
	return nil
}

// skippedText describes the skipped keys of a set: their number, and the reasons for the first few.
func skippedText(reasons []string) string {
	const shown = 3
	text := fmt.Sprintf("%d skipped", len(reasons))
	if len(reasons) > 0 {
		text += ": " + strings.Join(reasons[:min(len(reasons), shown)], "; ")
	}
	return text
}

// usable returns nil while what was read counts. The lock is held.
func (s *keySet) usable() error {
	if !s.read.IsZero() && time.Since(s.read) < keySetStale {
		return nil
	}
	if s.err == nil {
		return errors.New("the key set is not read yet")
	}
	return fmt.Errorf("the key set cannot be read: %w", s.err)
}

// find returns the keys that may have signed a token with this kid (empty: it has none) and
// algorithm. The error wraps [ErrBadToken], but where the set cannot be read.
func (s *keySet) find(ctx context.Context, kid, alg string) ([]crypto.PublicKey, error) {
	s.mu.Lock()
	found, known := s.lookup(kid, alg)
	due := s.due(kid, known)
	wait := s.flight != nil && (s.read.IsZero() || !known)
	s.mu.Unlock()
	if due || wait {
		s.refresh(ctx)
		s.mu.Lock()
		found, known = s.lookup(kid, alg)
		if !known && kid != "" && s.err == nil {
			s.miss(kid)
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: no key of the set fits it", ErrBadToken)
	}
	return found, nil
}

// due reports whether it is time to read the set: it is old, or lacks the kid. The lock is
// held.
func (s *keySet) due(kid string, known bool) bool {
	if time.Since(s.tried) < keySetSpacing && !s.tried.IsZero() {
		return false
	}
	if s.read.IsZero() || time.Since(s.read) >= keySetRefresh {
		return true
	}
	missed, ok := s.unknown[kid]
	return !known && kid != "" && (!ok || time.Since(missed) >= unknownKid)
}

// miss notes that the set does not have a kid. The lock is held.
func (s *keySet) miss(kid string) {
	if len(s.unknown) >= maxUnknown {
		for k, t := range s.unknown {
			if time.Since(t) >= unknownKid {
				delete(s.unknown, k)
			}
		}
	}
	if len(s.unknown) < maxUnknown {
		s.unknown[kid] = time.Now()
	}
}

// lookup finds keys in what was read. The lock is held.
func (s *keySet) lookup(kid, alg string) (found []crypto.PublicKey, known bool) {
	for _, k := range s.keys {
		if kid != "" && k.kid != kid {
			continue
		}
		known = true
		if slices.Contains(k.algs, alg) && (k.alg == "" || k.alg == alg) && len(found) < keysOfKid {
			found = append(found, k.key)
		}
	}
	if kid == "" && len(found) > 1 {
		return nil, known // a token that does not say which needs a set that has one
	}
	return found, known
}

// refresh reads the set, or waits for the read that is under way.
func (s *keySet) refresh(ctx context.Context) {
	s.mu.Lock()
	if f := s.flight; f != nil {
		s.mu.Unlock()
		select {
		case <-f:
		case <-ctx.Done():
		}
		return
	}
	if !s.tried.IsZero() && time.Since(s.tried) < keySetSpacing {
		s.mu.Unlock()
		return // another call was faster
	}
	f := make(chan struct{})
	s.flight, s.tried = f, time.Now()
	s.mu.Unlock()

	// Others wait for it, too: a client that goes away does not end it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keySetTimeout)
	defer cancel()
	keys, skipped, err := s.fetch(ctx)
	if len(skipped) > 0 {
		s.log.LogAttrs(ctx, slog.LevelWarn, "keys of the key set cannot be used", slog.String("url", s.url),
			slog.Int("usable", len(keys)), slog.String("reason", skippedText(skipped)))
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; err == nil {
		s.keys, s.skipped, s.read = keys, skipped, time.Now()
		clear(s.unknown)
	}
	s.flight = nil
	close(f)
}

func (s *keySet) fetch(ctx context.Context) (_ []setKey, skipped []string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, nil, err
	}
	r.Header.Set("Accept", "application/jwk-set+json, application/json")
	answer, err := s.client.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("%s answers %s", s.url, answer.Status)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, keySetBytes+1))
	if err != nil {
		return nil, nil, err
	}
	if len(body) > keySetBytes {
		return nil, nil, fmt.Errorf("the key set has more than %d bytes", keySetBytes)
	}
	return parseKeySet(body)
}

// jsonKey is a key in a set (RFC 7517).
type jsonKey struct {
	Kty    string   `json:"kty"`
	Kid    string   `json:"kid"`
	Alg    string   `json:"alg"`
	Use    string   `json:"use"`
	KeyOps []string `json:"key_ops"`
	Crv    string   `json:"crv"`
	N      string   `json:"n"`
	E      string   `json:"e"`
	X      string   `json:"x"`
	Y      string   `json:"y"`
}

// parseKeySet decodes the public signature keys of a set. It skips keys for encryption, and keys that
// it cannot use, and returns the reasons for the latter. Secret keys are not usable, since anyone can
// read the set.
func parseKeySet(text []byte) (keys []setKey, skipped []string, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := exactjson.Unmarshal(text, &set, exactjson.Ignore); err != nil || set.Keys == nil {
		return nil, nil, errors.New("it is not a key set")
	}
	if len(set.Keys) > maxSetKeys {
		return nil, nil, fmt.Errorf("the key set has %d keys, at most %d are allowed", len(set.Keys), maxSetKeys)
	}
	for i, raw := range set.Keys {
		var k jsonKey
		err := exactjson.Unmarshal(raw, &k, exactjson.Ignore)
		if err == nil && k.Use == "enc" {
			continue
		}
		var bound setKey
		if err == nil {
			bound, err = k.bind()
		}
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("key %d (kid %.40q): %v", i+1, k.Kid, err))
			continue
		}
		keys = append(keys, bound)
	}
	return keys, skipped, nil
}

// bind decodes the key and returns it with the algorithms that it can verify. The error says why it
// verifies none.
func (k *jsonKey) bind() (setKey, error) {
	switch {
	case len(k.Kid) > maxKidBytes:
		return setKey{}, fmt.Errorf("kid has %d bytes, at most %d are allowed", len(k.Kid), maxKidBytes)
	case k.Use != "" && k.Use != "sig":
		return setKey{}, fmt.Errorf("use is %.40q, not \"sig\"", k.Use)
	case k.KeyOps != nil && !slices.Contains(k.KeyOps, "verify"):
		return setKey{}, errors.New("key_ops has no \"verify\"")
	}
	key, err := k.public()
	if err != nil {
		return setKey{}, err
	}
	bound, err := newPublicKey(key)
	if err != nil {
		return setKey{}, err
	}
	alg := k.Alg
	if alg == "Ed25519" { // the name of RFC 9864
		alg = "EdDSA"
	}
	if alg != "" && !slices.Contains(bound.algs, alg) {
		return setKey{}, fmt.Errorf("alg is %.40q, a key of this type and curve is for %s", k.Alg, strings.Join(bound.algs, ", "))
	}
	return setKey{kid: k.Kid, alg: alg, publicKey: bound}, nil
}

// public decodes the public key.
func (k *jsonKey) public() (crypto.PublicKey, error) {
	switch k.Kty {
	case "RSA":
		n, errN := keyBytes("n", k.N)
		e, errE := keyBytes("e", k.E)
		if err := cmp.Or(errN, errE); err != nil {
			return nil, err
		}
		exponent := new(big.Int).SetBytes(e)
		if exponent.BitLen() > 31 || exponent.Int64() < 3 || exponent.Bit(0) == 0 {
			return nil, errors.New("e is not an odd number from 3 to 2147483647")
		}
		return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(exponent.Int64())}, nil
	case "EC":
		curve, ok := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[k.Crv]
		if !ok {
			return nil, fmt.Errorf("the curve %.40q is not supported", k.Crv)
		}
		x, errX := keyBytes("x", k.X)
		y, errY := keyBytes("y", k.Y)
		if err := cmp.Or(errX, errY); err != nil {
			return nil, err
		}
		if size := (curve.Params().BitSize + 7) / 8; len(x) != size || len(y) != size {
			return nil, fmt.Errorf("x and y have %d and %d bytes, %s needs %d each, with leading zeros (RFC 7518, section 6.2.1.2)", len(x), len(y), k.Crv, size)
		}
		return ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y))
	case "OKP":
		if k.Crv != "Ed25519" {
			return nil, fmt.Errorf("the curve %.40q is not supported", k.Crv)
		}
		x, err := keyBytes("x", k.X)
		if err != nil {
			return nil, err
		}
		if len(x) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("x has %d bytes, Ed25519 needs %d", len(x), ed25519.PublicKeySize)
		}
		return ed25519.PublicKey(x), nil
	}
	return nil, fmt.Errorf("keys of type %.40q are not supported", k.Kty)
}

// keyBytes decodes the named member of a key, which is base64url with or without padding.
func keyBytes(name, text string) ([]byte, error) {
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
	switch {
	case strings.ContainsAny(text, "+/"):
		return nil, fmt.Errorf("%s is base64, not base64url: it has + or /", name)
	case err != nil:
		return nil, fmt.Errorf("%s is not base64url", name)
	case len(b) == 0:
		return nil, fmt.Errorf("%s is missing", name)
	}
	return b, nil
}
