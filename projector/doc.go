// Package projector keeps the state that results from the events of a topic in a database
// ([Start]). Package projector/processes keeps such a state in a topic of its own.
//
// A projection writes the newest event of each key of a topic to a [Sink], such as a database
// collection (package projector/mongosink). There are four nouns: the projection, which has a
// name; its replicas, which are the processes that run it; the sink; and a change, which is
// the effect of an event on its key.
//
// The package makes these promises if the sink never overwrites a state that is as new or
// newer:
//
//   - The sink converges to the topic. For each key it has the state of the newest event that
//     can be projected, and it does not have deleted keys. This holds for any number of
//     replicas, and despite crashes, outages of the sink and the broker, and redelivery of
//     any event.
//   - No key ever returns to an older state.
//   - Nothing is lost. An event is acknowledged when the sink has it. An event that can never
//     be stored becomes a dead letter, and its key keeps the state of the event before it.
//     While the sink is unavailable, events wait and do not become dead letters.
//   - An empty sink is first filled from a snapshot of the topic, from the last event of each
//     key, or from all existing events. It then follows the topic.
//   - If a topic was deleted and declared again, or lost events because its broker was
//     restored to an earlier state, the projection ends with [ErrNewStream]. The topic reuses
//     sequences, so new events would be treated as old ones.
//
// Replicas share the events of the topic as a group with the projection's name. They read
// events in batches, and map and write only the newest event of each key in a batch. A
// replica whose sink has been unavailable for AckTimeout leaves its events to the others, and
// takes part again when the sink is available.
//
// With Options.Exclusive, one replica at a time projects, in the order of the topic, from the
// position that the sink holds. With Options.Every as well, each event is passed to the sink.
// This is for sinks that count or append, or that keep no tombstones. [Rebuild] fills a new
// sink while the old one stays in use; with Options.Every, its replicas must be stopped for
// the swap.
package projector
