// Package mongosink keeps the state of a projection in a MongoDB collection: one
// document for each key of a topic.
//
// A document has the key as its _id, the fields of the state, and what the sink records
// about the event that produced the state:
//
//	_id, _key     the key
//	_seq          the event's sequence in its stream, a 64-bit integer
//	_v            its version, if the projection has versions
//	_ts           its time
//	_src          the stream
//	_srcCreated   the stream's creation time, in nanoseconds since 1970
//	_deleted      true for a deleted key, which then has no other fields
//	_expireAt     when the document of a deleted key is removed
//
// The package promises:
//
//   - A document never returns to an older state. Each write has a guard, so that it
//     replaces only older states. Redelivery, replays, several replicas and late writers
//     can only repeat the existing state.
//   - When [Sink.Write] reports a write, a majority of the replica set has it.
//   - A deleted key keeps a document with _deleted until no event can be delivered late
//     any more, so that a late event does not restore the key. Readers filter with
//     [Live].
//   - A change that can never be stored is rejected with a reason, and affects no other
//     change: documents that are too large, names that MongoDB does not store, keys that
//     another source has taken, duplicates in a unique index.
//   - A collection has one owner. The collection _projections of the database records
//     which projection fills which collection, from which streams and up to which
//     position; see [ReadStatus].
//   - A rebuild fills another collection and renames it when it is complete. Readers see
//     the old content until then. A crash or cancellation at any point leaves either the
//     old or the new content, with the position that belongs to it.
//
// JSON payloads become BSON with the same order of fields. Integers become 64-bit
// integers or, if larger, Decimal128; other numbers become doubles. Objects with
// duplicate names are refused. Events of a change feed (package changefeed) are extended
// JSON, or BSON with the content type application/bson, and keep the types and names of
// their source.
//
// A standalone server is sufficient, except for HardDelete, [NewTransaction], and keys
// that swap values of a unique index, which need a replica set.
package mongosink
