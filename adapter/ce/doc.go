// Package ce converts events to and from NATS messages in the form of CloudEvents 1.0, binary mode.
// [Encode] and [Decode] do no I/O: programs without a bus can use them to read and write what JetBus
// stores.
//
// Attributes become headers ce-<name>, with values percent-encoded as the NATS binding of CloudEvents
// requires, and the payload becomes the body:
//
//   - partitionkey, causedby and tags are extensions. Empty attributes are omitted.
//   - causedby and tags are lists: items are separated by commas, and each item is percent-encoded,
//     including its own commas.
//   - ce-datacontenttype is present unless it is application/json. content-type is not written, because
//     in the binding it means structured mode. It is read if ce-datacontenttype is missing.
//     Event.Headers has neither if the type is application/json.
//   - ce-dataschema (schema://<topic>/<n>) holds the schema version of the event. A header
//     x-schema-version with the same version is not written, and is derived from ce-dataschema when
//     read.
//   - A header x-ce-<name> of the event is the CloudEvents attribute <name> (x-ce-dataschema is
//     ce-dataschema), if the name consists of a-z and 0-9 and is not one of JetBus's own attributes.
//   - source is urn:jetbus:<SID>, or the SID itself if that is an absolute URI or a path. A source in
//     another form, such as the relative shop-42, is decoded to that SID and kept in the header
//     x-ce-source, so that a copied event keeps its original source.
//   - All other headers are written unchanged, in UTF-8, which NATS transports byte for byte.
//
// Messages in structured mode, and messages of other programs without any of these headers, are read but
// never written. Decoding always returns an event that could be published. If an attribute of a foreign
// event does not fit into an Event, for example an ID of 300 bytes or a type that is not the topic, it
// is kept in the header x-ce-<name> instead, percent-encoded if a header could not hold it either.
package ce
