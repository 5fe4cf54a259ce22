// Package processes turns heartbeats of processes ([Heartbeat], topic
// "heartbeat.received") into the state of each process ([Process], topic
// "process.state"), which is alive while it beats, stale after 15 seconds without a
// beat, and alive again with the next one ([Start]). A projection of package projector may
// write that topic to a database.
//
// What it promises:
//
//   - Each heartbeat gives one state event. A heartbeat that is delivered again,
//     after a crash or a lost acknowledgement, gives none: the state says which
//     heartbeat it came from.
//   - A state never goes back. A heartbeat that comes late, behind a newer one of
//     the same process, gives no state.
//   - A process becomes stale once, however many projectors run, and only after
//     all heartbeats stored until then have been projected: a backlog is no
//     silence.
//   - A restart forgets nothing. The projector holds no state of its own: what it
//     needs is read from the state topic when it starts.
//
// These hold for any number of projectors in one group, since every state is
// published on the condition that it follows the state it was computed from.
package processes
