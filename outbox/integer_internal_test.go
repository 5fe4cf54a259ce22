package outbox

import (
	"errors"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// TestInteger takes what is an integer, however a driver has it, and says of anything
// else what it is.
func TestInteger(t *testing.T) {
	for _, c := range []struct {
		v    any
		want int64
		bad  string // empty: it is an integer
	}{
		{int64(-7), -7, ""},
		{1700000000123.0, 1700000000123, ""},
		{float64(-1 << 63), -1 << 63, ""},
		{"12", 12, ""},
		{[]byte("12"), 12, ""},
		{1700000000123.5, 0, "1.7000000001235e+12"},
		{float64(1 << 63), 0, "9.223372036854776e+18"},
		{1e300, 0, "1e+300"},
		{"yesterday", 0, `"yesterday"`},
		{"", 0, `""`},
		{[]byte("\x00\xff"), 0, `"\x00\xff"`},
		{true, 0, `"true"`},
		{time.Unix(1, 0).UTC(), 0, `"1970-01-01 00:00:01 +0000 UTC"`},
	} {
		n := integer{value: 1, valid: true, bad: "of the row before"}
		if err := n.Scan(c.v); err != nil || n.value != c.want || n.valid != (c.bad == "") {
			t.Errorf("%v is %+v, %v", c.v, n, err)
		}
		err := n.problem("ts")
		if c.bad == "" && err != nil {
			t.Errorf("%v: %v", c.v, err)
		}
		if want := "column ts has " + c.bad + ", which is not an integer"; c.bad != "" && (!errors.Is(err, jetbus.ErrInvalidEvent) || err.Error() != jetbus.ErrInvalidEvent.Error()+": "+want) {
			t.Errorf("%v: %v, want %s", c.v, err, want)
		}
	}
	n := integer{value: 1, valid: true}
	if err := n.Scan(nil); err != nil || n != (integer{}) || n.problem("ts") != nil || !n.time().IsZero() {
		t.Errorf("NULL is %+v, %v", n, err)
	}
}
