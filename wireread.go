package jetbus

import (
	"encoding/json"
	"time"
)

type plainReceiveOptions ReceiveOptions

type receiveJSON struct {
	startJSON
	plainReceiveOptions
	WaitMs       millis `json:"waitMs,omitempty"`
	AckTimeoutMs millis `json:"ackTimeoutMs,omitempty"`
	MaxLeaseMs   millis `json:"maxLeaseMs,omitempty"`
}

// MarshalJSON gives the members from, ts, afterId, afterSeq, max, maxBytes,
// waitMs, ackTimeoutMs, maxLeaseMs and maxAttempts, leaving out what is zero.
func (o ReceiveOptions) MarshalJSON() ([]byte, error) {
	return json.Marshal(receiveJSON{o.From.wire(), plainReceiveOptions(o), millis(o.Wait), millis(o.AckTimeout), millis(o.MaxLease)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *ReceiveOptions) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[receiveJSON](text, "receive options")
	if err != nil {
		return err
	}
	*o = ReceiveOptions(w.plainReceiveOptions)
	o.Wait, o.AckTimeout, o.MaxLease = time.Duration(w.WaitMs), time.Duration(w.AckTimeoutMs), time.Duration(w.MaxLeaseMs)
	o.From, err = w.start()
	return err
}

type plainReadOptions ReadOptions

type readJSON struct {
	startJSON
	plainReadOptions
	Created map[string]int64 `json:"created,omitempty"`
}

// MarshalJSON gives the members from, ts, afterId, afterSeq, after, created, follow and
// filter, leaving out what is zero.
func (o ReadOptions) MarshalJSON() ([]byte, error) {
	w := readJSON{o.From.wire(), plainReadOptions(o), nil}
	for topic, at := range o.Created {
		if w.Created == nil {
			w.Created = map[string]int64{}
		}
		w.Created[topic] = at.UnixMilli()
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *ReadOptions) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[readJSON](text, "read options")
	if err != nil {
		return err
	}
	*o = ReadOptions(w.plainReadOptions)
	for topic, ms := range w.Created {
		if o.Created == nil {
			o.Created = map[string]time.Time{}
		}
		o.Created[topic] = time.UnixMilli(ms).UTC()
	}
	o.From, err = w.start()
	return err
}

type plainScanQuery ScanQuery

type scanJSON struct {
	startJSON
	plainScanQuery
}

// MarshalJSON gives the members from, ts, afterId, afterSeq, limit and filter,
// leaving out what is zero.
func (q ScanQuery) MarshalJSON() ([]byte, error) {
	return json.Marshal(scanJSON{q.From.wire(), plainScanQuery(q)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (q *ScanQuery) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[scanJSON](text, "scan query")
	if err != nil {
		return err
	}
	*q = ScanQuery(w.plainScanQuery)
	q.From, err = w.start()
	return err
}
