package mongod

import (
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

var (
	// ErrCut is returned by hooks. It closes the connection instead of answering.
	ErrCut = errors.New("mongod: connection cut")
	// ErrConfig is wrapped by the errors of [Config.Validate].
	ErrConfig = errors.New("mongod: invalid config")
)

// A CommandError is an error as MongoDB answers it. Hooks return it to have it
// sent.
type CommandError struct {
	// Code is MongoDB's number of the error, such as 11000.
	Code int32
	// Name is the code's name, such as "DuplicateKey". Default: the name that
	// MongoDB gives the code.
	Name string
	// Message is the text for people.
	Message string
	// Labels are the error labels. Default nil: those that MongoDB adds for the
	// code and the command; an empty slice is none.
	Labels []string

	extra bson.D // further fields of the reply
}

// Error is the name and message of the error.
func (e *CommandError) Error() string {
	return fmt.Sprintf("(%s) %s", codeName(e.Code, e.Name), e.Message)
}

func (e *CommandError) reply() bson.D {
	d := bson.D{
		{Key: "ok", Value: 0.0},
		{Key: "errmsg", Value: e.Message},
		{Key: "code", Value: e.Code},
		{Key: "codeName", Value: codeName(e.Code, e.Name)},
	}
	if len(e.Labels) > 0 {
		d = append(d, bson.E{Key: "errorLabels", Value: labelArray(e.Labels)})
	}
	return append(d, e.extra...)
}

func labelArray(labels []string) bson.A {
	a := make(bson.A, len(labels))
	for i, l := range labels {
		a[i] = l
	}
	return a
}

func errorf(code int32, name, format string, args ...any) *CommandError {
	return &CommandError{Code: code, Name: name, Message: fmt.Sprintf(format, args...)}
}

func badValue(format string, args ...any) *CommandError {
	return errorf(codeBadValue, "BadValue", format, args...)
}

// unsupported is the error for what MongoDB knows and the stand-in does not.
func unsupported(what string) *CommandError {
	return errorf(codeNotImplemented, "NotImplemented", "%s is not supported by this stand-in for MongoDB", what)
}

// commandError is err as the client sees it.
func commandError(err error) *CommandError {
	if ce, ok := errors.AsType[*CommandError](err); ok {
		return ce
	}
	return errorf(8, "UnknownError", "%v", err)
}

// Codes that the code of the server names more than once.
const (
	codeBadValue          = 2
	codeUnauthorized      = 13
	codeTypeMismatch      = 14
	codeAuthFailed        = 18
	codeIllegalOperation  = 20
	codeNamespaceNotFound = 26
	codeCursorNotFound    = 43
	codeNamespaceExists   = 48
	codeCommandNotFound   = 59
	codeWriteConcern      = 64
	codeInvalidOptions    = 72
	codeInvalidNamespace  = 73
	codeIndexOptions      = 85
	codeIndexKeySpecs     = 86
	codeWriteConflict     = 112
	codeNotImplemented    = 238
	codeSnapshotTooOld    = 239
	codeSnapshot          = 246
	codeNoTransaction     = 251
	codeInvalidToken      = 260
	codeTxnInProgress     = 267
	codeStreamFatal       = 280
	codeHistoryLost       = 286
	codeNotPrimary        = 10107
	codeTooLarge          = 10334
	codeDuplicateKey      = 11000
	codeInterrupted       = 11601
	codeStepDown          = 11602
)

// The labels of errors that drivers act upon.
const (
	labelTransient    = "TransientTransactionError"
	labelRetryable    = "RetryableWriteError"
	labelResumable    = "ResumableChangeStreamError"
	labelNotResumable = "NonResumableChangeStreamError"
)

// codeName is name, or what MongoDB calls the code.
func codeName(code int32, name string) string {
	if name != "" {
		return name
	}
	if n, ok := codeNames[code]; ok {
		return n
	}
	return fmt.Sprintf("Location%d", code)
}

var codeNames = map[int32]string{
	codeBadValue: "BadValue", 6: "HostUnreachable", 7: "HostNotFound", codeUnauthorized: "Unauthorized",
	codeAuthFailed: "AuthenticationFailed", codeIllegalOperation: "IllegalOperation", 24: "LockTimeout",
	codeNamespaceNotFound: "NamespaceNotFound", codeCursorNotFound: "CursorNotFound", 50: "MaxTimeMSExpired",
	63: "StaleShardVersion", codeWriteConcern: "WriteConcernFailed", 79: "UnknownReplWriteConcern",
	89: "NetworkTimeout", 91: "ShutdownInProgress", 100: "UnsatisfiableWriteConcern", codeWriteConflict: "WriteConflict",
	133: "FailedToSatisfyReadPreference", 136: "CappedPositionLost", 150: "StaleEpoch", 189: "PrimarySteppedDown",
	216: "ElectionInProgress", 234: "RetryChangeStream", 237: "CursorKilled", codeSnapshotTooOld: "SnapshotTooOld",
	codeSnapshot: "SnapshotUnavailable", codeNoTransaction: "NoSuchTransaction", 262: "ExceededTimeLimit",
	codeTxnInProgress: "PreparedTransactionInProgress", codeStreamFatal: "ChangeStreamFatalError",
	codeHistoryLost: "ChangeStreamHistoryLost", 391: "ReauthenticationRequired", 462: "IngressRequestRateLimitExceeded",
	8000: "AtlasError", 9001: "SocketException", codeNotPrimary: "NotWritablePrimary", codeTooLarge: "BSONObjectTooLarge",
	codeDuplicateKey: "DuplicateKey", 11600: "InterruptedAtShutdown", codeInterrupted: "Interrupted",
	codeStepDown: "InterruptedDueToReplStateChange", 13388: "StaleConfig", 13435: "NotPrimaryNoSecondaryOk",
	13436: "NotPrimaryOrSecondary",
}

// retryableCodes are those after which a driver may send a write again.
var retryableCodes = []int32{6, 7, 89, 91, 189, 262, 9001, codeNotPrimary, 11600, codeStepDown, 13435, 13436}

// resumableCodes are those after which a change stream goes on with a new cursor.
var resumableCodes = append([]int32{63, 133, 150, 234, 13388}, retryableCodes...)

// transientCodes end a transaction that may succeed when it is run again.
var transientCodes = []int32{24, codeWriteConflict, codeSnapshotTooOld, codeSnapshot, codeTxnInProgress}

// labelsFor are the labels that MongoDB adds to an error of command c.
func labelsFor(c *command, code int32, writeConcern bool) []string {
	switch {
	case c.endsTxn():
		switch {
		case slices.Contains(retryableCodes, code):
			return []string{labelRetryable}
		case writeConcern:
		case code == codeNoTransaction, slices.Contains(transientCodes, code):
			return []string{labelTransient}
		}
	case c.inTxn:
		if writeConcern {
			break
		}
		if code == codeNoTransaction || slices.Contains(transientCodes, code) || slices.Contains(retryableCodes, code) {
			return []string{labelTransient}
		}
	case c.hasTxnNumber && slices.Contains(retryableCodes, code):
		return []string{labelRetryable}
	case c.name == "getMore" && c.ofChangeStream && slices.Contains(resumableCodes, code):
		return []string{labelResumable}
	}
	return nil
}
