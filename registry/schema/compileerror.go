package schema

import "errors"

// Conditions, for errors.Is.
var (
	// ErrInvalidSchema: the text is no schema that can be compiled; see CompileError.
	ErrInvalidSchema = errors.New("invalid schema")
	// ErrTooLarge: the schema exceeds one of the limits, MaxText and those beside it.
	// Such an error is ErrInvalidSchema too.
	ErrTooLarge = errors.New("schema too large")
)

// CompileError says why a schema was not compiled. It is ErrInvalidSchema, and
// ErrTooLarge where a limit is exceeded.
type CompileError struct {
	Path    string // of the part of the schema, as a fragment: "#/properties/a"; "#" is all of it
	Message string // in words

	limit bool
}

func (e *CompileError) Error() string {
	if e.Path == "" || e.Path == "#" {
		return "invalid schema: " + e.Message
	}
	return "invalid schema: at " + e.Path + ": " + e.Message
}

// Is matches ErrInvalidSchema and, where a limit is exceeded, ErrTooLarge.
func (e *CompileError) Is(target error) bool {
	return target == ErrInvalidSchema || e.limit && target == ErrTooLarge
}

func invalid(path, message string) *CompileError {
	return &CompileError{Path: path, Message: message}
}

func tooLarge(path, message string) *CompileError {
	return &CompileError{Path: path, Message: message, limit: true}
}
