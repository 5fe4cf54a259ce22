package jetbus

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// deadPrefix is in front of the topic's name in that of its dead letters.
const deadPrefix = "dlq."

// DeadLetterTopic is the topic that holds the dead letters of a topic:
// "dlq.orders.created" for "orders.created". Dead letters have none of their own:
// one that cannot be handled stays where it is, and the result is empty.
func DeadLetterTopic(topic string) string {
	if IsDeadLetterTopic(topic) {
		return ""
	}
	return deadPrefix + topic
}

// IsDeadLetterTopic reports whether a topic holds dead letters.
func IsDeadLetterTopic(topic string) bool { return strings.HasPrefix(topic, deadPrefix) }

// DeadReason says why an event became a dead letter.
type DeadReason string

// The reasons.
const (
	DeadMaxAttempts DeadReason = "max_attempts" // its handler failed MaxAttempts times
	DeadRejected    DeadReason = "rejected"     // its handler said Reject
	DeadUndecodable DeadReason = "undecodable"  // the message is no event
	DeadSchema      DeadReason = "schema"       // it breaks the schema of its topic
	DeadCrashLoop   DeadReason = "crash_loop"   // it was being handled, alone, each time its process died
	DeadMaxDeliver  DeadReason = "max_deliver"  // another client let the server give up on it
	DeadTerminated  DeadReason = "terminated"   // another client terminated it
)

// DeadLetter is an event that a group could not process, with what is known
// about that. It is stored as an event of its own in [DeadLetterTopic]: the
// payload and the headers are those of the original, its other fields and what
// is told here are in headers x-dlq-... In JSON it is an object with the original
// in the member event; see MarshalJSON.
type DeadLetter struct {
	// Event is the original; Seq is its position in its topic.
	Event Event
	Group string // that could not process it
	// Stream is where the original was stored, and StreamCreated when that stream
	// was made: together with Event.Seq they name it at the broker.
	Stream        string
	StreamCreated time.Time
	Reason        DeadReason
	Error         string // of the last attempt, in one line of at most 1 KiB
	// Stack is the stack of the last failure, as [StackOf] returns it: it can contain secrets. Record keeps at most
	// [MaxStackBytes] of it, and less or nothing if the dead letter has no room for more: the event comes first. It can be
	// empty even if the failure had a stack.
	Stack       string
	Attempts    int // that failed
	FirstFailed time.Time
	LastFailed  time.Time
	// Replays is how often the event had been replayed before it failed for this
	// dead letter: 0 for one that comes from its topic.
	Replays int
	// ReplayOf is the position of the dead letter whose replay failed; 0: it was none.
	ReplayOf uint64
	// Truncated: the payload, or headers and lists of the original, had no room in
	// the dead letter. The whole of it is only in Stream, as long as that keeps it.
	Truncated bool

	// ID, Seq and Time are those of the dead letter itself; set on what was stored.
	ID   string
	Seq  uint64    // in the dead-letter topic
	Time time.Time // when the event was given up
	// Replayed is when this dead letter was last replayed; set by [DeadLetters]. Zero: it
	// is open, or its last replay is more than 30 days ago.
	Replayed time.Time
}

// Headers of a dead letter beside those of the original.
const (
	headerDeadID        = "x-dlq-ce-id"
	headerDeadSID       = "x-dlq-ce-source"
	headerDeadTime      = "x-dlq-ce-time"
	headerDeadKey       = "x-dlq-ce-partitionkey"
	headerDeadCausedBy  = "x-dlq-ce-causedby"
	headerDeadTags      = "x-dlq-ce-tags"
	headerDeadTopic     = "x-dlq-topic"
	headerDeadGroup     = "x-dlq-group"
	headerDeadStream    = "x-dlq-stream"
	headerDeadCreated   = "x-dlq-stream-created"
	headerDeadSeq       = "x-dlq-seq"
	headerDeadPartition = "x-dlq-partition"
	headerDeadAttempts  = "x-dlq-attempts"
	headerDeadReason    = "x-dlq-reason"
	headerDeadError     = "x-dlq-error"
	headerDeadFirst     = "x-dlq-first-failed"
	headerDeadLast      = "x-dlq-last-failed"
	headerDeadReplays   = "x-dlq-replays"
	headerDeadReplayOf  = "x-dlq-replay-of"
	headerDeadTruncated = "x-dlq-truncated" // "payload", "headers"
	headerDeadStack     = "x-dlq-stack"

	deadHeaders  = "x-dlq-"
	deadOriginal = "x-dlq-h-" // before what follows x-dlq- in a header that the original has itself
)

const (
	maxDeadErrorBytes  = 1 << 10  // of the error text
	maxDeadReasonBytes = 100      // of the reason
	maxDeadHeaderBytes = 48 << 10 // of all headers: the broker takes 64 KiB with those of the dead letter's own event
)

// Key is the key of the dead letter in its topic: it names the group, the
// original, and the replay of it that failed, so that publishing it on condition
// that the key has no event keeps one record of each however often it is repeated.
func (d *DeadLetter) Key() string {
	tail := fmt.Sprintf("@%s/%d", strconv.FormatInt(d.StreamCreated.UnixNano(), 36), d.Event.Seq)
	if d.Replays > 0 || d.ReplayOf > 0 {
		tail += "/" + strconv.Itoa(d.Replays)
	}
	if d.ReplayOf > 0 {
		tail += "/" + strconv.FormatUint(d.ReplayOf, 10)
	}
	head := d.Group + "/" + d.Stream
	return cutText(head, MaxKeyBytes-len(tail)) + tail // a stream's name may be as long as a key
}

// Record returns the event that stores the dead letter, to be published with
// ExpectLastSeq 0. Its own fields ID, Seq and Time are left to Publish. It is
// valid if the original is: what has no room there is left out, which
// [DeadLetter.Truncated] then says.
func (d *DeadLetter) Record() Event {
	w := deadWriter{h: make(map[string]string, len(d.Event.Headers)+20)}
	w.text(headerDeadID, headerText(d.Event.ID, MaxHeaderValueBytes))
	w.text(headerDeadSID, escapeText(d.Event.SID))
	w.moment(headerDeadTime, d.Event.Time)
	w.text(headerDeadKey, escapeText(d.Event.Key))
	w.text(headerDeadCausedBy, listText(d.Event.CausedBy))
	w.text(headerDeadTags, listText(d.Event.Tags))
	w.text(headerDeadTopic, d.Event.Topic)
	w.text(headerDeadGroup, d.Group)
	w.text(headerDeadStream, escapeText(d.Stream))
	w.moment(headerDeadCreated, d.StreamCreated)
	w.text(headerDeadSeq, strconv.FormatUint(d.Event.Seq, 10))
	if d.Event.Partition >= 0 {
		w.text(headerDeadPartition, strconv.Itoa(d.Event.Partition))
	}
	w.text(headerDeadAttempts, strconv.Itoa(d.Attempts))
	w.text(headerDeadReason, headerText(string(d.Reason), maxDeadReasonBytes))
	w.text(headerDeadError, headerText(d.Error, maxDeadErrorBytes))
	w.moment(headerDeadFirst, d.FirstFailed)
	w.moment(headerDeadLast, d.LastFailed)
	if d.Replays > 0 {
		w.text(headerDeadReplays, strconv.Itoa(d.Replays))
	}
	if d.ReplayOf > 0 {
		w.text(headerDeadReplayOf, strconv.FormatUint(d.ReplayOf, 10))
	}
	w.original(d.Event.Headers)
	e := Event{Topic: DeadLetterTopic(d.Event.Topic), Key: d.Key(), Partition: NoPartition, Headers: w.h, Payload: d.Event.Payload}
	if d.Event.ID != "" {
		e.CausedBy = []string{d.Event.ID}
	}
	switch {
	case d.Truncated:
		w.h[headerDeadTruncated] = "payload"
		e.Payload = nil
	case w.short:
		w.h[headerDeadTruncated] = "headers"
	}
	w.stack(d.Stack)
	return e
}

// deadWriter makes the headers of a dead letter.
type deadWriter struct {
	h     map[string]string
	bytes int
	short bool // something had no room
}

func (w *deadWriter) text(name, value string) {
	switch {
	case value == "":
	case len(value) > MaxHeaderValueBytes:
		w.short = true
	default:
		w.h[name] = value
		w.bytes += len(name) + len(value)
	}
}

func (w *deadWriter) moment(name string, t time.Time) {
	if !t.IsZero() {
		w.text(name, t.UTC().Format(time.RFC3339Nano))
	}
}

// stack adds the stack if the other headers leave room.
func (w *deadWriter) stack(stack string) {
	room := min(MaxStackBytes, maxDeadHeaderBytes-w.bytes-len(headerDeadStack))
	if text := stackText(stack, room); text != "" && len(w.h) < MaxHeaders {
		w.h[headerDeadStack] = text
	}
}

// original adds the headers of the original, in their order as far as there is room.
func (w *deadWriter) original(headers map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		stored, value := name, headers[name]
		if rest, ok := strings.CutPrefix(name, deadHeaders); ok {
			stored = deadOriginal + rest
		}
		full := len(w.h) >= MaxHeaders-1 || w.bytes+len(stored)+len(value) > maxDeadHeaderBytes // one is for headerDeadTruncated
		if full || len(stored) > MaxHeaderNameBytes {
			w.short = true
			continue
		}
		w.h[stored] = value
		w.bytes += len(stored) + len(value)
	}
}

// ParseDeadLetter reads an event of a dead-letter topic. The error wraps
// [ErrUndecodable]: the event is something else.
func ParseDeadLetter(e Event) (DeadLetter, error) {
	r := deadReader{h: e.Headers}
	d := DeadLetter{
		Event: Event{
			ID: e.Headers[headerDeadID], SID: r.text(headerDeadSID), Time: r.moment(headerDeadTime), Topic: e.Headers[headerDeadTopic],
			Key: r.text(headerDeadKey), Partition: NoPartition, Payload: e.Payload, CausedBy: r.list(headerDeadCausedBy), Tags: r.list(headerDeadTags),
		},
		Group: e.Headers[headerDeadGroup], Stream: r.text(headerDeadStream), StreamCreated: r.moment(headerDeadCreated),
		Reason: DeadReason(e.Headers[headerDeadReason]), Error: e.Headers[headerDeadError],
		Attempts: r.number(headerDeadAttempts), FirstFailed: r.moment(headerDeadFirst), LastFailed: r.moment(headerDeadLast),
		Replays: r.number(headerDeadReplays), Truncated: e.Headers[headerDeadTruncated] != "",
		ID: e.ID, Seq: e.Seq, Time: e.Time,
	}
	var ok bool
	if d.Stack, ok = unescapeText(e.Headers[headerDeadStack]); !ok { // written by others: it is shown as it is
		d.Stack = e.Headers[headerDeadStack]
	}
	if e.Headers[headerDeadPartition] != "" {
		d.Event.Partition = r.number(headerDeadPartition)
	}
	d.Event.Seq = r.position(headerDeadSeq)
	if e.Headers[headerDeadReplayOf] != "" {
		d.ReplayOf = r.position(headerDeadReplayOf)
	}
	if ValidTopic(d.Event.Topic) != nil || DeadLetterTopic(d.Event.Topic) != e.Topic { // of another topic: a replay would go astray
		r.refuse(headerDeadTopic)
	}
	if ValidGroup(d.Group) != nil {
		r.refuse(headerDeadGroup)
	}
	if ValidKey(d.Event.Key) != nil {
		r.refuse(headerDeadKey)
	}
	if r.bad != "" {
		return DeadLetter{}, fmt.Errorf("%w: event %s of %s is no dead letter: header %s is %.100q", ErrUndecodable, e.ID, e.Topic, r.bad, e.Headers[r.bad])
	}
	d.Event.Headers = originalHeaders(e.Headers)
	return d, nil
}

// originalHeaders are those that the original had.
func originalHeaders(h map[string]string) map[string]string {
	var out map[string]string
	for name, value := range h {
		if rest, ok := strings.CutPrefix(name, deadOriginal); ok {
			name = deadHeaders + rest
		} else if strings.HasPrefix(name, deadHeaders) {
			continue
		}
		if out == nil {
			out = make(map[string]string, len(h))
		}
		out[name] = value
	}
	return out
}

// deadReader reads the headers of a dead letter. A header that is not there is
// the zero value; bad is one that says nothing.
type deadReader struct {
	h   map[string]string
	bad string
}

func (r *deadReader) refuse(name string) {
	if r.bad == "" {
		r.bad = name
	}
}

func (r *deadReader) text(name string) string {
	s, ok := unescapeText(r.h[name])
	if !ok {
		r.refuse(name)
	}
	return s
}

func (r *deadReader) number(name string) int {
	if r.h[name] == "" {
		return 0
	}
	n, err := strconv.Atoi(r.h[name])
	if err != nil || n < 0 {
		r.refuse(name)
	}
	return n
}

func (r *deadReader) position(name string) uint64 {
	n, err := strconv.ParseUint(r.h[name], 10, 64)
	if err != nil {
		r.refuse(name)
	}
	return n
}

func (r *deadReader) moment(name string) time.Time {
	if r.h[name] == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, r.h[name])
	if err != nil || !yearInRange(t) {
		r.refuse(name)
	}
	return t.UTC()
}

func (r *deadReader) list(name string) []string {
	if r.h[name] == "" {
		return nil
	}
	items := strings.Split(r.h[name], ",")
	for i, item := range items {
		var ok bool
		if items[i], ok = unescapeText(item); !ok || item == "" {
			r.refuse(name)
		}
	}
	return items
}

// headerText makes a header's value of any text: in one line, and not longer
// than that many bytes.
func headerText(s string, most int) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.Map(func(r rune) rune {
		if unprintable(r) {
			return ' '
		}
		return r
	}, s)
	return strings.TrimSpace(cutText(strings.TrimSpace(s), most))
}

// cutText cuts a text to at most that many bytes, between characters.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	most = max(most, 0)
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// listText joins items with commas.
func listText(items []string) string {
	escaped := make([]string, len(items))
	for i, item := range items {
		escaped[i] = escapeText(item)
	}
	return strings.Join(escaped, ",")
}

// escapeText writes what a header's value or a list cannot hold as "%" and two
// hex digits: spaces, commas, quotes, percent signs and all that is not ASCII.
func escapeText(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c > ' ' && c <= '~' && c != '%' && c != ',' && c != '"' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}

func unescapeText(s string) (string, bool) {
	if !strings.Contains(s, "%") {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		c, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), true
}

// Validate reports a dead letter that could not be read again: an Event that is
// not valid or has no Seq, one of a topic of dead letters, which has none of its own, a
// Group that is no name, or counts below 0. The error wraps that of [Event.Validate],
// [ErrInvalidTopic], [ErrInvalidGroup] or [ErrInvalidOption].
func (d *DeadLetter) Validate() error {
	if err := d.Event.Validate(); err != nil {
		return err
	}
	if err := ValidGroup(d.Group); err != nil {
		return err
	}
	switch {
	case IsDeadLetterTopic(d.Event.Topic):
		return fmt.Errorf("%w: %s holds dead letters, which have none of their own", ErrInvalidTopic, d.Event.Topic)
	case d.Event.Seq == 0:
		return fmt.Errorf("%w: the event of a dead letter has no Seq, which says where it stands in %s", ErrInvalidOption, d.Event.Topic)
	case d.Attempts < 0 || d.Replays < 0:
		return fmt.Errorf("%w: Attempts is %d and Replays is %d, use 0 or more", ErrInvalidOption, d.Attempts, d.Replays)
	case (d.Stream == "") != d.StreamCreated.IsZero():
		return fmt.Errorf("%w: Stream is %q and StreamCreated is %v: set both or none", ErrInvalidOption, d.Stream, d.StreamCreated)
	}
	return nil
}

// deadLetterJSON is the JSON form of a DeadLetter without the original.
type deadLetterJSON struct {
	ID            string     `json:"id,omitempty"`
	Seq           uint64     `json:"seq,omitempty"`
	TS            *int64     `json:"ts,omitempty"`
	Group         string     `json:"group"`
	Reason        DeadReason `json:"reason"`
	Error         string     `json:"error,omitempty"`
	Stack         string     `json:"stack,omitempty"`
	Attempts      int        `json:"attempts"`
	FirstFailed   *int64     `json:"firstFailed,omitempty"`
	LastFailed    *int64     `json:"lastFailed,omitempty"`
	Replays       int        `json:"replays,omitempty"`
	ReplayOf      uint64     `json:"replayOf,omitempty"`
	Replayed      *int64     `json:"replayed,omitempty"`
	Truncated     bool       `json:"truncated,omitempty"`
	Stream        string     `json:"stream,omitempty"`
	StreamCreated time.Time  `json:"streamCreated,omitzero"`
}

// MarshalJSON gives the members id, seq and ts of the dead letter itself, then
// group, reason, error, stack, attempts, firstFailed, lastFailed, replays,
// replayOf, replayed, truncated, stream, streamCreated and, in the member event, the original as
// [Event.MarshalJSON] gives it. Times are epoch milliseconds, but for
// streamCreated, which names the stream and is RFC 3339 with all its digits.
// Members that are empty are left out.
func (d DeadLetter) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(deadLetterJSON{
		ID: d.ID, Seq: d.Seq, TS: toEpoch(d.Time), Group: d.Group, Reason: d.Reason, Error: d.Error, Stack: d.Stack, Attempts: d.Attempts,
		FirstFailed: toEpoch(d.FirstFailed), LastFailed: toEpoch(d.LastFailed), Replays: d.Replays, ReplayOf: d.ReplayOf, Replayed: toEpoch(d.Replayed),
		Truncated: d.Truncated, Stream: d.Stream, StreamCreated: d.StreamCreated.UTC(),
	})
	if err != nil {
		return nil, fmt.Errorf("marshal dead letter %s: %w", d.ID, err)
	}
	text = append(text[:len(text)-len("}")], `,"event":`...)
	if text, err = AppendJSON(text, &d.Event); err != nil {
		return nil, fmt.Errorf("marshal dead letter %s: %w", d.ID, err)
	}
	return append(text, '}'), nil
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (d *DeadLetter) UnmarshalJSON(text []byte) error {
	type form struct {
		deadLetterJSON
		Event Event `json:"event"`
	}
	w, err := unmarshal[form](text, "dead letter")
	if err != nil {
		return err
	}
	*d = DeadLetter{
		Event: w.Event, ID: w.ID, Seq: w.Seq, Time: fromEpoch(w.TS), Group: w.Group, Reason: w.Reason, Error: w.Error, Stack: w.Stack, Attempts: w.Attempts,
		FirstFailed: fromEpoch(w.FirstFailed), LastFailed: fromEpoch(w.LastFailed), Replays: w.Replays, ReplayOf: w.ReplayOf, Replayed: fromEpoch(w.Replayed),
		Truncated: w.Truncated, Stream: w.Stream, StreamCreated: w.StreamCreated,
	}
	return nil
}
