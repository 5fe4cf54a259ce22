package mongosink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus/internal/mongolink"
)

// Conditions, for errors.Is.
var (
	// ErrUnreachable: no primary answered in time.
	ErrUnreachable = errors.New("MongoDB cannot be reached")
	// ErrCredentials: the server refuses the user or the password.
	ErrCredentials = errors.New("MongoDB refuses the credentials")
	// ErrDenied: the user may not do this.
	ErrDenied = errors.New("permission denied by MongoDB")
	// ErrNeedsReplicaSet: the server is no member of a replica set, which transactions need.
	ErrNeedsReplicaSet = errors.New("MongoDB has to be a replica set")
	// ErrNotOpen: the sink was not opened, or its Open failed.
	ErrNotOpen = errors.New("the sink is not open")
	// ErrIndexConflict: an index cannot be created; see IndexError.
	ErrIndexConflict = errors.New("index conflict")
)

// Conditions of changes that are rejected, for errors.Is.
var (
	// ErrInvalidDocument: the state is no document that MongoDB can store.
	ErrInvalidDocument = errors.New("not a document that MongoDB can store")
	// ErrTooLarge: the document is larger than 16 MiB.
	ErrTooLarge = errors.New("the document is larger than 16 MiB")
	// ErrKeyTaken: the document of the key comes from another source.
	ErrKeyTaken = errors.New("the key belongs to another source")
	// ErrDuplicate: another document has the same values in a unique index.
	ErrDuplicate = errors.New("duplicate in a unique index")
	// ErrRefused: the server refuses the document, by a validator for example.
	ErrRefused = errors.New("refused by MongoDB")
)

// IndexError says why an index cannot be created. It is an [ErrIndexConflict].
type IndexError struct {
	Collection string
	Wanted     string // its specification, as JSON
	Existing   string // that of the index in the way; "" where a document is
	Err        error  // the server's answer
}

// Error shows both specifications, or the duplicate values, and what to do.
func (e *IndexError) Error() string {
	if e.Existing == "" {
		return fmt.Sprintf("create index %s of %s: %v: %v: change the documents or the index", e.Wanted, e.Collection, ErrIndexConflict, e.Err)
	}
	return fmt.Sprintf("create index of %s: %v: wanted %s, but there is %s: drop that one, or change Options.Indexes", e.Collection, ErrIndexConflict, e.Wanted, e.Existing)
}

// Unwrap returns ErrIndexConflict and the server's answer.
func (e *IndexError) Unwrap() []error { return []error{ErrIndexConflict, e.Err} }

// MongoDB's numbers of errors that mean something here.
const (
	codeUnauthorized        = 13
	codeAuthFailed          = 18
	codeIllegalOperation    = 20
	codeNamespaceNotFound   = 26
	codeNamespaceExists     = 48
	codeCommandNotFound     = 59
	codeIndexOptions        = 85
	codeIndexKeySpecs       = 86
	codeCommandNotSupported = 115
	codeNotImplemented      = 238
	codeTooLarge            = 10334
	codeDuplicateKey        = 11000
	codeTooLargeUpdated     = 17419
	codeTooLargeUpserted    = 17420
)

// permanent are the numbers of errors of a statement that it will always get. With
// others, which may be the server's state, it is tried again.
var permanent = map[int]bool{
	2: true, 9: true, 14: true, 15: true, // BadValue, FailedToParse, TypeMismatch, Overflow
	28: true, 52: true, 55: true, 56: true, 57: true, 66: true, // PathNotViable, names of fields, ImmutableField
	121: true, 171: true, 16755: true, 16756: true, 17280: true, // validator, and values that an index cannot hold
	codeTooLarge: true, codeTooLargeUpdated: true, codeTooLargeUpserted: true,
}

// hasCode reports whether a server's error has one of the numbers.
func hasCode(err error, codes ...int) bool {
	se, ok := errors.AsType[mongo.ServerError](err)
	return ok && slices.ContainsFunc(codes, se.HasErrorCode)
}

// explain wraps an error of the driver with what can be done about it.
func explain(err error, db *mongo.Database) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case hasCode(err, codeAuthFailed), strings.Contains(err.Error(), "auth error"), strings.Contains(err.Error(), "AuthenticationFailed"):
		return fmt.Errorf("%w: check user, password and authSource in the URI: %w", ErrCredentials, err)
	case hasCode(err, codeUnauthorized):
		return fmt.Errorf("%w: the user needs the role readWrite on database %s: %w", ErrDenied, db.Name(), err)
	case mongo.IsTimeout(err), mongolink.IsBroken(err), errors.Is(err, context.DeadlineExceeded), mongolink.IsSelection(err):
		return fmt.Errorf("%w: check the hosts and the replica set's name in the URI, and that the set has a primary and a majority: %w", ErrUnreachable, err)
	}
	return err
}

// asJSON is a document as people read it.
func asJSON(d any) string {
	j, err := bson.MarshalExtJSON(d, false, false)
	if err != nil {
		return fmt.Sprint(d)
	}
	return string(j)
}
