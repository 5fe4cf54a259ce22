package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrInvalid is for errors.Is: the payload is not what the schema asks for; see InvalidError.
var ErrInvalid = errors.New("invalid payload")

// MaxViolations is how many violations an InvalidError has at most.
const MaxViolations = 100

// InvalidError says in which ways a payload breaks a schema. It is ErrInvalid.
type InvalidError struct {
	// Violations are at least one and at most MaxViolations, sorted by instance path
	// and then by keyword path. A payload that is no JSON, or exceeds the limits of
	// payloads, has one violation, of the path "" and the keyword "#".
	Violations []Violation
}

func (e *InvalidError) Error() string {
	var b strings.Builder
	b.WriteString(ErrInvalid.Error())
	const most = 3
	for i, v := range e.Violations {
		if i == most {
			fmt.Fprintf(&b, "; and %d more", len(e.Violations)-most)
			break
		}
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		if v.InstancePath != "" {
			b.WriteString(v.InstancePath + ": ")
		}
		b.WriteString(v.Message)
	}
	return b.String()
}

// Is matches ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

func refuse(message string) error {
	return &InvalidError{Violations: []Violation{{KeywordPath: "#", Message: message}}}
}

// Validate says whether the schema accepts the payload. Its errors are
// *InvalidError, and list all violations.
//
// Numbers are judged with all their digits, and formats are asserted. Of two members of one name the
// last one counts, as for encoding/json. A payload is invalid for every schema if it
// is not UTF-8, has text behind its value, or exceeds MaxPayloadDepth, MaxDigits,
// MaxExponent or, together with the schema, MaxWork.
func (s *Schema) Validate(payload []byte) error {
	_, err := s.validate(payload)
	return err
}

// ValidateDeclared is Validate in the model Declared, on the writer's side: it
// refuses as well every property that the schema does not declare, wherever it
// describes an object without a word on further properties.
func (s *Schema) ValidateDeclared(payload []byte) error {
	v, err := s.validate(payload)
	if err != nil {
		return err
	}
	return s.checkDeclared(v)
}

func (s *Schema) validate(payload []byte) (any, error) {
	size, err := scan(payload, payloadLimits)
	if err != nil {
		return nil, refuse(err.Error())
	}
	v, err := decode(payload)
	if err != nil {
		return nil, refuse("not JSON: " + err.Error())
	}
	if !s.light(size, len(payload)) && !affordable(s.root, v) {
		return nil, refuse("too large for this schema: " + tooMuch + "; send it in parts, or simplify the schema")
	}
	if err := check(s.lib.root, v); err != nil {
		return nil, &InvalidError{Violations: s.violations(v, err)}
	}
	return v, nil
}

var tooMuch = "judging it takes more than " + itoa(MaxWork) + " steps"

// decode keeps the digits of numbers.
func decode(payload []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.New("it ends early")
		}
		return nil, err
	}
	for i, c := range payload[dec.InputOffset():] {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return nil, fmt.Errorf("there is more text behind the value, at offset %d", int(dec.InputOffset())+i)
		}
	}
	return v, nil
}

// checkDeclared is the part of ValidateDeclared that Validate has not.
func (s *Schema) checkDeclared(v any) error {
	var found []Violation
	s.declarations.undeclared(s.described, v, "", func(is *declaration, path, name string) bool {
		found = append(found, Violation{InstancePath: path, KeywordPath: is.at, Message: "the property " + excerpt(name) + " is not declared"})
		return true
	})
	if len(found) == 0 {
		return nil
	}
	return &InvalidError{Violations: tidy(found)}
}

// tidy sorts violations, and drops the repeated and those beyond MaxViolations.
func tidy(all []Violation) []Violation {
	slices.SortFunc(all, func(a, b Violation) int {
		if c := strings.Compare(a.InstancePath, b.InstancePath); c != 0 {
			return c
		}
		if c := strings.Compare(a.KeywordPath, b.KeywordPath); c != 0 {
			return c
		}
		return strings.Compare(a.Message, b.Message)
	})
	all = slices.Compact(all)
	return all[:min(len(all), MaxViolations)]
}
