// Package mongosink keeps the state of a projection in a collection of MongoDB:
// one document for each key of a topic.
//
// A document has the key as its _id, the fields of the state, and what the sink
// needs to know of the event that the state came from:
//
//	_id, _key     the key
//	_seq          the event's sequence in its stream, a 64-bit integer
//	_v            its version, where the projection has versions
//	_ts           its time
//	_src          the stream
//	_srcCreated   when that was made, in nanoseconds since 1970
//	_deleted      true for a key that is deleted, which has no other fields then
//	_expireAt     when the document of a deleted key goes
//
// The package promises:
//
//   - A document never goes back. Every write has a guard: it replaces what is older
//     only. Redelivery, replays, several replicas and writers that come late can
//     only repeat what is there already.
//   - What [Sink.Write] reports as written a majority of the replica set has.
//   - A deleted key stays as a document that says so, until no event can be delivered
//     late any more, so that a late one does not bring it back. Readers filter with
//     [Live].
//   - What can never be stored is rejected with a reason, and takes nothing else with
//     it: documents that are too large, names that MongoDB does not store, keys that
//     another source has taken, duplicates in a unique index.
//   - A collection has one owner. The collection _projections of the database says
//     which projection fills which collection, from which streams and how far; see
//     [ReadStatus].
//   - A rebuild fills another collection and renames it when it is complete; readers
//     see the old content until then. A crash at any point leaves the one or the other,
//     and a rebuild that is canceled too, with the position that is that content's.
//
// JSON payloads become BSON with the order of their fields; integers are 64-bit,
// larger ones Decimal128, other numbers doubles. Names that are used twice in an
// object are refused. Events of a change feed (package changefeed) are extended JSON, or
// BSON with the content type application/bson, and keep the types and names of their source.
//
// A standalone server is enough for everything except HardDelete, [NewTransaction], and
// keys that swap values of a unique index, which need a replica set.
package mongosink
