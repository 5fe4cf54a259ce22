package schema

import "encoding/json"

// Model says what the properties that a schema does not declare mean.
type Model string

// The models.
const (
	// Strict is JSON Schema as it is written: an object may have any property that
	// its schema does not forbid.
	Strict Model = "strict"
	// Declared is how programs with fixed types work, encoding/json among them. A
	// writer sends only what its schema declares: an object schema that does not
	// speak of further properties has none. A reader ignores what it does not know:
	// one that forbids further properties lets them pass. It holds where undeclared
	// properties are refused when they are published, see [Schema.ValidateDeclared]; and it
	// is not transitive.
	Declared Model = "declared"
)

// Result is the outcome of [Compare].
type Result string

// The results.
const (
	Proved   Result = "proved"   // every value that old accepts, new accepts, unless judging it exceeds MaxWork
	Refuted  Result = "refuted"  // Verdict.Witness is accepted by old and not by new
	Unproved Result = "unproved" // neither a proof nor a witness was found
)

// Verdict says whether every value that one schema accepts is accepted by another.
type Verdict struct {
	Result Result
	// Witness is the shortest value found that old accepts and new does not.
	// Only with Refuted.
	Witness json.RawMessage
	// Violations are what new says of the witness. Only with Refuted.
	Violations []Violation
	// Reasons are where the proof stopped, the most telling first, at most 6. With
	// Refuted and Unproved.
	Reasons []Reason
}

// Reason is one place where a proof stopped.
type Reason struct {
	Keyword string // of the new schema: "minimum", "required"
	Path    string // of the schema that has it, "#/properties/a"
	Message string // in words: "minimum raised from 0 to 1"
}

// Violation is one way in which a value breaks a schema.
type Violation struct {
	InstancePath string // JSON pointer of the part of the value; "" is all of it
	KeywordPath  string // of the keyword in the schema, as a fragment: "#/properties/a/minimum"
	Message      string // in words: "must be >= 0 but found -1"
}
