package mongod

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxDepth and maxStored are MongoDB's limits for the nesting of messages and of stored documents.
// The first is checked before anything recurses into a message of a client.
const (
	maxDepth  = 200
	maxStored = 180
)

var errBSON = errors.New("invalid BSON")

// parseDoc takes one document off the head of b.
func parseDoc(b []byte) (d bson.D, rest []byte, err error) {
	if len(b) < 5 {
		return nil, nil, fmt.Errorf("%w: %d bytes are no document", errBSON, len(b))
	}
	n := int64(int32(binary.LittleEndian.Uint32(b)))
	if n < 5 || n > int64(len(b)) {
		return nil, nil, fmt.Errorf("%w: document of %d bytes in %d", errBSON, n, len(b))
	}
	d, err = decodeDoc(b[:n], 1)
	return d, b[n:], err
}

// decodeDoc decodes a document whose length field says len(b). It does what
// bson.Unmarshal does for a bson.D, faster and with less trust:
// every message of every client passes here.
func decodeDoc(b []byte, depth int) (bson.D, error) {
	d := make(bson.D, 0, 4)
	err := eachField(b, depth, func(kind byte, name, rest []byte) (int, error) {
		v, n, err := decodeValue(kind, rest, depth)
		d = append(d, bson.E{Key: string(name), Value: v})
		return n, err
	})
	return d, err
}

func decodeArray(b []byte, depth int) (bson.A, error) {
	a := bson.A{}
	err := eachField(b, depth, func(kind byte, _, rest []byte) (int, error) {
		v, n, err := decodeValue(kind, rest, depth)
		a = append(a, v)
		return n, err
	})
	return a, err
}

// decodeValue decodes the value at the head of b and returns its length.
func decodeValue(kind byte, b []byte, depth int) (any, int, error) {
	if kind == 0x03 || kind == 0x04 {
		n, ok := length(b, 5)
		if !ok || n > len(b) {
			return nil, 0, fmt.Errorf("%w: short embedded document", errBSON)
		}
		if kind == 0x03 {
			d, err := decodeDoc(b[:n], depth+1)
			return d, n, err
		}
		a, err := decodeArray(b[:n], depth+1)
		return a, n, err
	}
	n, err := checkValue(kind, b, depth)
	if err != nil {
		return nil, 0, err
	}
	v := b[:n]
	switch kind {
	case 0x01:
		return math.Float64frombits(binary.LittleEndian.Uint64(v)), n, nil
	case 0x02:
		return string(v[4 : n-1]), n, nil
	case 0x05:
		if v[4] != bson.TypeBinaryBinaryOld {
			return bson.Binary{Subtype: v[4], Data: append([]byte{}, v[5:]...)}, n, nil
		}
	case 0x07:
		return bson.ObjectID(v), n, nil
	case 0x08:
		return v[0] == 1, n, nil
	case 0x09:
		return bson.DateTime(binary.LittleEndian.Uint64(v)), n, nil
	case 0x0A:
		return nil, n, nil
	case 0x10:
		return int32(binary.LittleEndian.Uint32(v)), n, nil
	case 0x11:
		return bson.Timestamp{I: binary.LittleEndian.Uint32(v), T: binary.LittleEndian.Uint32(v[4:])}, n, nil
	case 0x12:
		return int64(binary.LittleEndian.Uint64(v)), n, nil
	}
	var rare any
	if err := (bson.RawValue{Type: bson.Type(kind), Value: v}).Unmarshal(&rare); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errBSON, err)
	}
	return rare, n, nil
}

// eachField calls f with the fields of a document whose length field says len(b).
// f returns the length of the value at the head of rest.
func eachField(b []byte, depth int, f func(kind byte, name, rest []byte) (int, error)) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: nested deeper than %d", errBSON, maxDepth)
	}
	if b[len(b)-1] != 0 {
		return fmt.Errorf("%w: document without an end", errBSON)
	}
	b = b[4 : len(b)-1]
	for len(b) > 0 {
		kind := b[0]
		i := bytes.IndexByte(b[1:], 0)
		if i < 0 {
			return fmt.Errorf("%w: field name without an end", errBSON)
		}
		name := b[1 : 1+i]
		b = b[2+i:]
		n, err := f(kind, name, b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// checkDoc checks a document that is not decoded by decodeDoc.
func checkDoc(b []byte, depth int) error {
	return eachField(b, depth, func(kind byte, _, rest []byte) (int, error) { return checkValue(kind, rest, depth) })
}

// checkValue is the length of the value of the given type at the head of b.
func checkValue(kind byte, b []byte, depth int) (int, error) {
	n := 0
	switch kind {
	case 0x06, 0x0A, 0x7F, 0xFF: // undefined, null, max key, min key
	case 0x08:
		if len(b) > 0 && b[0] > 1 {
			return 0, fmt.Errorf("%w: boolean %d", errBSON, b[0])
		}
		n = 1
	case 0x10:
		n = 4
	case 0x01, 0x09, 0x11, 0x12: // double, date, timestamp, int64
		n = 8
	case 0x07:
		n = 12
	case 0x13:
		n = 16
	case 0x02, 0x0D, 0x0E: // string, code, symbol
		return checkString(b)
	case 0x0C: // pointer
		n, err := checkString(b)
		if err != nil || n+12 > len(b) {
			return 0, fmt.Errorf("%w: short pointer", errBSON)
		}
		return n + 12, nil
	case 0x05: // binary
		size, ok := length(b, 0)
		if !ok || size+5 > len(b) {
			return 0, fmt.Errorf("%w: short binary", errBSON)
		}
		return size + 5, nil
	case 0x0B: // regular expression
		for range 2 {
			i := bytes.IndexByte(b[n:], 0)
			if i < 0 {
				return 0, fmt.Errorf("%w: malformed regular expression", errBSON)
			}
			n += i + 1
		}
		return n, nil
	case 0x03, 0x04:
		size, ok := length(b, 5)
		if !ok || size > len(b) {
			return 0, fmt.Errorf("%w: short embedded document", errBSON)
		}
		return size, checkDoc(b[:size], depth+1)
	case 0x0F:
		return checkCodeWithScope(b, depth)
	default:
		return 0, fmt.Errorf("%w: type 0x%02x", errBSON, kind)
	}
	if n > len(b) {
		return 0, fmt.Errorf("%w: short value of type 0x%02x", errBSON, kind)
	}
	return n, nil
}

// length is the int32 at the head of b, if it is at least least.
func length(b []byte, least int) (int, bool) {
	if len(b) < 4 {
		return 0, false
	}
	n := int(int32(binary.LittleEndian.Uint32(b)))
	return n, n >= least
}

// checkString returns the length of the string at the start of b. The string need not be valid
// UTF-8: MongoDB stores strings as they are sent.
func checkString(b []byte) (int, error) {
	n, ok := length(b, 1)
	if !ok || n+4 > len(b) || b[4+n-1] != 0 {
		return 0, fmt.Errorf("%w: malformed string", errBSON)
	}
	return n + 4, nil
}

func checkCodeWithScope(b []byte, depth int) (int, error) {
	n, ok := length(b, 14)
	if !ok || n > len(b) {
		return 0, fmt.Errorf("%w: short code with scope", errBSON)
	}
	code, err := checkString(b[4:n])
	if err != nil {
		return 0, err
	}
	scope := b[4+code : n]
	if size, ok := length(scope, 5); !ok || size != len(scope) {
		return 0, fmt.Errorf("%w: malformed scope", errBSON)
	}
	return n, checkDoc(scope, depth+1)
}
