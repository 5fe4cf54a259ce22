// Package changefeed publishes what happens in a MongoDB collection, or a whole
// database, to a topic: each insert, update, replacement and delete is one event, in
// MongoDB's order, once.
//
// # The nouns
//
// A [Feed] is a change stream that Start opens and keeps open. A [Change] is what it
// reads; an event with the document's [Key] is what it publishes: the document in
// extended JSON, or null for a delete, with the operation, the cluster time and the
// resume [Token] in headers. Whatever is about no document is a control event without
// a key: drop, rename, dropDatabase, invalidate, "gap" and "copied".
//
// # What it promises
//
//   - The topic is the checkpoint: a feed that starts goes on behind the topic's last
//     event, wherever that is in a stream that others share. There is never a hole, nothing
//     is lost and nothing is there twice, whatever is killed, cut or restarted meanwhile.
//   - One instance at a time reads, by a lock; others stand by. What becomes of one that
//     does not know yet that it lost the lock is a question of the [Mode].
//   - Nothing ends in silence. What cannot be published is treated as the options
//     say, and by default becomes a dead letter or ends the feed with an error
//     (Feed.Err, Feed.Done); lost history is never skipped without a gap event. A topic
//     that was deleted and made anew has lost it, too.
//   - A topic that was restored to an earlier state gets the events that it lost a second
//     time, as long as MongoDB has their changes. The feed compares the topic with the newest
//     event that it published when it starts and each ProgressInterval.
//   - Memory is bounded: while the broker is away, the feed stops reading.
//   - Filtered changes, and a quiet collection in a busy deployment, move the position
//     as well: it is saved in a [TokenStore] at most every ProgressInterval.
//
// # Modes
//
// [Chain], where the topic has a stream of its own: the broker stores each event only
// directly behind the one before it. It refuses an instance that is behind the other,
// however late that one wakes up.
//
// [Atomic], where the stream is that of others, too: batches of up to 1000 events are
// stored as a whole or not at all. [Serial], where the broker has no such batches: the
// next event is sent once the one before is stored. What may be stored without an
// answer is looked for at the end of the topic before it is sent again. Between
// instances the TokenStore decides: who has saved the position keeps all others from it.
// What is weaker than in a chain: an instance that is stopped between that and the
// publish while another one leads is known by the ids of its events alone. After more
// than the topic's DuplicateWindow, the batch (Atomic) or the event (Serial) that it was
// about to send is stored a second time, behind later ones. With a TokenStore that
// forgets, the same holds for all that it has read. And while the TokenStore is away,
// nothing is published. The window should be longer than a publish may take: the
// default of 2 minutes is.
// If the broker is restored while a batch or an event is in flight, it may store that after events
// that are missing. The feed finds out, and treats it as lost history (OnHistoryLost).
//
// # Limits
//
// Nobody else may publish to the topic; in mode Chain, nor to its stream. Order is that
// of tokens; cluster times are not unique. With UpdateLookup an update may carry a newer
// document than its own, as MongoDB looks it up later; the events that follow repeat it.
// A copy publishes each document at least as new as everything before it in the topic;
// changes that were under way meanwhile may follow it once more, older ones for a moment.
// A resync does not know which documents were deleted during its gap. The copy of a
// sharded collection reads its shard key, for which the user needs the action find on
// config.collections. An atomic batch that
// does not fit into a topic that is full (DiscardNew) waits for room for all of it.
// Whether a topic was made anew is told by its stream: in one that others share it cannot be
// told from a topic whose events have all left it, and the feed goes on where it was.
// In the modes Atomic and Serial a restore of the broker is not noticed if the TokenStore, which is in the
// broker by default, is restored with the topic and the process is killed while an event is in flight; nor,
// in a compacted topic of a shared stream, that events are lost which it has just published, if other
// topics take their sequences. Dead letters that the broker loses are only made again with later events of the topic.
package changefeed
