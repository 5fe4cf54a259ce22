package mongod

import (
	"encoding/binary"
	"encoding/hex"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A token is a position in the history, as clients keep it. Tokens sort by their
// text as they do by position.
type token struct {
	ts       bson.Timestamp
	txIdx    uint32
	kind     byte
	fragment uint16 // of a split event, from 1
}

const (
	tokenHigh       = 0x00 // everything with this time was seen
	tokenEvent      = 0x80
	tokenInvalidate = 0xC0
)

const tokenLen = 18

// doc is the token as a resume token. Its head, 0x82 and the time, is that of
// MongoDB's, which tools decode.
func (t token) doc() bson.D {
	b := make([]byte, 0, tokenLen)
	b = append(b, 0x82)
	b = binary.BigEndian.AppendUint32(b, t.ts.T)
	b = binary.BigEndian.AppendUint32(b, t.ts.I)
	b = append(b, 0x2B)
	b = binary.BigEndian.AppendUint32(b, t.txIdx)
	b = append(b, t.kind)
	b = binary.BigEndian.AppendUint16(b, t.fragment)
	b = append(b, 0x04)
	return bson.D{{Key: "_data", Value: strings.ToUpper(hex.EncodeToString(b))}}
}

func parseToken(v any) (token, error) {
	d, ok := v.(bson.D)
	if !ok {
		return token{}, errorf(codeTypeMismatch, "TypeMismatch", "a resume token is an object, not %s", typeName(v))
	}
	b, err := hex.DecodeString(asString(field(d, "_data")))
	if err != nil || len(b) != tokenLen || b[0] != 0x82 || b[9] != 0x2B {
		return token{}, errorf(50811, "", "bad resume token: %s was not made by this server", jsonOf(v))
	}
	return token{
		ts:       bson.Timestamp{T: binary.BigEndian.Uint32(b[1:]), I: binary.BigEndian.Uint32(b[5:])},
		txIdx:    binary.BigEndian.Uint32(b[10:]),
		kind:     b[14],
		fragment: binary.BigEndian.Uint16(b[15:]),
	}, nil
}

// of says whether the token is that of a change.
func (t token) of(e *change) bool { return t.ts == e.ts && t.txIdx == e.txIdx }

// before says whether a change comes after the token.
func (t token) before(e *change) bool {
	c := e.ts.Compare(t.ts)
	return c > 0 || c == 0 && t.kind != tokenHigh && e.txIdx > t.txIdx
}
