package jetbus

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/seed-63e9a637/jetbus/internal/exactjson"
)

// The JSON forms of options and configurations are the structs themselves, without their
// methods, with durations and times beside them as what is here.

// millis is a duration in JSON: whole milliseconds, in a member whose name ends
// with Ms. -1 stands for "none" or "never" and is no duration.
type millis time.Duration

// MarshalJSON rounds down, but never to 0, which would mean the default. Other
// negative durations, which no option takes, are errors: rounded they could turn
// into -1.
func (m millis) MarshalJSON() ([]byte, error) {
	switch d := time.Duration(m); {
	case d == -1 || d == 0:
		return strconv.AppendInt(nil, int64(d), 10), nil
	case d < 0:
		return nil, fmt.Errorf("%w: negative duration %v", ErrInvalidOption, d)
	default:
		return strconv.AppendInt(nil, max(d.Milliseconds(), 1), 10), nil
	}
}

// UnmarshalJSON reads what MarshalJSON writes, and refuses what is no Duration.
func (m *millis) UnmarshalJSON(text []byte) error {
	var ms int64
	if err := json.Unmarshal(text, &ms); err != nil {
		return err
	}
	const most = math.MaxInt64 / int64(time.Millisecond)
	switch {
	case ms == -1:
		*m = -1
	case ms > most || ms < -most:
		return fmt.Errorf("%w: %d milliseconds are out of range", ErrInvalidOption, ms)
	default:
		*m = millis(time.Duration(ms) * time.Millisecond)
	}
	return nil
}

// toEpoch and fromEpoch are a time in JSON: epoch milliseconds, with no member
// for the zero time, so that 0 is the beginning of 1970.
func toEpoch(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	ms := t.UnixMilli()
	return &ms
}

func fromEpoch(ms *int64) time.Time {
	if ms == nil {
		return time.Time{}
	}
	return time.UnixMilli(*ms).UTC()
}

// unmarshal decodes a JSON form by the exact names of its members. It ignores unknown
// members. It rejects members that are given twice, and names that differ from a known
// name only in case.
func unmarshal[T any](text []byte, what string) (T, error) {
	var form T
	if err := exactjson.Unmarshal(text, &form, exactjson.RefuseVariants); err != nil {
		return form, fmt.Errorf("unmarshal %s: %w", what, err)
	}
	return form, nil
}
