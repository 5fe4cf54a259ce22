package outbox

import (
	"errors"
	"slices"
	"strings"
)

// refusedClasses are the SQLSTATE classes with which PostgreSQL refuses the data of a statement,
// because of its characters, its range, a constraint or a trigger.
var refusedClasses = []string{"09", "22", "23", "27", "38", "39", "44", "54", "P0"}

// refusedCodes are the corresponding primary result codes of SQLite: too big, a constraint or a
// trigger, and a type mismatch.
var refusedCodes = []int{18, 19, 20}

// isRefused reports whether the database refused a statement because of the rows that it changes.
// The database accepts other statements, and would refuse this one again.
func isRefused(err error) bool {
	if refused, ok := errors.AsType[sqlStateError](err); ok {
		return len(refused.SQLState()) == 5 && slices.Contains(refusedClasses, refused.SQLState()[:2])
	}
	if coded, ok := errors.AsType[codeError](err); ok {
		return slices.Contains(refusedCodes, coded.Code()&0xff)
	}
	return err != nil && strings.Contains(err.Error(), "constraint failed") // other drivers for SQLite
}

// codeError is an error of some drivers for SQLite.
type codeError interface {
	error
	Code() int
}
