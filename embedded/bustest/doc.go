// Package bustest helps to test what is built on the bus, and buses themselves.
//
// [Contract] tests that a bus keeps the promises of package jetbus: each is a
// [Behavior] with a name that says what is promised. It is for buses that are
// not package adapter's own, such as decorators and clients of a gateway. [Start]
// and [Open] give a test a broker and buses on it, [SubjectOn] what Contract needs.
//
// [Run] runs a test in a testing/synctest bubble in which a whole embedded
// broker works. Inside, time is fake: it stands still while anything is busy and
// jumps ahead when everything waits, so a 30 second lease or an hour of backoff
// takes milliseconds and ends at the same instant in every run. It promises:
//
//   - A broker without listeners, any number of them, started, restarted, killed
//     and stopped inside the bubble, works as outside, with file storage too.
//   - A test that leaves a goroutine behind, of the broker, of a client or of its
//     own, does not pass unnoticed: the bubble cannot end, and the test fails.
//   - Nothing of a bubble reaches another test, and no setup of the caller's is
//     needed.
//
// Not covered: TCP, TLS and WebSocket listeners, and clusters. A goroutine that
// waits for the network is not idle in the sense of a bubble, and the fake clock
// would stand still; test these outside. In file storage, events do not age by
// the fake time: the server compares their time of storage with the real time as
// soon as it looks for expired ones, and removes all of a topic with a retention.
// It looks when the retention is over, or once an event has a TTL. Use memory
// storage for tests of age.
package bustest
