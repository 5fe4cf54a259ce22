package ce

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// NoKey is the token of the empty key.
const NoKey = "_"

// KeyToken returns the subject token of a key: "_" for the empty key, the key
// itself where it is printable ASCII that means nothing in a subject, otherwise
// the key with each other byte as "%" and two upper-case hex digits. A key that
// could be taken for a token of ours ("_", "S", "P1") has its first byte
// escaped. Different keys have different tokens, at most three times as long.
func KeyToken(key string) string {
	if key == "" {
		return NoKey
	}
	first := reservedToken(key)
	if !first && !tokenEscape.anyIn(key) {
		return key
	}
	var b strings.Builder
	b.Grow(len(key) + 16)
	if first {
		writeEscape(&b, key[0])
		key = key[1:]
	}
	tokenEscape.write(&b, key)
	return b.String()
}

// ParseKeyToken returns the key of a token, and false for a token that KeyToken
// does not make.
func ParseKeyToken(token string) (key string, ok bool) {
	if token == NoKey {
		return "", true
	}
	key = unescape(token)
	if key == "" || KeyToken(key) != token {
		return "", false
	}
	return key, true
}

// reservedToken reports whether a key reads like a token with a meaning: "_", or
// one of the upper-case letters P and S alone or with digits.
func reservedToken(key string) bool {
	if key == NoKey {
		return true
	}
	return (key[0] == 'P' || key[0] == 'S') && strings.Trim(key[1:], "0123456789") == ""
}

// ShortHash stands for a name that is too long, or not allowed, where it would have to be:
// 64 bits of a hash that is the same in every version, in 16 lower-case hex digits.
func ShortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}
