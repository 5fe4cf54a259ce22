// Package jetbus is the contract of a durable event bus on NATS JetStream: the
// nouns, the options, the errors and the rules of names. It stores and delivers
// nothing itself; package adapter does, on a *nats.Conn that the caller owns.
//
// There are five nouns. An [Event] is a fact with an id, published to a topic.
// A topic is a durable log of events. A [Bus] publishes events and delivers
// them. A group is a set of subscribers that share the events of a topic, each
// event going to one of them. A [Delivery] is one event in the hands of one
// handler, held under a lease.
//
// # Publishing
//
// [Publisher] returns after the log has stored the event, or with an error that
// says whether it may have been stored ([PublishError]). Publishing the same id
// to the same topic again within the duplicate window stores nothing and says
// so ([Receipt]).
//
// # Delivery
//
// Every group gets every event at least once. An event leaves a group when it is
// acknowledged, when it becomes a dead letter, or when the topic's retention
// removes it, and in no other way: a handler that fails, panics, hangs or dies with
// its process gets the event again. Less formally: return nil when you are done
// with an event, return an error when you are not, and be ready to see an event
// twice. [RetryIn], [Snooze], [Reject] and [Drop] say more than an error does.
//
// An event that fails SubscribeOptions.MaxAttempts times, is rejected, or is no
// event at all becomes a [DeadLetter]: an event of [DeadLetterTopic] with all that
// is known of it. [Replay] puts dead letters before the group that failed again.
//
// A group handles events in no order, or in one ([Order]) that a failure does not
// break.
//
// A lease is ownership. While a handler holds an event nobody else in its group
// does, as long as clocks run at like speed. The bus extends the lease while the
// handler runs; when it cannot, the handler's context is canceled with the cause
// [ErrLeaseExpired], and what the handler then says about the event is refused.
//
// # Handlers
//
// A handler may take as long as it needs: its lease is extended while it runs, for
// SubscribeOptions.MaxLease at most. One that takes long holds up those behind it where
// Concurrency is 1, the default. It minds its context, which ends when the lease is lost and when
// the subscription was to stop for ShutdownTimeout, and leaves nothing running when it returns: what
// it began belongs to somebody else then. Stop and Close wait for handlers that run, whatever became
// of the context that ended the program.
//
// # State
//
// A topic whose events carry the whole state of their key, and a [Tombstone] at its
// end, is also a table: [StateStore] reads the last event of each key, [Table]
// follows it, and TopicConfig.Compact and SnapshotOf keep it when the log is gone.
//
// # Concurrency
//
// Everything here may be used from several goroutines at once, unless its
// comment says otherwise. Options are plain structs whose zero value is the
// documented default; they marshal to JSON under the names that clients in other
// languages use: durations in whole milliseconds with names that end in Ms, -1
// kept, times in epoch milliseconds. Members that are not known are ignored.
//
// # Errors
//
// Conditions are sentinels for errors.Is ([ErrClosed], [ErrInvalidTopic], ...);
// errors that carry data are types for errors.As ([PublishError],
// [ConflictError], ...). Act on the kind of an error, never on its text.
package jetbus
