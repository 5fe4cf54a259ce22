// Package schema compiles JSON Schemas, validates payloads against them, and
// proves whether one schema accepts all that another does.
//
// It promises three things. A schema from anybody can be compiled, and a payload
// from anybody be validated: sizes, depths and the work of both are bounded, no
// reference is ever loaded from a file or a network, and no input panics. A value
// is judged with the digits it has, not with those a float64 keeps. And a verdict
// of [Compare] is never kinder than the truth: Proved means that a proof was
// found, Refuted comes with a value that shows it, and whatever the proof does not
// understand makes it Unproved, never Proved.
//
// The drafts 4, 6, 7, 2019-09 and 2020-12 are known; a schema without $schema is
// read as 2020-12. Formats are asserted in all of them.
package schema
