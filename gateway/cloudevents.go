package gateway

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/exactjson"
)

// Media types of CloudEvents over HTTP.
const (
	cloudEventType  = "application/cloudevents+json"
	cloudEventsType = "application/cloudevents-batch+json"
	cloudEventsAny  = "application/cloudevents"
)

const (
	attributePrefix = "Ce-"         // of headers that are attributes
	sourcePrefix    = "urn:jetbus:" // of sources that are session ids
)

// cloudEvent collects the attributes of a CloudEvent, as they are sent over HTTP. They mean
// what they mean at the broker: see package adapter.
type cloudEvent struct {
	e                         jetbus.Event
	version, kind, id, source string
	subject, dataType         string
	keyed                     bool
}

// binaryCloudEvent reads an event in binary mode, whose attributes are headers. ok: it is one.
func binaryCloudEvent(topic string, h http.Header, body []byte) (e jetbus.Event, ok bool, err error) {
	if len(h.Values("Ce-Specversion")) == 0 {
		return jetbus.Event{}, false, nil
	}
	c := cloudEvent{e: jetbus.Event{Topic: topic, Partition: jetbus.NoPartition, Payload: body}}
	for name, values := range h {
		attribute, found := strings.CutPrefix(textproto.CanonicalMIMEHeaderKey(name), attributePrefix)
		if !found {
			continue
		}
		if len(values) > 1 {
			return jetbus.Event{}, true, refuse(CodeBadRequest, "the header %.100s is there %d times", name, len(values))
		}
		attribute = strings.ToLower(attribute)
		value := values[0]
		if attribute != "causedby" && attribute != "tags" { // lists are split before they are unescaped
			value = unescape(value)
		}
		if err := c.set(attribute, value); err != nil {
			return jetbus.Event{}, true, err
		}
	}
	c.dataType = h.Get("Content-Type")
	if isJSONType(c.dataType) && len(body) > 0 {
		if err := validJSON(body); err != nil {
			return jetbus.Event{}, true, err
		}
	}
	err = c.complete()
	return c.e, true, err
}

// structuredCloudEvent reads an event in structured mode: a JSON document that has
// attributes and data. The data keep their bytes.
func structuredCloudEvent(topic string, text []byte) (jetbus.Event, error) {
	if err := validJSON(text); err != nil {
		return jetbus.Event{}, err
	}
	var members map[string]json.RawMessage
	err := exactjson.Unmarshal(text, &members, exactjson.Ignore)
	if twice, ok := errors.AsType[*exactjson.MemberError](err); ok {
		return jetbus.Event{}, refuse(CodeBadRequest, "invalid CloudEvent: %v", twice)
	}
	if err != nil || members == nil {
		return jetbus.Event{}, refuse(CodeBadJSON, "a CloudEvent in structured mode is a JSON object")
	}
	c := cloudEvent{e: jetbus.Event{Topic: topic, Partition: jetbus.NoPartition}}
	for name, value := range members {
		if name == "data" || name == "data_base64" || string(value) == "null" {
			continue
		}
		if value[0] == '{' || value[0] == '[' {
			return jetbus.Event{}, refuse(CodeBadRequest, "the attribute %.100q is no string, number or boolean", name)
		}
		text := string(value)
		if value[0] == '"' {
			if err := json.Unmarshal(value, &text); err != nil {
				return jetbus.Event{}, refuse(CodeBadJSON, "the attribute %.100q cannot be read", name)
			}
		}
		if err := c.set(name, text); err != nil {
			return jetbus.Event{}, err
		}
	}
	if err := c.data(members["data"], members["data_base64"]); err != nil {
		return jetbus.Event{}, err
	}
	err = c.complete()
	return c.e, err
}

// set takes one attribute.
func (c *cloudEvent) set(name, value string) error {
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return refuse(CodeBadRequest, "the attribute %.100q is none: names are lower case letters and digits", name)
	}
	switch name {
	case "specversion":
		c.version = value
	case "id":
		c.id = value
	case "type":
		c.kind = value
	case "source":
		c.source = value
	case "subject":
		c.subject = value
		return c.extension(name, value)
	case "partitionkey":
		c.e.Key, c.keyed = value, true
	case "time":
		t, err := parseTime(value)
		if err != nil {
			return err
		}
		c.e.Time = t.Truncate(time.Millisecond) // what an event has
	case "causedby":
		c.e.CausedBy = splitList(value)
	case "tags":
		c.e.Tags = splitList(value)
	case "datacontenttype":
		c.dataType = value
	default:
		return c.extension(name, value)
	}
	return nil
}

// extension keeps an attribute that is no field of an event as a header.
func (c *cloudEvent) extension(name, value string) error {
	if err := jetbus.ValidHeader(jetbus.HeaderExtension+name, value); err != nil {
		return err
	}
	setHeader(&c.e, jetbus.HeaderExtension+name, value)
	return nil
}

// data takes the data of structured mode: JSON as it stands there, or the text of a string
// where the content type says that the data are no JSON.
func (c *cloudEvent) data(data, encoded json.RawMessage) error {
	if len(encoded) > 0 && string(encoded) != "null" {
		if len(data) > 0 {
			return refuse(CodeBadRequest, "data and data_base64 are both set")
		}
		var text string
		if json.Unmarshal(encoded, &text) != nil {
			return refuse(CodeBadRequest, "data_base64 is no string")
		}
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return refuse(CodeBadRequest, "data_base64 is no base64")
		}
		c.e.Payload = raw
		return nil
	}
	if len(data) > 0 && data[0] == '"' && !isJSONType(c.dataType) {
		var text string
		_ = json.Unmarshal(data, &text) // it is a valid string
		c.e.Payload = []byte(text)
		return nil
	}
	c.e.Payload = data
	return nil
}

// complete checks the required attributes and sets the fields of the event.
func (c *cloudEvent) complete() error {
	switch {
	case c.version != "1.0":
		return refuse(CodeBadRequest, "the CloudEvents version %.40q is not supported; use 1.0", c.version)
	case c.id == "" || c.source == "" || c.kind == "":
		return refuse(CodeBadRequest, "a CloudEvent needs id, source and type")
	}
	c.e.ID = c.id
	c.e.SID = c.source
	if rest, ok := strings.CutPrefix(c.source, sourcePrefix); ok {
		c.e.SID = unescape(rest)
	} else if _, err := url.ParseRequestURI(c.source); err != nil || strings.ContainsAny(c.source, " #") {
		// Without the extension, the source would be stored as urn:jetbus:<SID>.
		if err := c.extension("source", c.source); err != nil {
			return err
		}
	}
	if !c.keyed {
		c.e.Key = c.subject
	}
	if c.kind != c.e.Topic {
		if err := c.extension("type", c.kind); err != nil {
			return err
		}
	}
	return setContentType(&c.e, c.dataType)
}

// setContentType says what kind the payload is, unless it is JSON.
func setContentType(e *jetbus.Event, kind string) error {
	if kind == "" || kind == "application/json" {
		return nil
	}
	if strings.HasPrefix(strings.ToLower(kind), cloudEventsAny) {
		return refuse(CodeUnsupportedEncoding, "the content type %.100q says that the payload is another CloudEvent", kind)
	}
	if err := jetbus.ValidHeader(jetbus.HeaderContentType, kind); err != nil {
		return err
	}
	setHeader(e, jetbus.HeaderContentType, kind)
	return nil
}

func setHeader(e *jetbus.Event, name, value string) {
	if e.Headers == nil {
		e.Headers = map[string]string{}
	}
	e.Headers[name] = value
}

// splitList reads a list as CloudEvents of the bus have it: between commas, each escaped.
func splitList(text string) []string {
	var out []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, unescape(item))
		}
	}
	return out
}

// unescape decodes "%41", and leaves as it is what is no such escape.
func unescape(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	if text, err := url.PathUnescape(s); err == nil {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if text, err := url.PathUnescape(s[i : i+3]); err == nil {
				b.WriteString(text)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
