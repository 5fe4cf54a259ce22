// Package registry keeps the JSON Schemas of topics in a key-value bucket of the
// broker: numbered versions that never change, the rules by which new ones are
// let in, and who refers to whom.
//
// It promises:
//
//   - A version that is compatible by the rules of its topic was proved to be, or
//     its record names who forced it in. What is refused is not stored, and the
//     error shows a value that tells the two schemas apart where there is one.
//   - The versions of a topic are numbered 1, 2, 3 and so on, whatever races, dies
//     or restarts meanwhile. A number is never used twice, and a version's text
//     never changes; it can only be deleted, in two steps.
//   - A schema that others refer to is not deleted.
//   - Reads are served from memory: they go on without the broker. A registry begins with
//     all that the bucket's leader had when it was opened. A process that
//     has registered, deleted or set something reads it back at once; others do
//     as soon as the broker has told them, and ask it for a version they do not
//     know before they say that there is none.
//   - A write is decided on what the broker holds at that moment: on a race one
//     wins, and the others decide anew. So is what turns out to need no write, and
//     a refusal: both need the broker.
//
// # What is stored where
//
// A topic is one token of a key, bytes other than letters, digits, '_' and '-' as
// "=XX". Every value is a JSON object.
//
//	s.<topic>.v.<n>                 version n
//	s.<topic>.c                     settings of the topic
//	s.<topic>.r.<n>.<referrer>.<m>  version m of the topic referrer refers to version n, or was about to
//	s.<topic>.f                     written to make registrations in flight decide anew
//	g.c                             settings of all topics that have none of their own
//	g.i.<id>                        the fingerprint that has this id
//
// A write is conditional on the last sequence of all that is stored under the
// topic's prefix. Nothing is ever purged.
package registry
