package ce

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// schemaVersion returns the number that a reference to a registered schema ends
// with, empty if it is none.
func schemaVersion(uri string) string {
	rest, ok := strings.CutPrefix(uri, schemaPrefix)
	if !ok {
		return ""
	}
	_, number, _ := strings.Cut(rest, "/")
	if len(number) > 9 || strings.HasPrefix(number, "0") || strings.Trim(number, "0123456789") != "" {
		return ""
	}
	return number
}

// parseTime reads RFC 3339 in any precision and zone and gives milliseconds in UTC.
func parseTime(s string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		if t, err = time.Parse(time.RFC3339Nano, strings.ToUpper(s)); err != nil { // "t" and "z" are allowed
			return time.Time{}, false
		}
	}
	return millis(t), true
}

// millis cuts t to the precision of events.
func millis(t time.Time) time.Time { return time.UnixMilli(t.UnixMilli()).UTC() }

// Place is where a message was stored, which says what the message itself does not.
// Its values are taken as they are. An event of a snapshot is where the server says in
// Nats-Stream-Source that it was copied from.
type Place struct {
	Topic  string // of its subject: that of the event, whatever ce-type says
	Stream string // for the id of a message without one
	Seq    uint64 // in the stream: that of the event
	// Time is when it was stored: Stored of the event, and the time of a message without
	// one. Zero: that is not known.
	Time time.Time
	// Token is the key token of its subject, for a message without a key. Empty
	// where subjects say nothing about keys.
	Token string
	// Partition is that of its subject, if Partitioned.
	Partition   int
	Partitioned bool
}

// fallbackID is the id of a message that has none: <stream>-<seq>, with a hash in
// place of a stream name that does not fit into an id.
func (s *Place) fallbackID() string {
	seq := strconv.FormatUint(s.Seq, 10)
	id := s.Stream + "-" + seq
	if invalid(&jetbus.Event{ID: id}) {
		id = ShortHash(s.Stream) + "-" + seq
	}
	return id
}

// key is the key that the subject names, empty if it names none that is valid.
func (s *Place) key() string {
	if s.Token == "" {
		return ""
	}
	key, ok := ParseKeyToken(s.Token)
	if !ok || jetbus.ValidKey(key) != nil {
		return ""
	}
	return key
}

// Decode reads a stored message. It takes whatever there is, CloudEvents in
// binary or structured mode or anything else, and gives an event that
// [jetbus.Event.Validate] accepts: what a message does not say comes from where
// it was stored. A marker that the server left for an expired event is the payload null.
// The payload is data itself, not a copy. The error wraps
// [jetbus.ErrUndecodable]: the message says that it is in structured mode and is not.
func Decode(h nats.Header, data []byte, at Place) (jetbus.Event, error) {
	r := eventReader{h: h, at: at, e: jetbus.Event{
		Topic: at.Topic, Partition: jetbus.NoPartition, Payload: data, Seq: at.Seq, Stored: at.Time.UTC(),
	}}
	if at.Partitioned {
		r.e.Partition = at.Partition
	}
	for name, values := range h {
		if len(values) > 0 {
			r.header(name, values)
		}
	}
	r.oddHeaders()
	if isStructured(r.mediaType) {
		if err := r.document(data); err != nil {
			return jetbus.Event{}, err
		}
	}
	r.complete()
	return r.e, nil
}

// eventReader collects the attributes of one message. Values of attributes are
// unescaped here.
type eventReader struct {
	h         nats.Header
	at        Place
	e         jetbus.Event
	odd       []string // names of headers that are not lower case
	mediaType string   // content-type: of the message as a whole
	dataType  string   // datacontenttype
	eventType string
	version   string
	sent      string // time
	source    string
	marker    bool
}

// header takes one header, whose name has no upper-case letters unless the
// server's own does.
func (r *eventReader) header(name string, values []string) {
	value := values[0]
	switch name { // what the bus itself writes goes first
	case HeaderMsgID:
	case headerSpecVersion:
		r.version = unescape(value)
	case headerID:
		r.e.ID = unescape(value)
	case headerType:
		r.eventType = unescape(value)
	case headerSource:
		r.source = unescape(value)
	case HeaderTime:
		r.sent = unescape(value)
	case headerKey:
		r.e.Key = unescape(value)
	case headerDataType:
		r.dataType = unescape(value)
	case jetbus.HeaderContentType:
		r.mediaType = value
	case HeaderMarker:
		r.marker = true
	case headerCausedBy, headerTags: // split before they are unescaped
		r.attribute(name[len(attributePrefix):], value)
	default:
		attribute, ok := strings.CutPrefix(name, attributePrefix)
		if !ok || attribute == "" || hasUpper(attribute) {
			r.other(name, values)
			return
		}
		r.attribute(attribute, unescape(value))
	}
}

// attribute takes one CloudEvents attribute.
func (r *eventReader) attribute(name, value string) {
	switch name {
	case attributeSpecVersion:
		r.version = value
	case attributeID:
		r.e.ID = value
	case attributeType:
		r.eventType = value
	case attributeSource:
		r.source = value
	case attributeTime:
		r.sent = value
	case attributeKey:
		r.e.Key = value
	case attributeCausedBy:
		r.e.CausedBy = splitList(value)
	case attributeTags:
		r.e.Tags = splitList(value)
	case attributeDataType:
		r.dataType = value
	default:
		r.keepAttribute(name, value)
	}
}

// other takes a header that is no attribute. Headers of the server stay out.
func (r *eventReader) other(name string, values []string) {
	switch {
	case strings.HasPrefix(name, "Nats-"):
		return
	case hasUpper(name):
		r.odd = append(r.odd, name)
		return
	}
	if ext, ok := strings.CutPrefix(name, jetbus.HeaderExtension); ok && !isField(ext) && len(r.h[attributePrefix+ext]) > 0 {
		return // the attribute goes before a header of its name
	}
	value := values[0]
	if len(values) > 1 {
		value = strings.Join(values, ", ")
	}
	r.keep(name, value)
}

// oddHeaders takes the headers whose names are not lower case: those that an event may
// have, as they are; the others as what they are in lower case, as HTTP has it and libraries
// that take NATS for HTTP write. Of names that differ only in case a lower-case one goes
// first, then the one that sorts first.
func (r *eventReader) oddHeaders() {
	if len(r.odd) == 0 {
		return
	}
	odd := r.odd
	slices.Sort(odd)
	taken := make(map[string]bool, len(odd))
	for _, name := range odd {
		lower := strings.ToLower(name)
		_, kept := r.e.Headers[lower]
		if kept || taken[lower] || len(r.h[lower]) > 0 {
			continue
		}
		taken[lower] = true
		if value := strings.Join(r.h[name], ", "); !r.keep(name, value) {
			r.header(lower, r.h[name])
		}
	}
}

// hasUpper reports whether a name has one of the letters A-Z.
func hasUpper(name string) bool {
	for i := range len(name) {
		if name[i] >= 'A' && name[i] <= 'Z' {
			return true
		}
	}
	return false
}

// splitList returns the items of a list, nil if there is none.
func splitList(list string) []string {
	if list == "" {
		return nil
	}
	items := make([]string, 0, strings.Count(list, ",")+1)
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.Trim(item, " "); item != "" {
			items = append(items, unescape(item))
		}
	}
	if len(items) == 0 {
		return nil
	}
	return items
}

// joinList is the inverse of splitList.
func joinList(items []string) string {
	var b strings.Builder
	for i, item := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		itemEscape.write(&b, item)
	}
	return b.String()
}

// keep puts a header into the event if an event may carry it.
func (r *eventReader) keep(name, value string) bool {
	if jetbus.ValidHeader(name, value) != nil {
		return false
	}
	if r.e.Headers == nil {
		r.e.Headers = make(map[string]string)
	}
	r.e.Headers[name] = value
	return true
}

// keepAttribute keeps an attribute that is no field of an event as a header,
// escaped where it must be.
func (r *eventReader) keepAttribute(name, value string) {
	if !r.keep(jetbus.HeaderExtension+name, value) {
		r.keep(jetbus.HeaderExtension+name, attributeEscape.encode(value))
	}
}

// complete fills in what the message did not say, and keeps what it said and an
// event cannot hold.
func (r *eventReader) complete() {
	e := &r.e
	if r.dataType == "" {
		r.dataType = r.mediaType
	}
	if r.dataType != "" && r.dataType != defaultContentType && !r.keep(jetbus.HeaderContentType, r.dataType) {
		r.keepAttribute(attributeDataType, r.dataType)
	}
	if version := schemaVersion(e.Headers[nameSchema]); version != "" {
		if _, stated := e.Headers[jetbus.HeaderSchemaVersion]; !stated {
			r.keep(jetbus.HeaderSchemaVersion, version)
		}
	}
	if r.eventType != "" && r.eventType != e.Topic {
		r.keepAttribute(attributeType, r.eventType)
	}
	if r.version != "" && r.version != specVersion {
		r.keepAttribute(attributeSpecVersion, r.version)
	}
	e.SID = sidOf(r.source)
	if r.source != "" && isForeignSource(r.source, e.SID) {
		r.keepAttribute(attributeSource, r.source)
	}
	sent, ok := parseTime(r.sent)
	if !ok {
		sent = millis(r.at.Time)
		if r.sent != "" {
			r.keepAttribute(attributeTime, r.sent)
		}
	}
	e.Time = sent
	if e.ID == "" {
		e.ID = r.at.fallbackID()
	}
	if e.Key == "" {
		e.Key = r.at.key()
	}
	if r.marker {
		e.Payload = []byte("null")
		if e.Key == "" { // a deletion all the same, which null alone is not without a key
			e.Headers = map[string]string{jetbus.HeaderTombstone: "1"}
		}
	}
	if !r.surelyValid() && invalid(&jetbus.Event{ID: e.ID, SID: e.SID, Time: e.Time, Key: e.Key, CausedBy: e.CausedBy, Tags: e.Tags}) {
		r.repair()
	}
	if len(e.Headers) > jetbus.MaxHeaders {
		r.trim()
	}
}

// surelyValid reports whether the fields of the event are such that there is no
// need to ask Validate: short visible ASCII, and a time of our centuries.
func (r *eventReader) surelyValid() bool {
	e := &r.e
	const year1970, year9000 = 0, 221845392000
	return isVisible(e.ID, jetbus.MaxIDBytes) && isVisible(e.Key, jetbus.MaxKeyBytes) && isVisible(e.SID, jetbus.MaxIDBytes) &&
		e.CausedBy == nil && e.Tags == nil && e.Time.Unix() > year1970 && e.Time.Unix() < year9000
}

// isVisible reports whether s has at most so many bytes, all of them visible ASCII.
func isVisible(s string, limit int) bool {
	if len(s) > limit {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// invalid reports whether an event with these fields could not be published. Its
// topic and headers are not looked at.
func invalid(e *jetbus.Event) bool {
	e.Topic = "t"
	return e.Validate() != nil
}

// repair moves the fields that an event cannot hold into its headers.
func (r *eventReader) repair() {
	e := &r.e
	if invalid(&jetbus.Event{ID: e.ID}) {
		r.keepAttribute(attributeID, e.ID)
		e.ID = r.at.fallbackID()
	}
	if invalid(&jetbus.Event{SID: e.SID}) {
		r.keepAttribute(attributeSource, r.source)
		e.SID = ""
	}
	if invalid(&jetbus.Event{Time: e.Time}) {
		r.keepAttribute(attributeTime, r.sent)
		e.Time = millis(r.at.Time)
	}
	if jetbus.ValidKey(e.Key) != nil {
		r.keepAttribute(attributeKey, e.Key)
		e.Key = r.at.key()
	}
	if invalid(&jetbus.Event{CausedBy: e.CausedBy}) {
		r.keepAttribute(attributeCausedBy, joinList(e.CausedBy))
		e.CausedBy = nil
	}
	if invalid(&jetbus.Event{Tags: e.Tags}) {
		r.keepAttribute(attributeTags, joinList(e.Tags))
		e.Tags = nil
	}
}

// trim leaves as many headers as an event may have, the first ones by name.
func (r *eventReader) trim() {
	names := slices.Sorted(maps.Keys(r.e.Headers))
	for _, name := range names[jetbus.MaxHeaders:] {
		delete(r.e.Headers, name)
	}
}
