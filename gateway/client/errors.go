package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// Error is what a gateway answered. errors.Is finds the condition of package jetbus that it
// stands for.
type Error struct {
	Code       string // stable: "unknown_topic", "rate_limited" and so on, as in package gateway
	Message    string
	Retryable  bool          // the same may succeed later
	RetryAfter time.Duration // when, where the gateway says so

	cause   error // the condition
	details json.RawMessage
}

// Error gives the text and the code.
func (e *Error) Error() string {
	if e.cause == nil || strings.Contains(e.Message, conditionText(e.cause)) {
		return fmt.Sprintf("%s (%s)", e.Message, e.Code)
	}
	return fmt.Sprintf("%v: %s (%s)", e.cause, e.Message, e.Code)
}

// Unwrap returns the condition of package jetbus.
func (e *Error) Unwrap() error { return e.cause }

// conditions are what codes stand for. Of several the one counts whose text the message has,
// else the first.
var conditions = map[string][]error{
	"bad_json":              {jetbus.ErrInvalidOption},
	"bad_request":           {jetbus.ErrInvalidOption, jetbus.ErrInvalidTopic, jetbus.ErrInvalidGroup, jetbus.ErrInvalidHeader, jetbus.ErrInvalidEvent},
	"unknown_op":            {jetbus.ErrUnsupported},
	"unauthorized":          {jetbus.ErrDenied},
	"bad_token":             {jetbus.ErrDenied},
	"token_expired":         {jetbus.ErrDenied},
	"forbidden":             {jetbus.ErrDenied},
	"unknown_topic":         {jetbus.ErrNoTopic},
	"unknown_group":         {jetbus.ErrNoGroup},
	"unknown_id":            {jetbus.ErrNotHeld, jetbus.ErrLeaseExpired, jetbus.ErrAlreadySettled},
	"no_state":              {jetbus.ErrNoState},
	"already_subscribed":    {jetbus.ErrConflict},
	"group_config_conflict": {jetbus.ErrConflict},
	"seq_conflict":          {jetbus.ErrWrongSequence},
	"conflict":              {jetbus.ErrConflict, jetbus.ErrOvertaken},
	"group_busy":            {jetbus.ErrGroupBusy},
	"offset_gone":           {jetbus.ErrPositionUnknown, jetbus.ErrBeyondHorizon},
	"too_large":             {jetbus.ErrPayloadTooLarge},
	"schema_invalid":        {jetbus.ErrSchema},
	"unsupported":           {jetbus.ErrUnsupported, jetbus.ErrNeedsKeySubject, jetbus.ErrNoPartitions},
	"unsupported_encoding":  {jetbus.ErrUnsupported},
	"topic_full":            {jetbus.ErrTopicFull},
	"too_many_subs":         {jetbus.ErrUnavailable},
	"too_many_inflight":     {jetbus.ErrUnavailable},
	"rate_limited":          {jetbus.ErrUnavailable},
	"internal":              {jetbus.ErrUnavailable},
	"publish_failed":        {jetbus.ErrUnavailable},
	"ack_failed":            {jetbus.ErrUnavailable},
	"broker_unavailable":    {jetbus.ErrUnavailable},
	"overloaded":            {jetbus.ErrUnavailable},
	"draining":              {jetbus.ErrUnavailable},
}

// conditionText is what a message says of a condition, without where its remedy is: a gateway
// of another version may say that in other words.
func conditionText(err error) string {
	if r, ok := errors.AsType[*jetbus.RemedyError](err); ok {
		return r.Err.Error()
	}
	return err.Error()
}

// refusal makes the error of an ERR or SUB_CLOSED frame.
func refusal(m *frame.Message) error {
	e := &Error{Code: m.Code, Message: m.Msg, Retryable: m.Retryable, RetryAfter: time.Duration(m.RetryAfterMs) * time.Millisecond, details: m.Details}
	list := conditions[m.Code]
	if len(list) > 0 {
		e.cause = list[0]
	}
	for _, c := range list {
		if strings.Contains(m.Msg, conditionText(c)) {
			e.cause = c
			break
		}
	}
	switch m.Code {
	case "group_busy":
		var d struct {
			Topic, Group string
			Held         int
		}
		if json.Unmarshal(m.Details, &d) == nil && d.Group != "" {
			e.cause = &jetbus.GroupBusyError{Topic: d.Topic, Group: d.Group, Held: d.Held}
		}
	case "seq_conflict":
		var d struct {
			Topic, AfterID, LastID, Reason string
			LastSeq                        uint64
		}
		if json.Unmarshal(m.Details, &d) == nil && d.Topic != "" {
			e.cause = &jetbus.ChainError{Topic: d.Topic, AfterID: d.AfterID, LastID: d.LastID, LastSeq: d.LastSeq, Reason: d.Reason}
		}
	case "conflict", "group_config_conflict":
		var d struct{ Differences []jetbus.Difference }
		if what, _, ok := strings.Cut(m.Msg, " exists with other settings"); ok && json.Unmarshal(m.Details, &d) == nil {
			if i := strings.LastIndex(what, ": "); i >= 0 {
				what = what[i+2:]
			}
			e.cause = &jetbus.ConflictError{What: what, Differences: d.Differences}
		}
	}
	return e
}

// passes reports whether a call is worth being tried again while its context allows: nothing
// was wrong with it.
func passes(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	switch e.Code {
	case "rate_limited", "overloaded", "broker_unavailable", "draining", "too_many_inflight":
		return true
	}
	return false
}

// errBroken: the connection broke before the answer.
var errBroken = fmt.Errorf("%w: the connection to the gateway broke", jetbus.ErrUnavailable)

// terminal makes the error of a close that says to stay away; nil for others.
func terminal(err error) error {
	code := websocket.CloseStatus(err)
	if code == -1 || !frame.Terminal(int(code)) {
		return nil
	}
	condition := jetbus.ErrUnavailable
	switch int(code) {
	case frame.CloseUnauthorized, frame.CloseForbidden:
		condition = jetbus.ErrDenied
	case frame.CloseVersion, frame.CloseProtocol:
		condition = jetbus.ErrUnsupported
	}
	return fmt.Errorf("%w: the gateway closed the connection for good: %w", condition, err)
}
