// Package changefeed publishes the changes of a MongoDB collection or a whole database to a topic. Each
// insert, update, replacement and delete becomes one event, in MongoDB's order, once.
//
// # The nouns
//
// A [Feed] is a change stream that Start opens and keeps open. It reads a [Change] and publishes an event
// with the document's [Key]. The payload is the document in extended JSON, or null for a delete; headers
// hold the operation, the cluster time and the resume [Token]. A change that does not concern a document
// becomes a control event without a key: drop, rename, dropDatabase, invalidate, "gap" and "copied".
//
// # What it promises
//
//   - The topic is the checkpoint: a feed starts after the topic's last event, wherever that is in a
//     shared stream. After crashes, lost connections and restarts there are no gaps, no lost events and no
//     duplicates.
//   - One instance at a time reads, protected by a lock; others stand by. The [Mode] decides how an
//     instance is stopped that has lost the lock and has not noticed yet.
//   - Nothing fails silently. The options decide about changes that cannot be published: by default they
//     become dead letters or end the feed with an error (Feed.Err, Feed.Done). Lost history is never
//     skipped without a gap event. A topic that was deleted and created again counts as lost history, too.
//   - If a topic was restored to an earlier state, the feed publishes the lost events again, as long as
//     MongoDB has their changes. To notice this, it compares the topic with the newest event that it
//     published, at the start and each ProgressInterval.
//   - Memory is bounded: while the broker is unavailable, the feed stops reading.
//   - The position also advances past filtered changes, and while a collection is quiet in a busy
//     deployment: it is saved in a [TokenStore] at most every ProgressInterval.
//
// # Modes
//
// [Chain] is for a topic with its own stream: the broker stores each event only directly after the event
// before it. It rejects the events of an instance that has fallen behind another one, however late they
// arrive.
//
// [Atomic] is for a topic that shares its stream: each batch of up to 1000 events is stored completely or
// not at all. [Serial] is for brokers without atomic batches: each event is sent after the event before it
// is stored. If it is unknown whether an event was stored, the feed looks for it at the end of the topic
// before it sends the event again. The TokenStore decides between instances: once an instance has saved
// the position, the others cannot save theirs.
//
// Atomic and Serial are weaker than Chain in one case: an instance is paused after it saved the position
// and before it publishes, and another instance leads in the meantime. Then only event IDs detect the
// duplicates. After more than the topic's DuplicateWindow, the batch (Atomic) or the event (Serial) that
// the instance was about to send is stored a second time, after later ones. If the TokenStore loses saved
// positions, this applies to everything that the instance has read. Nothing is published while the
// TokenStore is unavailable. The window should be longer than a publish may take; the default of 2 minutes
// is.
//
// If the broker is restored while a batch or an event is in flight, the broker may store it although
// events before it are missing. The feed detects this, and treats it as lost history (OnHistoryLost).
//
// # Limits
//
//   - No other program may publish to the topic or, in mode Chain, to its stream.
//   - Tokens define the order; cluster times are not unique.
//   - With UpdateLookup, an update may carry a newer version of its document, because MongoDB looks the
//     document up later. The following events repeat it.
//   - A copy publishes each document at least as new as all events before it in the topic. Changes made
//     during the copy may follow it once more, and older ones may reappear for a moment.
//   - A resync cannot detect which documents were deleted during its gap.
//   - The copy of a sharded collection reads the shard key. The user needs the action find on
//     config.collections.
//   - An atomic batch that does not fit into a full topic (DiscardNew) waits until the topic has room for
//     all of it.
//   - The feed recognizes a re-created topic by its stream. In a shared stream, a re-created topic looks
//     like a topic whose events have all been removed, and the feed resumes.
//   - In modes Atomic and Serial, a feed does not notice a restore of the broker if the TokenStore is
//     restored with it, as the default TokenStore is, and the process is killed while an event is in
//     flight. In a compacted topic of a shared stream, it does not notice the loss of events that it has
//     just published if other topics reuse their sequences.
//   - Dead letters that the broker loses are published again only if the feed resumes before their
//     changes, to publish lost events of the topic again.
package changefeed
