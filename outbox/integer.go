package outbox

import (
	"database/sql"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// integer is a value of a column for integers. SQLite keeps there what is none as it
// came: a fraction, of a trigger that computes a time, or a text. That is a problem of
// its row, and must not keep the others from being read.
type integer struct {
	value int64
	valid bool   // it is there, and an integer
	bad   string // what is there instead
}

var _ sql.Scanner = (*integer)(nil)

// Scan implements [sql.Scanner], and never fails.
func (n *integer) Scan(v any) error {
	*n = integer{}
	switch v := v.(type) {
	case nil:
	case int64:
		n.value, n.valid = v, true
	case float64:
		if n.value, n.valid = whole(v); !n.valid {
			n.bad = strconv.FormatFloat(v, 'g', -1, 64)
		}
	case string:
		n.parse(v)
	case []byte:
		n.parse(string(v))
	default:
		n.bad = fmt.Sprintf("%.80q", fmt.Sprint(v))
	}
	return nil
}

// parse reads a text, as which some drivers have all values.
func (n *integer) parse(text string) {
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		n.bad = fmt.Sprintf("%.80q", text)
		return
	}
	n.value, n.valid = value, true
}

// whole is a number without a fraction as an integer, if it is one of 64 bits.
func whole(f float64) (n int64, ok bool) {
	const end = 1 << 63
	if f != math.Trunc(f) || f < -end || f >= end {
		return 0, false
	}
	return int64(f), true
}

// problem says why the column cannot be read, if so.
func (n *integer) problem(column string) error {
	if n.bad == "" {
		return nil
	}
	return fmt.Errorf("%w: column %s has %s, which is not an integer", jetbus.ErrInvalidEvent, column, n.bad)
}

// The first and the last millisecond that the time of an event may have: the years 0 to 9999.
const (
	firstTime = -62167219200000
	lastTime  = 253402300799999
)

// isTime reports whether the column has a time or is NULL.
func (n *integer) isTime() bool { return n.timeProblem("") == nil }

// timeProblem is problem for a column that holds a time.
func (n *integer) timeProblem(column string) error {
	if n.valid && (n.value < firstTime || n.value > lastTime) {
		return fmt.Errorf("%w: column %s has %d, which is not a time of the years 0 to 9999", jetbus.ErrInvalidEvent, column, n.value)
	}
	return n.problem(column)
}

// text is the value of a text column. NULL becomes the empty text, and any other type is
// formatted as text, so that no value prevents the other rows from being read.
type text string

var _ sql.Scanner = (*text)(nil)

// Scan implements [sql.Scanner], and never fails.
func (t *text) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*t = ""
	case string:
		*t = text(v)
	case []byte:
		*t = text(v)
	default:
		*t = text(fmt.Sprint(v))
	}
	return nil
}

// replaceInvalid makes the texts among the destinations of a scan valid UTF-8.
func replaceInvalid(fields []any) {
	for _, field := range fields {
		if t, ok := field.(*text); ok {
			*t = text(strings.ToValidUTF8(string(*t), "\uFFFD"))
		}
	}
}

// time is that many milliseconds since 1970; zero where there is no integer.
func (n *integer) time() time.Time {
	if !n.valid {
		return time.Time{}
	}
	return time.UnixMilli(n.value).UTC()
}
