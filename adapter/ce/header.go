package ce

import (
	"strings"

	"github.com/seed-63e9a637/jetbus"
)

// Attributes of CloudEvents that are fields of an event, by the names they have in
// structured mode.
const (
	attributeSpecVersion = "specversion"
	attributeID          = "id"
	attributeType        = "type"
	attributeSource      = "source"
	attributeTime        = "time"
	attributeDataType    = "datacontenttype"
	attributeKey         = "partitionkey"
	attributeCausedBy    = "causedby"
	attributeTags        = "tags"
)

// Headers that say more than what an event is.
const (
	HeaderMsgID  = "Nats-Msg-Id"                   // what the server dedupes by: see [MsgID]
	HeaderMarker = "Nats-Marker-Reason"            // a message that the server left for one that it removed
	HeaderTime   = attributePrefix + attributeTime // Event.Time: RFC 3339, in UTC, with milliseconds
)

// The headers that attributes have in binary mode, and what belongs to them.
const (
	headerSpecVersion = attributePrefix + attributeSpecVersion
	headerID          = attributePrefix + attributeID
	headerType        = attributePrefix + attributeType
	headerSource      = attributePrefix + attributeSource
	headerDataType    = attributePrefix + attributeDataType
	headerKey         = attributePrefix + attributeKey
	headerCausedBy    = attributePrefix + attributeCausedBy
	headerTags        = attributePrefix + attributeTags

	attributePrefix    = "ce-"
	specVersion        = "1.0"
	defaultContentType = "application/json"
	sourcePrefix       = "urn:jetbus:"
	schemaPrefix       = "schema://"                           // of a version in the registry
	nameSchema         = jetbus.HeaderExtension + "dataschema" // in Event.Headers, as package registry has it
	nameSource         = jetbus.HeaderExtension + attributeSource
)

// MsgID is what the server dedupes by: the id within the topic, since a stream
// may hold several topics.
func MsgID(topic, id string) string { return topic + "|" + id }

// isField reports whether an attribute is a field of an event or written by us
// for other reasons.
func isField(attribute string) bool {
	switch attribute {
	case attributeSpecVersion, attributeID, attributeType, attributeSource, attributeTime, attributeDataType, attributeKey, attributeCausedBy, attributeTags:
		return true
	}
	return false
}

// isExtension reports whether a header x-ce-<name> is written as the attribute
// of that name. The name "data" is none in CloudEvents.
func isExtension(name string) bool {
	return name != "" && name != "data" && !isField(name) &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
