// Package mongod is a stand-in for a MongoDB replica set that runs inside this
// process, for tests and for `jetbus dev`. It is no database: everything is in
// memory and gone with [Server.Stop].
//
// [Start] listens on loopback and speaks the wire protocol, so that the official
// driver connects to [Server.URI] as it would to a replica set of one member.
//
// The package promises:
//
//   - What it answers, MongoDB 7.0 answers in the same way, for what projections,
//     change feeds, transactions and outboxes need: reads and writes with their
//     counts and errors, unique, sparse, partial and TTL indexes, retryable
//     writes, multi-document transactions with snapshot isolation, and change
//     streams with resume tokens, pre- and post-images and split events. The
//     driver's own suites run against it (`make mongo-conformance`).
//   - What it does not know, it refuses with an error that says so. It does not
//     guess.
//   - It is bounded: connections, cursors, sessions, sizes of messages, documents
//     and replies, and the history that change streams can go back to. How many
//     documents there are is up to the clients: they take memory.
//   - Every fault that a replica set may show can be made to happen: through the
//     methods of [Server] (cut connections, killed cursors, step-down, lost
//     majority, lost history, delays, errors) and through the configureFailPoint
//     command as the driver's suites use it.
//   - When Stop returns, nothing of the server is left.
//
// It does not offer: disks, a second member, secondary reads, sharding, reads at
// a point in time outside transactions, text and geographic queries, collations,
// server-side JavaScript, array filters and the positional operator, capped and
// time-series collections, roles, TLS and compression. Indexes other than those
// of _id and unique ones are kept as definitions only: they change answers
// (TTL, conflicts), not speed. Numbers of different types are compared as 64-bit
// floats, decimals among them.
//
// It says what it is: buildInfo has the field standIn, and the log begins with a
// line about it.
package mongod
