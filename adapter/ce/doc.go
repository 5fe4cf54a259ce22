// Package ce is how an event looks on the wire: a NATS message that is a CloudEvents 1.0
// message in binary mode. [Encode] and [Decode] do no I/O; programs without a bus can use
// them to read and write what JetBus stores.
//
// Its attributes are headers ce-<name>, their values percent-encoded as the NATS binding of
// CloudEvents demands, and the payload is the body:
//
//   - partitionkey, causedby and tags are extensions; attributes that are empty are left out.
//   - causedby and tags are lists: items separated by commas, each percent-encoded, its own commas too.
//   - ce-datacontenttype is there where it is not application/json. content-type is not
//     written: the binding has it say that the message is in structured mode. It is read
//     where ce-datacontenttype is missing, and Event.Headers has neither where it is application/json.
//   - Which version of a schema an event follows is in ce-dataschema (schema://<topic>/<n>).
//     The header x-schema-version, where it says the same, is not written, and read from that.
//   - A header x-ce-<name> of the event is the CloudEvents attribute <name>
//     (x-ce-dataschema is ce-dataschema), where the name consists of a-z and 0-9 and is none of ours.
//   - source is urn:jetbus:<SID>, or the SID itself where that is an absolute URI or a path. A source of
//     another form, such as the relative shop-42, is decoded to that SID and kept in the header
//     x-ce-source, so that an event that is copied keeps the source that it came with.
//   - All other headers stand there as they are, in UTF-8, which NATS carries byte for byte.
//
// Structured mode is read and never written, and so are messages of others, without any of
// these headers. What is read is always an event that could be published: an attribute of a
// foreign event that ours cannot hold (an id of 300 bytes, a type that is not
// the topic) is kept in the header x-ce-<name> instead, percent-encoded where a
// header could not hold it either.
package ce
