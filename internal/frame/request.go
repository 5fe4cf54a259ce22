package frame

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/exactjson"
)

// Errors of ParseRequest and ParseMessage.
var (
	// ErrUTF8: the frame is no UTF-8, which ends a connection.
	ErrUTF8 = errors.New("the frame is no UTF-8")
	// ErrJSON: the frame is no JSON object, or nests too deep.
	ErrJSON = errors.New("invalid JSON")
	// ErrMember: a member has a value of the wrong type, or out of range.
	ErrMember = errors.New("invalid member")
)

// Request is a frame of a client; which members count goes by Op. Durations are
// milliseconds.
type Request struct {
	Op   string `json:"op"`
	Corr string `json:"corr,omitempty"` // comes back with the answer

	// AUTH
	Token   string `json:"token,omitempty"`
	Session string `json:"session,omitempty"` // that of a connection which broke: go on with what it held

	// SUBSCRIBE, UNSUBSCRIBE, FLOW, SEEK, CURSOR, and with Group and ID those of the first clients
	Topic  string          `json:"topic,omitempty"`
	Topics []string        `json:"topics,omitempty"`
	Group  string          `json:"group,omitempty"`
	Sub    string          `json:"sub,omitempty"` // the client's name for the subscription; SUBSCRIBE may leave it to the gateway
	Opts   json.RawMessage `json:"opts,omitempty"`
	Drain  bool            `json:"drain,omitempty"`    // UNSUBSCRIBE: wait until what is held is settled
	Credit int64           `json:"messages,omitempty"` // FLOW: events more
	Pause  *bool           `json:"pause,omitempty"`    // FLOW, of a group: send no more events, or go on
	To     *Position       `json:"to,omitempty"`       // SEEK

	// PUBLISH, PUBLISH_BATCH
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 *string         `json:"payload_base64,omitempty"` // a payload that is no JSON
	Events        []PublishItem   `json:"events,omitempty"`
	Atomic        bool            `json:"atomic,omitempty"` // the first event's options may have a condition on its key
	Chain         *jetbus.Chain   `json:"chain,omitempty"`  // the events belong behind that one, each directly behind the one before it
	AgeMs         int64           `json:"age_ms,omitempty"` // it may be stored already: how long ago it was sent first

	// ACK, NACK, MODACK, ACKS
	ID       string   `json:"id,omitempty"`
	AckID    string   `json:"ack_id,omitempty"`
	Confirm  bool     `json:"confirm,omitempty"` // answer without corr, too
	Reason   string   `json:"reason,omitempty"`
	DelayMs  int64    `json:"delay_ms,omitempty"`
	ExtendMs int64    `json:"extend_ms,omitempty"`
	Dead     bool     `json:"dead,omitempty"`        // NACK: to the dead letters at once
	DeadAs   string   `json:"dead_reason,omitempty"` // the reason that the dead letter shows besides Reason, which is its text
	Stack    string   `json:"stack,omitempty"`       // NACK: of the failure, for the dead letter
	Snooze   bool     `json:"snooze,omitempty"`
	GiveBack bool     `json:"give_back,omitempty"` // NACK: unprocessed, for another member at once; no attempt
	Ack      []string `json:"ack,omitempty"`
	Nack     []Refuse `json:"nack,omitempty"`
	Mod      []Extend `json:"mod,omitempty"`

	// PING, PONG
	N int64 `json:"n,omitempty"`
}

// PublishItem is one event of a batch.
type PublishItem struct {
	Topic         string          `json:"topic"`
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 *string         `json:"payload_base64,omitempty"`
	Opts          json.RawMessage `json:"opts,omitempty"`
}

// Refuse is one NACK of ACKS.
type Refuse struct {
	AckID   string `json:"ack_id"`
	DelayMs int64  `json:"delay_ms,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Dead    bool   `json:"dead,omitempty"`
	DeadAs  string `json:"dead_reason,omitempty"`
	Stack   string `json:"stack,omitempty"`  // of the failure, for the dead letter
	Snooze  bool   `json:"snooze,omitempty"` // put it off by DelayMs, which is no attempt

	GiveBack bool `json:"give_back,omitempty"` // return it unprocessed, which is none either
}

// Extend is one MODACK of ACKS.
type Extend struct {
	AckID    string `json:"ack_id"`
	ExtendMs int64  `json:"extend_ms,omitempty"`
}

// Position is where SEEK moves a group: exactly one of its members.
type Position struct {
	Kind   string  `json:"from,omitempty"`   // earliest or latest
	TS     *int64  `json:"ts,omitempty"`     // epoch milliseconds
	Offset string  `json:"offset,omitempty"` // of an event: behind it
	Seq    *uint64 `json:"seq,omitempty"`    // behind it
	ID     string  `json:"id,omitempty"`     // behind the event with that id
	Force  bool    `json:"force,omitempty"`  // what members hold is lost to them
	WaitMs int64   `json:"waitMs,omitempty"` // for what members hold; 0: the group's ack timeout
}

// PublishOptions are the member opts of PUBLISH: the event's attributes, and what the
// broker is told.
type PublishOptions struct {
	ID       string            `json:"id,omitempty"`
	SID      string            `json:"sid,omitempty"`
	TS       *int64            `json:"ts,omitempty"` // epoch milliseconds
	Key      string            `json:"key,omitempty"`
	Headers  map[string]string `json:"headers,omitempty"`
	CausedBy []string          `json:"caused_by,omitempty"`
	Tags     []string          `json:"tags,omitempty"`

	Expect        *Expect `json:"expect,omitempty"`
	ExpectLastSeq *uint64 `json:"expectLastSeq,omitempty"` // the same as expect.lastSeq
	TTLMs         int64   `json:"ttlMs,omitempty"`
	DeliverAt     *int64  `json:"deliverAt,omitempty"` // epoch milliseconds

	// Dry runs are not supported. They are refused, because the event would be stored if they were ignored.
	DryRun      bool `json:"dryRun,omitempty"`
	DryRunQuery bool `json:"dry_run,omitempty"` // the name in a query over HTTP
}

// Expect is a condition on the last event of the key.
type Expect struct {
	LastSeq *uint64 `json:"lastSeq,omitempty"`
	LastID  string  `json:"lastId,omitempty"` // not supported: it is refused, not ignored
}

// ParseRequest decodes a frame of a client. Payloads keep their bytes. Member names must match
// exactly: unknown members are ignored, but members that are given twice, or differ from a known
// one only in case, are refused. If the error is ErrMember, the Request has the members that
// could be decoded, including Op and Corr.
func ParseRequest(text []byte) (Request, error) {
	var r Request
	if err := parse(text, &r); err != nil {
		return r, err
	}
	if len(r.Corr) > MaxCorr {
		r.Corr = ""
		return r, fmt.Errorf("%w: corr has more than %d bytes", ErrMember, MaxCorr)
	}
	return r, nil
}

// CorrOf returns the member corr of a request that is not parsed. text is the beginning of the request. The
// result is "" unless corr is there, and all members before it are strings.
func CorrOf(text []byte) string {
	d := json.NewDecoder(bytes.NewReader(text))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return ""
	}
	for {
		name, err := d.Token()
		if err != nil {
			return ""
		}
		value, err := d.Token()
		s, ok := value.(string)
		switch {
		case err != nil || !ok:
			return ""
		case name == "corr" && len(s) <= MaxCorr:
			return s
		}
	}
}

// parse decodes JSON by exact member names, within the limits of frames.
func parse(text []byte, into any) error {
	if !utf8.Valid(text) {
		return ErrUTF8
	}
	if Depth(text) > maxDepth {
		return fmt.Errorf("%w: nested deeper than %d", ErrJSON, maxDepth)
	}
	err := exactjson.Unmarshal(text, into, exactjson.RefuseVariants)
	if _, ok := errors.AsType[*exactjson.MemberError](err); ok {
		return fmt.Errorf("%w: %w", ErrMember, err)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field == "" {
			return fmt.Errorf("%w: a frame is an object, not %s", ErrJSON, wrong.Value)
		}
		return fmt.Errorf("%w: %s is %s", ErrMember, wrong.Field, wrong.Value)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrJSON, err)
	}
	return nil
}

// Depth returns how deep objects and arrays nest in a text, which is that of its JSON if
// it is valid.
func Depth(text []byte) int {
	deepest, now, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted:
			if c == '\\' {
				i++ // what is escaped may be a quote
			}
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

// Item is the event of a PUBLISH frame.
func (r *Request) Item() PublishItem {
	return PublishItem{Topic: r.Topic, Payload: r.Payload, PayloadBase64: r.PayloadBase64, Opts: r.Opts}
}

// Event returns what is to be published. It does not validate the event. The errors are
// ErrMember and, for what is not supported, [jetbus.ErrUnsupported].
func (p *PublishItem) Event() (jetbus.Event, jetbus.PublishOptions, error) {
	var o PublishOptions
	if len(p.Opts) > 0 {
		if err := parse(p.Opts, &o); err != nil {
			return jetbus.Event{}, jetbus.PublishOptions{}, fmt.Errorf("opts: %w", err)
		}
	}
	e := jetbus.Event{
		ID: o.ID, SID: o.SID, Topic: p.Topic, Key: o.Key, Partition: jetbus.NoPartition,
		Headers: o.Headers, Payload: p.Payload, CausedBy: o.CausedBy, Tags: o.Tags,
	}
	if o.TS != nil {
		e.Time = time.UnixMilli(*o.TS).UTC()
	}
	if p.PayloadBase64 != nil {
		if len(p.Payload) > 0 {
			return e, jetbus.PublishOptions{}, fmt.Errorf("%w: payload and payload_base64 are both set", ErrMember)
		}
		raw, err := base64.StdEncoding.DecodeString(*p.PayloadBase64)
		if err != nil {
			return e, jetbus.PublishOptions{}, fmt.Errorf("%w: payload_base64: %w", ErrMember, err)
		}
		e.Payload = raw
	} else if Depth(p.Payload) > MaxPayloadDepth {
		return e, jetbus.PublishOptions{}, fmt.Errorf("%w: payload nests deeper than %d", ErrMember, MaxPayloadDepth)
	}
	to, err := o.instructions()
	return e, to, err
}

func (o *PublishOptions) instructions() (jetbus.PublishOptions, error) {
	to := jetbus.PublishOptions{ExpectLastSeq: o.ExpectLastSeq}
	if o.Expect != nil {
		if o.Expect.LastID != "" {
			return to, fmt.Errorf("expect.lastId: %w: use expect.lastSeq", jetbus.ErrUnsupported)
		}
		if o.Expect.LastSeq != nil {
			to.ExpectLastSeq = o.Expect.LastSeq
		}
	}
	if o.DryRun || o.DryRunQuery {
		return to, fmt.Errorf("dryRun: %w: use POST /v1/topics/{topic}?dry_run=1", jetbus.ErrUnsupported)
	}
	const longest = int64(time.Duration(1<<63-1) / time.Millisecond)
	if o.TTLMs < 0 || o.TTLMs > longest {
		return to, fmt.Errorf("%w: ttlMs is %d", ErrMember, o.TTLMs)
	}
	to.TTL = time.Duration(o.TTLMs) * time.Millisecond
	if o.DeliverAt != nil {
		to.DeliverAt = time.UnixMilli(*o.DeliverAt).UTC()
	}
	return to, nil
}

// SubscribeOptions are the member opts of SUBSCRIBE: those of the bus, and the gateway's own.
type SubscribeOptions struct {
	jetbus.SubscribeOptions // from, ts, afterId, afterSeq, ackTimeoutMs, maxInFlight, maxAttempts, filter and so on

	Gateway GatewayOptions
}

// MarshalJSON gives the members of both in one object.
func (o SubscribeOptions) MarshalJSON() ([]byte, error) {
	bus, err := json.Marshal(o.SubscribeOptions)
	if err != nil {
		return nil, err
	}
	own, err := json.Marshal(o.Gateway)
	switch {
	case err != nil:
		return nil, err
	case string(own) == "{}":
		return bus, nil
	case string(bus) == "{}":
		return own, nil
	}
	return append(append(bus[:len(bus)-1], ','), own[1:]...), nil
}

// GatewayOptions are the members of opts that only the gateway has.
type GatewayOptions struct {
	Offset        string           `json:"offset,omitempty"`  // readers: begin behind it; from may say "offset"
	Offsets       []string         `json:"offsets,omitempty"` // the same for several topics, one each
	Created       map[string]int64 `json:"created,omitempty"` // readers: when a topic was made that from is a position in, in ms since 1970
	Flow          string           `json:"flow,omitempty"`    // push (the default) or credit
	Credit        int64            `json:"credit,omitempty"`  // with credit: what there is at first
	ResumeGraceMs int64            `json:"resumeGraceMs,omitempty"`
	HeadersOnly   bool             `json:"headersOnly,omitempty"` // events without their payloads
	Slow          string           `json:"slow,omitempty"`        // readers: close (the default) or conflate
	Assign        bool             `json:"assign,omitempty"`      // ordered groups: ASSIGN and REVOKE frames
	Partitioned   json.RawMessage  `json:"partitioned,omitempty"` // not supported
}

// ParseSubscribeOptions reads the member opts of SUBSCRIBE. It does not validate. The
// errors are ErrMember and, for what is not supported, [jetbus.ErrUnsupported].
func ParseSubscribeOptions(text json.RawMessage) (SubscribeOptions, error) {
	var o SubscribeOptions
	if len(text) == 0 || string(text) == "null" {
		return o, nil
	}
	if err := parse(text, &o.Gateway); err != nil {
		return o, fmt.Errorf("opts: %w", err)
	}
	if err := json.Unmarshal(text, &o.SubscribeOptions); err != nil {
		return o, fmt.Errorf("opts: %w: %w", ErrMember, err)
	}
	var filter struct {
		Filter struct {
			Expr string `json:"expr"`
			Type string `json:"type"`
		} `json:"filter"`
	}
	if err := exactjson.Unmarshal(text, &filter, exactjson.RefuseVariants); err != nil {
		return o, fmt.Errorf("opts: %w: %w", ErrMember, err)
	}
	switch {
	case filter.Filter.Expr != "" || filter.Filter.Type != "":
		return o, fmt.Errorf("filter: %w: use key, keyPrefix and headers", jetbus.ErrUnsupported)
	case len(o.Gateway.Partitioned) > 0 && string(o.Gateway.Partitioned) != "null":
		return o, fmt.Errorf("partitioned: %w: use order per_key", jetbus.ErrUnsupported)
	}
	return o, nil
}
