// Package projector keeps the state that topics of facts amount to in a database
// ([Start]). One that is a topic of its own is in package projector/processes.
//
// A projection writes the newest event of each key of a topic to a [Sink], such as a
// collection of a database (package projector/mongosink). There are four nouns: the
// projection, which has a name; its replicas, which are the processes that run it; the
// sink; and a change, which is what an event makes of its key.
//
// What it promises, if the sink keeps its promise to store nothing over what is as
// new or newer:
//
//   - The sink ends up as the topic does: with what the newest event of each key that
//     can be projected makes of it, and without the keys that were deleted. That holds
//     however many replicas run, over crashes of any of them, outages of the sink and
//     of the broker, and redelivery of any event.
//   - No key ever goes back to an older state.
//   - Nothing is lost. An event is acknowledged when the sink has it. One that can
//     never be stored becomes a dead letter, and the event before it of its key stands.
//     While the sink is away events wait, and none becomes a dead letter.
//   - A sink that is empty is filled first, from a snapshot of the topic, from the last
//     event of each key, or from all events there are, and follows from there.
//   - A topic that was deleted and declared again, or that lost events because its broker was
//     restored to an earlier state, ends the projection with [ErrNewStream]. Its sequences are
//     used again, so that new events would count as old.
//
// Replicas share the events of the topic as a group of the projection's name. They
// are read in batches; of each key only the newest event in a batch is mapped and
// written. A replica whose sink has been away for AckTimeout gives its events to the
// others, and takes part again when the sink is back.
//
// With Options.Exclusive one replica at a time projects, in the order of the topic,
// from the position that the sink holds; with Options.Every besides, each event is
// handed to the sink. That is for sinks that count or append, or that keep no
// tombstones. [Rebuild] fills a sink anew while the old one serves; with Options.Every
// its replicas must be stopped for the swap.
package projector
