package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Direction says which of two schemas had to accept what the other does.
type Direction string

// The directions.
const (
	// Backward asks of the newer schema to accept what the older does:
	// Compare(older, newer).
	Backward Direction = "backward"
	// Forward asks of the older schema to accept what the newer does:
	// Compare(newer, older).
	Forward Direction = "forward"
)

const (
	// longWitness is how many bytes of a witness an explanation shows.
	longWitness = 400
	// manyLines is how many violations, and how many reasons, it shows.
	manyLines = 3
)

// String explains the verdict as one of [Backward].
func (v Verdict) String() string { return v.Explain(Backward) }

// Explain says in words what the verdict means for the author of the newer schema,
// in one or several lines without a line end after the last:
//
//	this event was valid before and is not now: {"name":""}
//	  /name: must have at least 1 character
//	  because: minLength raised from 0 to 1 at #/properties/name
//
// The direction is the one that was asked for; any other than Forward is Backward.
func (v Verdict) Explain(d Direction) string {
	switch v.Result {
	case Proved:
		return pickText(d, "compatible: whatever the old schema accepts, the new one accepts",
			"compatible: whatever the new schema accepts, the old one accepts")
	case Refuted:
		lines := []string{pickText(d, "this event was valid before and is not now: ",
			"this event is valid now, and whoever reads with the old schema refuses it: ") + shown(string(v.Witness))}
		for i, violation := range v.Violations {
			if i == manyLines {
				lines = append(lines, fmt.Sprintf("  and %d more", len(v.Violations)-i))
				break
			}
			lines = append(lines, "  "+violation.String())
		}
		if r, ok := v.cause(); ok {
			lines = append(lines, "  "+because(d)+r.String())
		}
		return strings.Join(lines, "\n")
	default:
		lines := []string{pickText(d, "it is not proved that the new schema accepts whatever the old one accepts",
			"it is not proved that the old schema accepts whatever the new one accepts") +
			"; no event was found that shows the contrary"}
		for _, r := range v.Reasons[:min(len(v.Reasons), manyLines)] {
			lines = append(lines, "  "+stopped(d)+r.String())
		}
		return strings.Join(append(lines, "  if you know better, Force overrides this and is recorded"), "\n")
	}
}

// cause is the reason that explains the violations: the one that names the same
// keyword, else the first.
func (v Verdict) cause() (Reason, bool) {
	if len(v.Reasons) == 0 {
		return Reason{}, false
	}
	for _, r := range v.Reasons {
		if slices.ContainsFunc(v.Violations, func(x Violation) bool { return x.KeywordPath == r.Path+"/"+r.Keyword }) {
			return r, true
		}
	}
	return v.Reasons[0], true
}

// String says where the value is wrong, and how: "/name: must have at least 1 character".
func (v Violation) String() string {
	return cmp.Or(v.InstancePath, "the event") + ": " + v.Message
}

// String says what stopped the proof, and where: "minimum raised from 0 to 1 at #/properties/n".
func (r Reason) String() string {
	if r.Path == "" || r.Path == "#" { // of the event itself
		return r.Message
	}
	return r.Message + " at " + r.Path
}

func because(d Direction) string {
	return pickText(d, "because: ", "because, going from the new schema back to the old: ")
}

func stopped(d Direction) string {
	return pickText(d, "the proof stopped here: ", "the proof stopped here, going from the new schema back to the old: ")
}

func pickText(d Direction, backward, forward string) string {
	if d == Forward {
		return forward
	}
	return backward
}

// shown cuts a long text.
func shown(s string) string {
	if len(s) <= longWitness {
		return s
	}
	return strings.ToValidUTF8(s[:longWitness], "") + fmt.Sprintf("... (%d bytes)", len(s))
}
