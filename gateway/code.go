package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Code says what kind of failure it was, to programs: the member code of an ERR frame and
// of a problem document. Codes do not change.
type Code string

// The codes and their HTTP statuses.
const (
	CodeBadJSON             Code = "bad_json"              // 400
	CodeBadRequest          Code = "bad_request"           // 400
	CodeUnknownOp           Code = "unknown_op"            // 400
	CodeUnauthorized        Code = "unauthorized"          // 401
	CodeBadToken            Code = "bad_token"             // 401
	CodeTokenExpired        Code = "token_expired"         // 401, retryable with a fresh token
	CodeForbidden           Code = "forbidden"             // 403
	CodeUnknownTopic        Code = "unknown_topic"         // 404
	CodeUnknownGroup        Code = "unknown_group"         // 404
	CodeUnknownSub          Code = "unknown_sub"           // 404
	CodeNotSubscribed       Code = "not_subscribed"        // 404
	CodeUnknownID           Code = "unknown_id"            // 404
	CodeNotFound            Code = "not_found"             // 404
	CodeNoState             Code = "no_state"              // 404: the topic keeps no state
	CodeBadMethod           Code = "bad_method"            // 405
	CodeAlreadySubscribed   Code = "already_subscribed"    // 409
	CodeGroupConfigConflict Code = "group_config_conflict" // 409
	CodeSeqConflict         Code = "seq_conflict"          // 409
	CodeConflict            Code = "conflict"              // 409
	CodeGroupBusy           Code = "group_busy"            // 409, retryable
	CodeOffsetGone          Code = "offset_gone"           // 410
	CodeTooLarge            Code = "too_large"             // 413
	CodeUnsupportedEncoding Code = "unsupported_encoding"  // 415
	CodeSchemaInvalid       Code = "schema_invalid"        // 422
	CodeUnsupported         Code = "unsupported"           // 422
	CodeRateLimited         Code = "rate_limited"          // 429, retryable
	CodeTooManySubs         Code = "too_many_subs"         // 429
	CodeTooManyInFlight     Code = "too_many_inflight"     // 429, retryable
	CodeInternal            Code = "internal"              // 500, retryable
	CodePublishFailed       Code = "publish_failed"        // 503, retryable
	CodeAckFailed           Code = "ack_failed"            // 503, retryable
	CodeBrokerUnavailable   Code = "broker_unavailable"    // 503, retryable
	CodeOverloaded          Code = "overloaded"            // 503, retryable; the request had no effect
	CodeDraining            Code = "draining"              // 503, retryable
	CodeTopicFull           Code = "topic_full"            // 507, retryable
)

// Status is the HTTP status of the code; 500 for one that is not listed.
func (c Code) Status() int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

var statuses = map[Code]int{
	CodeBadJSON: 400, CodeBadRequest: 400, CodeUnknownOp: 400,
	CodeUnauthorized: 401, CodeBadToken: 401, CodeTokenExpired: 401, CodeForbidden: 403,
	CodeUnknownTopic: 404, CodeUnknownGroup: 404, CodeUnknownSub: 404, CodeNotSubscribed: 404, CodeUnknownID: 404, CodeNotFound: 404, CodeNoState: 404, CodeBadMethod: 405,
	CodeAlreadySubscribed: 409, CodeGroupConfigConflict: 409, CodeSeqConflict: 409, CodeConflict: 409, CodeGroupBusy: 409,
	CodeOffsetGone: 410, CodeTooLarge: 413, CodeUnsupportedEncoding: 415, CodeSchemaInvalid: 422, CodeUnsupported: 422,
	CodeRateLimited: 429, CodeTooManySubs: 429, CodeTooManyInFlight: 429, CodeInternal: 500,
	CodePublishFailed: 503, CodeAckFailed: 503, CodeBrokerUnavailable: 503, CodeOverloaded: 503, CodeDraining: 503, CodeTopicFull: 507,
}

// Retryable reports whether the same request may succeed later, or with a fresh token.
func (c Code) Retryable() bool {
	switch c {
	case CodeTokenExpired, CodeGroupBusy, CodeRateLimited, CodeTooManyInFlight, CodeInternal, CodePublishFailed, CodeAckFailed, CodeBrokerUnavailable, CodeOverloaded, CodeDraining, CodeTopicFull:
		return true
	default:
		return false
	}
}

// failure is an error that is told to a client as it is.
type failure struct {
	Code    Code
	Msg     string        // for people; one line, nothing secret
	Details any           // for programs, as JSON. Nil: none
	After   time.Duration // when to try again. Zero: not known
	Final   bool          // the same request must not be tried again, whatever its code says
}

// retryable reports whether the same request may succeed later.
func (f *failure) retryable() bool { return f.Code.Retryable() && !f.Final }

// Error gives code and text.
func (f *failure) Error() string { return string(f.Code) + ": " + f.Msg }

// refuse makes a failure.
func refuse(c Code, format string, args ...any) error {
	return &failure{Code: c, Msg: fmt.Sprintf(format, args...)}
}

// codeOf is the code of an error, whatever it came from.
func codeOf(err error) Code {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.Code
	}
	if c, ok := errors.AsType[*jetbus.ConflictError](err); ok && strings.HasPrefix(c.What, "group ") {
		return CodeGroupConfigConflict
	}
	for _, c := range conditions {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return CodeTooLarge
	}
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		return CodeBadJSON
	}
	if _, ok := errors.AsType[*jetbus.PublishError](err); ok {
		return CodePublishFailed
	}
	return CodeInternal
}

// conditions are what errors mean, the first that holds.
var conditions = []struct {
	err  error
	code Code
}{
	{ErrTokenExpired, CodeTokenExpired},
	{ErrBadToken, CodeBadToken},
	{ErrInvalidScope, CodeBadToken},
	{jetbus.ErrNoDeadLetters, CodeNotFound},
	{jetbus.ErrNoTopic, CodeUnknownTopic},
	{jetbus.ErrNoGroup, CodeUnknownGroup},
	{jetbus.ErrInvalidTopic, CodeBadRequest},
	{jetbus.ErrInvalidGroup, CodeBadRequest},
	{jetbus.ErrInvalidEvent, CodeBadRequest},
	{jetbus.ErrInvalidHeader, CodeBadRequest},
	{jetbus.ErrInvalidOption, CodeBadRequest},
	{jetbus.ErrSchema, CodeSchemaInvalid},
	{jetbus.ErrPayloadTooLarge, CodeTooLarge},
	{jetbus.ErrWrongSequence, CodeSeqConflict},
	{jetbus.ErrOvertaken, CodeConflict},
	{jetbus.ErrTopicFull, CodeTopicFull},
	{jetbus.ErrPositionUnknown, CodeOffsetGone},
	{jetbus.ErrBeyondHorizon, CodeOffsetGone},
	{jetbus.ErrGroupBusy, CodeGroupBusy},
	{jetbus.ErrNoState, CodeNoState},
	{jetbus.ErrNeedsKeySubject, CodeUnsupported},
	{jetbus.ErrNoPartitions, CodeUnsupported},
	{jetbus.ErrUnsupported, CodeUnsupported},
	{jetbus.ErrConflict, CodeConflict},
	{jetbus.ErrLeaseExpired, CodeUnknownID},
	{jetbus.ErrNotHeld, CodeUnknownID},
	{jetbus.ErrAlreadySettled, CodeUnknownID},
	{jetbus.ErrDenied, CodeForbidden},
	{jetbus.ErrClosed, CodeDraining},
	{jetbus.ErrStopped, CodeDraining},
	{jetbus.ErrUnavailable, CodeBrokerUnavailable},
	{context.DeadlineExceeded, CodeBrokerUnavailable},
	{context.Canceled, CodeDraining},
}

// plain are the texts of failures whose errors may name what clients are not to see.
var plain = map[Code]string{
	CodeForbidden:         "the broker does not allow it",
	CodeInternal:          "an error of the gateway; its log says more",
	CodeDraining:          "the gateway is ending; try another one, or again in a while",
	CodeBrokerUnavailable: "the broker does not answer; try again",
	CodePublishFailed:     "the event may not be stored; publish it again with the same id",
	CodeAckFailed:         "the broker did not take it; try again",
	CodeBadToken:          "the token does not count here",
	CodeTokenExpired:      "the token has expired; get another one",
}

const maxMessageBytes = 1 << 10

// explain makes what a client is told of any error.
func explain(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	f := &failure{Code: codeOf(err)}
	if text, ok := plain[f.Code]; ok {
		f.Msg = text
		return f
	}
	f.Msg = strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "?")), " ")
	if len(f.Msg) > maxMessageBytes {
		f.Msg = strings.ToValidUTF8(f.Msg[:maxMessageBytes], "") + "..."
	}
	if c, ok := errors.AsType[*jetbus.ConflictError](err); ok {
		f.Details = map[string]any{"differences": c.Differences}
	}
	if b, ok := errors.AsType[*jetbus.GroupBusyError](err); ok {
		f.Details = map[string]any{"topic": b.Topic, "group": b.Group, "held": b.Held}
	}
	if c, ok := errors.AsType[*jetbus.ChainError](err); ok {
		f.Details = map[string]any{"topic": c.Topic, "afterId": c.AfterID, "lastId": c.LastID, "lastSeq": c.LastSeq, "reason": c.Reason}
	}
	if d, ok := errors.AsType[detailed](err); ok {
		f.Details = d.Details()
	}
	return f
}

// detailed are errors that have something to say to programs.
type detailed interface {
	error
	Details() any
}
