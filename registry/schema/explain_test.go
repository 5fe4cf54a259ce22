package schema

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestExplain(t *testing.T) {
	refuted := Verdict{
		Result:     Refuted,
		Witness:    json.RawMessage(`{"name":""}`),
		Violations: []Violation{{InstancePath: "/name", KeywordPath: "#/properties/name/minLength", Message: "must have at least 1 character"}},
		Reasons: []Reason{
			{Keyword: "type", Path: "#", Message: "something else"},
			{Keyword: "minLength", Path: "#/properties/name", Message: "minLength raised from 0 to 1"},
		},
	}
	tests := []struct {
		name    string
		verdict Verdict
		d       Direction
		want    string
	}{
		{"proved", Verdict{Result: Proved}, Backward, "compatible: whatever the old schema accepts, the new one accepts"},
		{"proved forward", Verdict{Result: Proved}, Forward, "compatible: whatever the new schema accepts, the old one accepts"},
		{"refuted", refuted, Backward, `this event was valid before and is not now: {"name":""}
  /name: must have at least 1 character
  because: minLength raised from 0 to 1 at #/properties/name`},
		{"refuted forward", refuted, Forward, `this event is valid now, and whoever reads with the old schema refuses it: {"name":""}
  /name: must have at least 1 character
  because, going from the new schema back to the old: minLength raised from 0 to 1 at #/properties/name`},
		{"refuted as a whole, without reasons", Verdict{
			Result: Refuted, Witness: json.RawMessage(`0`), Violations: []Violation{{Message: "must be string"}},
		}, Backward, `this event was valid before and is not now: 0
  the event: must be string`},
		{"unproved", Verdict{Result: Unproved, Reasons: []Reason{{Keyword: "$dynamicRef", Path: "#/items", Message: "$dynamicRef is beyond the proof"}}}, Backward, `it is not proved that the new schema accepts whatever the old one accepts; no event was found that shows the contrary
  the proof stopped here: $dynamicRef is beyond the proof at #/items
  if you know better, Force overrides this and is recorded`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := test.verdict.Explain(test.d); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
			if got := test.verdict.String(); test.d == Backward && got != test.want {
				t.Errorf("String: got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// A large event with many faults is cut.
func TestExplainShort(t *testing.T) {
	v := Verdict{Result: Refuted, Witness: json.RawMessage(`"` + strings.Repeat("é", 5000) + `"`)}
	for range 100 {
		v.Violations = append(v.Violations, Violation{InstancePath: "/a", Message: "is wrong"})
	}
	got := v.Explain(Backward)
	if len(got) > 700 || !strings.Contains(got, "... (10002 bytes)") || !strings.Contains(got, "and 97 more") {
		t.Errorf("got %s", got)
	}
}
