package mongobox

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
)

// The fields of a row. Those of the event that are empty are left out; due_at is
// missing where the row is due at once.
const (
	fieldRowID    = "_id"
	fieldID       = "id"
	fieldTopic    = "topic"
	fieldKey      = "key"
	fieldSID      = "sid"
	fieldTime     = "ts"
	fieldHeaders  = "headers"
	fieldCausedBy = "caused_by"
	fieldTags     = "tags"
	fieldPayload  = "payload"
	fieldState    = "state"
	fieldAttempts = "attempts"
	fieldError    = "last_error"
	fieldOwner    = "owner"  // the claim that has the row
	fieldDue      = "due_at" // when the claim or the wait ends
	fieldSent     = "sent_at"
	fieldPos      = "pos"
	fieldCreated  = "created_at"
)

// newDocument is the row of an event, but for pos and created_at.
func newDocument(id bson.ObjectID, e *jetbus.Event) bson.D {
	d := bson.D{{Key: fieldRowID, Value: id}, {Key: fieldID, Value: e.ID}, {Key: fieldTopic, Value: e.Topic}, {Key: fieldKey, Value: e.Key}}
	add := func(name string, v any, there bool) {
		if there {
			d = append(d, bson.E{Key: name, Value: v})
		}
	}
	add(fieldSID, e.SID, e.SID != "")
	add(fieldTime, bson.NewDateTimeFromTime(e.Time), true)
	add(fieldHeaders, e.Headers, len(e.Headers) > 0)
	add(fieldCausedBy, e.CausedBy, len(e.CausedBy) > 0)
	add(fieldTags, e.Tags, len(e.Tags) > 0)
	add(fieldPayload, bson.Binary{Data: e.Payload}, len(e.Payload) > 0)
	return append(d, bson.E{Key: fieldState, Value: string(Pending)}, bson.E{Key: fieldAttempts, Value: int32(0)})
}

// readEvent returns what could be read of a row, and why not all of it could.
func readEvent(raw bson.Raw) (jetbus.Event, error) {
	r := reader{raw: raw}
	e := jetbus.Event{
		ID: r.text(fieldID), Topic: r.text(fieldTopic), Key: r.text(fieldKey), SID: r.text(fieldSID), Partition: jetbus.NoPartition,
		CausedBy: r.list(fieldCausedBy), Tags: r.list(fieldTags), Headers: r.headers(), Payload: r.payload(),
	}
	if e.Time = r.time(fieldTime); e.Time.IsZero() {
		e.Time = r.time(fieldCreated)
	}
	return e, errors.Join(r.errs...)
}

// reader reads fields, which other programs may have written.
type reader struct {
	raw  bson.Raw
	errs []error
}

// value is a field, and whether it is there.
func (r *reader) value(name string) (bson.RawValue, bool) {
	v, err := r.raw.LookupErr(name)
	return v, err == nil && v.Type != bson.TypeNull && v.Type != bson.TypeUndefined
}

func (r *reader) wrong(name string, v bson.RawValue, want string) {
	r.errs = append(r.errs, fmt.Errorf("%w: field %s is %s, not %s", jetbus.ErrInvalidEvent, name, v.Type, want))
}

func (r *reader) text(name string) string {
	v, there := r.value(name)
	s, ok := v.StringValueOK()
	if there && !ok {
		r.wrong(name, v, "string")
	}
	return s
}

// firstTime and lastTime are the earliest and the latest time that an event may have.
var (
	firstTime = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC)
)

func (r *reader) time(name string) time.Time {
	v, there := r.value(name)
	if !there {
		return time.Time{}
	}
	t, ok := v.TimeOK()
	if !ok {
		r.wrong(name, v, "date")
		return time.Time{}
	}
	if t.Before(firstTime) || t.After(lastTime) {
		r.errs = append(r.errs, fmt.Errorf("%w: field %s is not a time of the years 0 to 9999", jetbus.ErrInvalidEvent, name))
		return time.Time{}
	}
	return t.UTC()
}

func (r *reader) list(name string) []string {
	v, there := r.value(name)
	if !there {
		return nil
	}
	var out []string
	if v.Type != bson.TypeArray || v.Unmarshal(&out) != nil {
		r.wrong(name, v, "an array of strings")
		return nil
	}
	return out
}

func (r *reader) headers() map[string]string {
	v, there := r.value(fieldHeaders)
	if !there {
		return nil
	}
	var out map[string]string
	if v.Type != bson.TypeEmbeddedDocument || v.Unmarshal(&out) != nil {
		r.wrong(fieldHeaders, v, "a document of strings")
		return nil
	}
	return out
}

// payload is binary, or a string.
func (r *reader) payload() []byte {
	v, there := r.value(fieldPayload)
	if !there {
		return nil
	}
	if s, ok := v.StringValueOK(); ok {
		return []byte(s)
	}
	_, data, ok := v.BinaryOK()
	if !ok {
		r.wrong(fieldPayload, v, "binary or string")
		return nil
	}
	return append([]byte(nil), data...) // v is part of the driver's buffer
}

// readRow returns a row as people see it.
func readRow(raw bson.Raw, at time.Time) Row {
	var row Row
	row.Event, row.Err = readEvent(raw)
	r := reader{raw: raw}
	row.State, row.LastError, row.Attempts = State(r.text(fieldState)), r.text(fieldError), int(r.whole(fieldAttempts, 0))
	r.position()
	row.Added, row.SentAt = r.time(fieldCreated), r.time(fieldSent)
	if row.State == Pending {
		row.DueAt = r.time(fieldDue)
		if r.text(fieldOwner) != "" && row.DueAt.After(at) {
			row.ClaimedUntil = row.DueAt
		}
	}
	row.Err = errors.Join(append([]error{row.Err}, r.errs...)...)
	if row.State != Sent && len(raw) > maxRow {
		row.Err = errors.Join(errNoRoom(len(raw)), row.Err)
	}
	return row
}

// maxRow is how large a row may be that is claimed: it leaves room in the 16 MiB of a
// document for the claim, and for what is noted when it fails.
const maxRow = 16<<20 - 2<<10

// errNoRoom says that a row is too large to be claimed.
func errNoRoom(size int) error {
	return fmt.Errorf("%w: the row has %d bytes, and more than %d leave no room in a document to claim it: make it smaller, or remove it",
		jetbus.ErrPayloadTooLarge, size, maxRow)
}

// position returns the position of a row, a whole number of any type. A row without one comes
// first. Other values are errors: MongoDB orders them by type.
func (r *reader) position() int64 { return r.whole(fieldPos, oldest) }

// whole returns a whole number of any type. It returns other if the field is missing or not a
// whole number.
func (r *reader) whole(name string, other int64) int64 {
	v, there := r.value(name)
	if !there {
		return other
	}
	if d, ok := v.Decimal128OK(); ok {
		if n, ok := wholeDecimal(d); ok {
			return n
		}
	} else if f, ok := v.DoubleOK(); ok {
		const end = 1 << 63
		if f == math.Trunc(f) && f >= -end && f < end {
			return int64(f)
		}
	} else if n, ok := v.AsInt64OK(); ok {
		return n
	}
	r.errs = append(r.errs, fmt.Errorf("%w: field %s is %.80s (%s), not a whole number of 64 bits", jetbus.ErrInvalidEvent, name, v, v.Type))
	return other
}

// wholeDecimal converts a decimal to an integer. ok is false unless it is a whole number of 64
// bits.
func wholeDecimal(d bson.Decimal128) (n int64, ok bool) {
	digits, exponent, err := d.BigInt()
	const most = 19 // decimal digits of 64 bits
	if err != nil || exponent > most || exponent < -maxDecimalDigits {
		return 0, err == nil && digits.Sign() == 0
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exponent, -exponent))), nil)
	if exponent >= 0 {
		digits.Mul(digits, scale)
	} else if _, rest := digits.QuoRem(digits, scale, new(big.Int)); rest.Sign() != 0 {
		return 0, false
	}
	return digits.Int64(), digits.IsInt64()
}

// maxDecimalDigits is the maximum number of digits of a Decimal128.
const maxDecimalDigits = 34

// oldest is before every position.
const oldest = math.MinInt64

// refOf returns the Ref of an _id: the hexadecimal digits of an ObjectID, or of the type and the
// bytes of any other value. Different values have different Refs, even strings that are not valid
// UTF-8.
func refOf(id bson.RawValue) string {
	if oid, ok := id.ObjectIDOK(); ok {
		return oid.Hex()
	}
	return rawRef + hex.EncodeToString(append([]byte{byte(id.Type)}, id.Value...))
}

// rawRef is the prefix of a Ref that is not an ObjectID.
const rawRef = "bson:"

// idOf returns the _id of a Ref. ok is false if ref is not a Ref.
func idOf(ref string) (id any, ok bool) {
	digits, isRaw := strings.CutPrefix(ref, rawRef)
	if !isRaw {
		oid, err := bson.ObjectIDFromHex(ref)
		return oid, err == nil
	}
	data, err := hex.DecodeString(digits)
	if err != nil || len(data) == 0 {
		return nil, false
	}
	v := bson.RawValue{Type: bson.Type(data[0]), Value: data[1:]}
	return v, v.Validate() == nil
}
