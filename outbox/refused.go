package outbox

import (
	"errors"
	"reflect"
	"slices"
	"strings"
)

// A statement may fail because of the rows that it changes, or because of something that concerns
// all rows. Error codes tell them apart only in part: a trigger may raise any of them. If the
// code does not exclude the rows, the database is asked to execute the statement for no row.

// outageClasses are the SQLSTATE classes of PostgreSQL that are not about rows: connections,
// transactions, authorization, catalogs, rollbacks, resources, states of objects, operators, the
// system and internal errors.
var outageClasses = []string{"00", "01", "02", "08", "25", "28", "3D", "40", "53", "55", "57", "58", "XX"}

// refusedCodes are the primary result codes of SQLite that may be about rows: an error, such as
// of a function in a trigger, too big, a constraint or RAISE, and a type mismatch.
var refusedCodes = []int{1, 18, 19, 20}

// refusedTexts are in the errors of drivers for SQLite that have no code.
var refusedTexts = []string{"constraint failed", "string or blob too big", "datatype mismatch"}

// errDropped is a change that the database reports as done, although the row is unchanged.
var errDropped = errors.New("the database drops the change without an error, as a trigger, a rule or row security may do")

// isRefused reports whether the database may have refused a statement because of the rows that it
// changes: it would refuse the statement again, and accept it for other rows.
func isRefused(err error) bool {
	if errors.Is(err, errDropped) {
		return true
	}
	if refused, ok := errors.AsType[sqlStateError](err); ok {
		return len(refused.SQLState()) == 5 && !slices.Contains(outageClasses, refused.SQLState()[:2])
	}
	if code, ok := codeOf(err); ok {
		return slices.Contains(refusedCodes, code&0xff)
	}
	return err != nil && slices.ContainsFunc(refusedTexts, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// codeError is an error of some drivers for SQLite.
type codeError interface {
	error
	Code() int
}

// codeOf returns the result code of an error of SQLite. Drivers have it as a method or as a field.
func codeOf(err error) (code int, ok bool) {
	if coded, ok := errors.AsType[codeError](err); ok {
		return coded.Code(), true
	}
	for ; err != nil; err = errors.Unwrap(err) {
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() != reflect.Struct {
			continue
		}
		if field := v.FieldByName("Code"); field.IsValid() && field.CanInt() {
			return int(field.Int()), true
		}
	}
	return 0, false
}
