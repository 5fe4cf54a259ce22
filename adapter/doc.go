// Package adapter is JetBus on NATS JetStream: [Open] makes a [jetbus.Backend] of
// a *nats.Conn that the caller owns and keeps.
//
// # What is stored where
//
// A topic is a stream (or a part of one), a group is a durable pull consumer of
// it, an event is a message in CloudEvents 1.0 binary mode. Two small key-value
// buckets, made when they are first needed, hold locks and what was given back.
// Nothing else holds state:
// any process that opens a bus on the same account sees the same topics,
// groups and positions, and a crash between two requests leaves nothing that
// the next caller does not complete.
//
// # Hot paths
//
// Publishing, pulling, acknowledging and reading in bulk are written on the
// core connection; the jetstream package of nats.go serves management. Delivery
// does not poll: members of a group keep a pull request open and renew it.
//
// # The connection
//
// The bus subscribes to inboxes of the connection and watches its status. It
// never closes it, never changes its options or handlers, and after [Bus.Close]
// leaves nothing behind on it. While the connection is down, calls wait within
// their context; when it is closed, they fail with [jetbus.ErrClosed].
package adapter
