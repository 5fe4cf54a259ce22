package jetbus

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"
)

// Reader reads topics without a group.
type Reader interface {
	// Read returns the events of one or more topics, in the order of each topic (there is no order
	// between topics). It ends with the last event present when it began, or follows new events
	// (o.Follow) until ctx ends or the caller stops. An error is the last pair; events before it
	// are valid. To resume later, keep the [Checkpoint] of the last event of each topic and the
	// topic's TopicInfo.Created, and pass them in o.Last and o.Created. With o.Follow, Read ends
	// with [ErrPositionUnknown] or [ErrNoTopic] if the topic is deleted and declared again, and
	// with a [RestoredError] if the broker is restored to an earlier state.
	Read(ctx context.Context, topics []string, o ReadOptions) iter.Seq2[Event, error]
}

// ReadOptions configures Read.
type ReadOptions struct {
	From  Start             `json:"-"`               // where to begin; defaults to Earliest, and with Follow to Latest
	After map[string]uint64 `json:"after,omitempty"` // per topic: start after this sequence, whatever From is
	// Last holds for each topic the checkpoint of the newest event that was read. Reading starts
	// after it, unless After has the topic. If the topic's history no longer has the event, the
	// error is a [RestoredError]. A topic that is left out, or whose checkpoint is zero, is not
	// checked.
	Last map[string]Checkpoint `json:"last,omitempty"`
	// Created holds for each topic the [TopicInfo] Created, to the millisecond, of the topic to
	// which the position in After or Last belongs. If the topic has been re-created since, its sequences
	// start at 1 again, and the error is [ErrPositionUnknown]. For a topic that is left out, the
	// position is taken for one of the existing topic.
	Created map[string]time.Time `json:"-"`
	Follow  bool                 `json:"follow,omitempty"` // follow new events
	Filter  Filter               `json:"filter,omitzero"`  // defaults to all events
}

// Validate reports a From, After, Last, Created or Filter that is not valid. The error wraps
// [ErrInvalidOption] or [ErrInvalidTopic].
func (o ReadOptions) Validate() error {
	if err := o.From.Validate(); err != nil {
		return err
	}
	for topic := range o.After {
		if err := ValidTopic(topic); err != nil {
			return fmt.Errorf("option After: %w", err)
		}
	}
	for topic := range o.Last {
		if err := ValidTopic(topic); err != nil {
			return fmt.Errorf("option Last: %w", err)
		}
	}
	for topic, at := range o.Created {
		if err := ValidTopic(topic); err != nil {
			return fmt.Errorf("option Created: %w", err)
		}
		if at.IsZero() {
			return fmt.Errorf("%w: Created of topic %s is zero: leave it out where it is not known", ErrInvalidOption, topic)
		}
	}
	return o.Filter.Validate()
}

type plainReadOptions ReadOptions

type readJSON struct {
	startJSON
	plainReadOptions
	Created map[string]int64 `json:"created,omitempty"`
}

// MarshalJSON gives the members from, ts, afterId, afterSeq, after, last, created, follow and
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

// Store reads what a topic holds.
type Store interface {
	// Scan returns the events of a topic in its order, up to the last one present
	// when it began. Its cost follows what is read.
	Scan(ctx context.Context, topic string, q ScanQuery) iter.Seq2[Event, error]
	StateStore
}

// ScanQuery selects what Scan returns.
type ScanQuery struct {
	From   Start  `json:"-"`               // where to begin; defaults to Earliest
	Limit  int    `json:"limit,omitempty"` // events at most; 0: no limit
	Filter Filter `json:"filter,omitzero"` // applied before Limit
}

// Validate reports a From or Filter that is not valid, or a negative Limit. The
// error wraps [ErrInvalidOption].
func (q ScanQuery) Validate() error {
	if err := q.From.Validate(); err != nil {
		return err
	}
	if q.Limit < 0 {
		return fmt.Errorf("%w: Limit is %d, use 1 or more, or 0 for no limit", ErrInvalidOption, q.Limit)
	}
	return q.Filter.Validate()
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
