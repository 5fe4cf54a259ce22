package ce

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/seed-63e9a637/jetbus"
)

// In structured mode the message body is a JSON document that holds the whole
// event, attributes and data. JetBus reads it and never writes it.

// cloudEventsType is the media type of structured mode, with or without "+json".
const cloudEventsType = "application/cloudevents"

// isStructured reports whether a message of this media type is in structured
// mode. Without "+json" it is what some SDKs write for the same thing.
func isStructured(mediaType string) bool {
	base, _, _ := strings.Cut(mediaType, ";")
	base = strings.TrimRight(base, " ")
	return strings.EqualFold(base, cloudEventsType+"+json") || strings.EqualFold(base, cloudEventsType)
}

// document takes an event in structured mode. What the document says goes before
// the headers of the message, and its media type is not that of the payload.
func (r *eventReader) document(data []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return r.undecodable(err)
	}
	if len(members[attributeSpecVersion]) == 0 {
		return r.undecodable(errors.New("the document has no specversion"))
	}
	r.mediaType = ""
	for name, text := range members {
		if name == "data" || name == "data_base64" {
			continue
		}
		if value := scalarText(text); value != "" {
			r.attribute(name, value)
		}
	}
	payload, err := documentPayload(members["data"], members["data_base64"], r.dataType)
	if err != nil {
		return r.undecodable(err)
	}
	r.e.Payload = payload
	return nil
}

// documentPayload returns the bytes of the data: JSON as it stands in the
// document, digits of numbers and white space included; the text of a string
// where the content type says that the data is not JSON.
func documentPayload(data, encoded json.RawMessage, contentType string) ([]byte, error) {
	if len(encoded) > 0 && string(encoded) != "null" {
		if len(data) > 0 {
			return nil, errors.New("data and data_base64 are both set")
		}
		var text string
		if err := json.Unmarshal(encoded, &text); err != nil {
			return nil, fmt.Errorf("data_base64: %w", err)
		}
		payload, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("data_base64: %w", err)
		}
		return payload, nil
	}
	if len(data) > 0 && data[0] == '"' && !isJSONType(contentType) {
		return []byte(scalarText(data)), nil
	}
	return data, nil
}

// scalarText returns the value of an attribute as text: that of a string, the
// spelling of anything else, and nothing for null.
func scalarText(text json.RawMessage) string {
	if len(text) > 0 && text[0] == '"' {
		var s string
		if err := json.Unmarshal(text, &s); err == nil {
			return s
		}
	}
	if string(text) == "null" {
		return ""
	}
	return string(text)
}

// isJSONType reports whether a media type is JSON, as the empty one is.
func isJSONType(mediaType string) bool {
	base, _, _ := strings.Cut(mediaType, ";")
	base = strings.ToLower(strings.TrimSpace(base))
	return base == "" || strings.HasSuffix(base, "/json") || strings.HasSuffix(base, "+json")
}

func (r *eventReader) undecodable(err error) error {
	return fmt.Errorf("decode %s at %s-%d: %w: CloudEvents structured mode: %w", r.at.Topic, r.at.Stream, r.at.Seq, jetbus.ErrUndecodable, err)
}
