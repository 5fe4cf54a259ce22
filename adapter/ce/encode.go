package ce

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// Encode returns the headers of a message that stores e, which must be
// valid and have its ID and Time. The message's body is the payload as it is.
func Encode(e *jetbus.Event) nats.Header {
	n := 9 + len(e.Headers)
	w := Writer{h: make(nats.Header, n-2), values: make([]string, 0, n)} // few events have lists
	w.encode(e)
	return w.h
}

// Next returns the headers of another event, where those of the last one were:
// these must not be in use any more.
func (w *Writer) Next(e *jetbus.Event) nats.Header {
	if w.h == nil {
		w.h = make(nats.Header, 7+len(e.Headers))
	}
	w.values = w.values[:0]
	w.encode(e)
	if len(w.h) != len(w.values) { // some are left from the last one
		clear(w.h)
		w.values = w.values[:0]
		w.encode(e)
	}
	return w.h
}

func (w *Writer) encode(e *jetbus.Event) {
	w.text.Reset()
	w.text.Grow(len(e.Topic) + len(e.ID) + len(e.SID) + len(sourcePrefix) + timeBytes + 8)
	at := w.text.Len()
	w.text.WriteString(e.Topic)
	w.text.WriteByte('|')
	w.text.WriteString(e.ID)
	w.set(HeaderMsgID, w.since(at))
	w.set(headerSpecVersion, specVersion)
	w.attribute(headerID, e.ID)
	w.set(headerType, e.Topic)
	foreign := w.source(e)
	w.time(e.Time)
	if e.Key != "" {
		w.attribute(headerKey, e.Key)
	}
	w.list(headerCausedBy, e.CausedBy)
	w.list(headerTags, e.Tags)

	if contentType := e.ContentType(); contentType != defaultContentType {
		w.attribute(headerDataType, contentType)
	}
	version := schemaVersion(e.Headers[nameSchema])
	for name, value := range e.Headers {
		if name == jetbus.HeaderContentType || name == jetbus.HeaderSchemaVersion && version != "" && value == version {
			continue
		}
		if foreign && name == nameSource {
			continue
		}
		if ext, ok := strings.CutPrefix(name, jetbus.HeaderExtension); ok && isExtension(ext) {
			w.attribute(name[len("x-"):], value)
			continue
		}
		w.set(name, value)
	}
}

// Writer encodes one event after the other, as [Encode] does, with fewer allocations: all
// values share one array, and all texts that are made here share one buffer; when it is
// outgrown, the old one stays valid. The zero value is ready to use. It is not safe for
// concurrent use.
type Writer struct {
	h      nats.Header
	values []string
	text   strings.Builder
}

func (w *Writer) set(name, value string) {
	w.values = append(w.values, value)
	n := len(w.values)
	w.h[name] = w.values[n-1 : n : n]
}

// since returns what was written to the buffer from position at on.
func (w *Writer) since(at int) string { return w.text.String()[at:] }

// attribute sets a value, percent-encoded.
func (w *Writer) attribute(name, value string) {
	if !attributeEscape.anyIn(value) {
		w.set(name, value)
		return
	}
	at := w.text.Len()
	attributeEscape.write(&w.text, value)
	w.set(name, w.since(at))
}

// source writes the CloudEvents source. It reports whether it wrote the foreign source in the
// header x-ce-source, which it uses if that source belongs to the event's session ID.
func (w *Writer) source(e *jetbus.Event) (foreign bool) {
	if kept := e.Headers[nameSource]; kept != "" && sidOf(kept) == e.SID && isForeignSource(kept, e.SID) {
		w.attribute(headerSource, kept)
		return true
	}
	if sidEscape.anyIn(e.SID) { // '%' in the URI is escaped once more in the header
		w.attribute(headerSource, sourceURN(e.SID))
		return false
	}
	at := w.text.Len()
	w.text.WriteString(sourcePrefix)
	w.text.WriteString(e.SID)
	w.set(headerSource, w.since(at))
	return false
}

func (w *Writer) time(t time.Time) {
	var digits [timeBytes]byte
	at := w.text.Len()
	w.text.Write(appendTime(digits[:0], t))
	w.set(HeaderTime, w.since(at))
}

func (w *Writer) list(name string, items []string) {
	if len(items) == 0 {
		return
	}
	w.set(name, joinList(items))
}

// timeBytes is the length of a time on the wire.
const timeBytes = len("2006-01-02T15:04:05.000Z")

// appendTime appends t in UTC with milliseconds. The year has four digits.
func appendTime(b []byte, t time.Time) []byte {
	b = t.UTC().AppendFormat(b, time.RFC3339) // the layout that package time has a fast path for
	ms := t.Nanosecond() / 1e6
	return append(b[:len(b)-1], '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10), 'Z')
}
