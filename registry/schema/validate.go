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

// InvalidError lists the violations of a schema by a payload. It matches ErrInvalid.
type InvalidError struct {
	// Violations has at least one and at most MaxViolations violations, sorted by instance
	// path and then by keyword path. A payload that is not JSON, or exceeds a limit of
	// payloads or MaxWork, has one violation, with the path "" and the keyword "#".
	Violations []Violation

	tooMuchWork bool
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

// Is reports whether target is ErrInvalid, or ErrTooMuchWork if the validation takes too much work.
func (e *InvalidError) Is(target error) bool {
	return target == ErrInvalid || e.tooMuchWork && target == ErrTooMuchWork
}

func refuse(message string) error {
	return &InvalidError{Violations: []Violation{{KeywordPath: "#", Message: message}}}
}

// Validate returns an error if the schema does not accept the payload. The error is an *InvalidError
// with the first violations, at most MaxViolations.
//
// Numbers are compared with all their digits, and formats are asserted. Of several members with the
// same name the last one counts, as in encoding/json. A payload is invalid for every schema if it is
// not UTF-8, has more text after its value, or exceeds MaxPayloadDepth, MaxDigits or MaxExponent. If
// the validation takes more than MaxWork steps, the error matches ErrTooMuchWork.
func (s *Schema) Validate(payload []byte) error { return s.ValidateWritten(payload, Strict, MaxWork) }

// ValidateDeclared is Validate in the model Declared, on the writer's side. It also refuses
// properties that the schema does not declare, in every object that the schema describes without
// allowing further properties.
func (s *Schema) ValidateDeclared(payload []byte) error {
	return s.ValidateWritten(payload, Declared, MaxWork)
}

// ValidateWritten is ValidateDeclared in the model Declared, and Validate in any other model. steps
// limits its work, from 1 to MaxWork. If that is not enough, the error matches ErrTooMuchWork.
func (s *Schema) ValidateWritten(payload []byte, m Model, steps int) error {
	v, left, err := s.validate(payload, min(max(steps, 1), MaxWork))
	if err != nil || m != Declared {
		return err
	}
	return s.checkDeclared(v, left)
}

// validate validates the payload and returns it decoded, with the number of steps left.
func (s *Schema) validate(payload []byte, steps int) (v any, left int, err error) {
	size, err := scan(payload, payloadLimits)
	if err != nil {
		return nil, 0, refuse(err.Error())
	}
	if !json.Valid(payload) {
		return nil, 0, refuse("not JSON: " + notValid(payload).Error())
	}
	e := &evaluation{left: steps - 2*size.values}
	if e.left < 0 {
		return nil, 0, tooMuchWork()
	}
	v = readPayload(string(payload), size)
	ok, err := e.accepts(s.root, v)
	switch {
	case errors.Is(err, ErrTooMuchWork):
		return nil, 0, tooMuchWork()
	case err != nil:
		return nil, 0, refuse(err.Error())
	case !ok:
		return nil, 0, &InvalidError{Violations: violations(s.root, v, max(e.left, MaxWork/40))}
	}
	return v, e.left, nil
}

func tooMuchWork() error {
	message := "too large for this schema: " + tooMuch + "; send it in parts, or simplify the schema"
	return &InvalidError{Violations: []Violation{{KeywordPath: "#", Message: message}}, tooMuchWork: true}
}

var tooMuch = "judging it takes more than " + itoa(MaxWork) + " steps"

// notValid returns why a payload is not valid JSON.
func notValid(payload []byte) error {
	if bytes.HasPrefix(payload, []byte(byteOrderMark)) {
		return errByteOrderMark
	}
	dec := json.NewDecoder(bytes.NewReader(payload))
	var v json.RawMessage
	if err := dec.Decode(&v); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("it ends early")
		}
		return err
	}
	end := int(dec.InputOffset())
	rest := bytes.TrimLeft(payload[end:], " \t\r\n")
	return fmt.Errorf("there is more text behind the value, at offset %d", len(payload)-len(rest))
}

// checkDeclared returns an error if a property of v is not declared.
func (s *Schema) checkDeclared(v any, left int) error {
	e := &evaluation{left: left, reporting: true}
	ok, err := e.declares(s.declarations, s.described, v)
	switch {
	case errors.Is(err, ErrTooMuchWork) && len(e.found) == 0:
		return tooMuchWork()
	case err != nil && len(e.found) == 0:
		return refuse(err.Error())
	case ok && err == nil:
		return nil
	}
	return &InvalidError{Violations: tidy(e.found)}
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
