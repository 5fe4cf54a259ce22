package changefeed

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
)

// Token is a position in the history of a MongoDB deployment: the field _data of a
// resume token, in hex. Tokens of one deployment sort by their text as the changes
// do. The empty Token is no position.
type Token string

// Layout of what every version since 4.0.7 writes first: a type byte, and a
// timestamp with its numbers in big endian, so that bytes compare as times do.
const (
	tokenMark  = "82" // in hex
	tokenBytes = 9
	maxToken   = 16 << 10 // in hex, of one that is handed in
	maxTokenOf = 40 << 20 // the same of a server's: the key of a document is in it, which may be all of the document
)

// ParseToken checks that s is a token. The error wraps [jetbus.ErrInvalidOption].
func ParseToken(s string) (Token, error) { return parseToken(s, maxToken) }

func parseToken(s string, limit int) (Token, error) {
	if len(s) > limit {
		return "", fmt.Errorf("%w: a resume token of %d bytes", jetbus.ErrInvalidOption, len(s))
	}
	if len(s)%2 != 0 || len(s) < 2*tokenBytes || s[:2] != tokenMark || !isHex(s) {
		return "", fmt.Errorf("%w: %.100q is no resume token: use the text of its field _data, which begins with 82", jetbus.ErrInvalidOption, s)
	}
	return Token(strings.ToUpper(s)), nil
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'A' || c > 'F') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// tokenOf reads the resume token of an event or a change stream.
func tokenOf(doc bson.Raw) (Token, error) {
	data, ok := doc.Lookup("_data").StringValueOK()
	if !ok {
		return "", fmt.Errorf("resume token %s has no text in _data", doc)
	}
	return parseToken(data, maxTokenOf)
}

// Timestamp is the cluster time in the token, zero for the empty one.
func (t Token) Timestamp() bson.Timestamp {
	if len(t) < 2*tokenBytes {
		return bson.Timestamp{}
	}
	b, err := hex.DecodeString(string(t[:2*tokenBytes]))
	if err != nil {
		return bson.Timestamp{}
	}
	return bson.Timestamp{T: binary.BigEndian.Uint32(b[1:]), I: binary.BigEndian.Uint32(b[5:])}
}

// Time is Timestamp in whole seconds, the zero time for the empty token.
func (t Token) Time() time.Time {
	ts := t.Timestamp()
	if ts.T == 0 {
		return time.Time{}
	}
	return time.Unix(int64(ts.T), 0).UTC()
}

// Compare is -1, 0 or 1: whether t is before, at or behind u. The empty token is
// before all others.
func (t Token) Compare(u Token) int { return cmp.Compare(t, u) }

// doc is the token as the server takes it.
func (t Token) doc() bson.D { return bson.D{{Key: "_data", Value: string(t)}} }
