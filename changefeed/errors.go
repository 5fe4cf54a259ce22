package changefeed

import (
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
)

// Conditions in which a feed ends or does not start, for errors.Is.
var (
	// ErrHistoryLost: OnHistoryLost is Fail, and one of three things happened. MongoDB no
	// longer has the changes after the feed's position, because its oplog is too small
	// for the time that the feed was stopped. Or MongoDB has not reached the position,
	// because it is another deployment or was restored. Or the topic no longer has the
	// published events; see OnHistoryLost. To resume with a gap, start the feed with
	// another OnHistoryLost.
	ErrHistoryLost = errors.New("the history behind the feed's position is lost")
	// ErrInvalidated: the collection was dropped or renamed, or its database dropped,
	// and OnInvalidate is Fail.
	ErrInvalidated = errors.New("what the feed watches was dropped or renamed")
	// ErrForeign: the topic ends with an event of another publisher. A feed needs its own
	// topic, but not its own stream.
	ErrForeign = errors.New("the topic has events of somebody else")
	// ErrOtherSource: another feed with the same name follows another collection or
	// database, or publishes to another topic. It leads now, or its position is still
	// saved. Give this feed another Name, or reset it.
	ErrOtherSource = errors.New("a feed of that name has another collection or topic")
	// ErrNotReplicaSet: the server is a standalone, which has no change streams.
	ErrNotReplicaSet = errors.New("the server is not in a replica set, so that it has no change streams: initiate one, a single member will do")
	// ErrPrivilege: the user may not read change streams there, or could not be
	// authenticated.
	ErrPrivilege = errors.New("no privilege for change streams: check user, password and authSource in the URI; the user needs the actions find and changeStream")
	// ErrNoImage: Before or FullDocument is Required, and MongoDB has no image of the
	// document for a change.
	ErrNoImage = errors.New("MongoDB has no image of the document: enable changeStreamPreAndPostImages on the collection and keep them long enough, or use WhenAvailable")
	// ErrStream: MongoDB refuses the change stream for another permanent reason.
	ErrStream = errors.New("MongoDB refuses the change stream")
	// ErrPoison: a change cannot become an event, and OnPoison is Fail.
	ErrPoison = errors.New("a change cannot be published")
	// ErrOversize: an event is larger than the broker takes, and OnOversize is Fail.
	ErrOversize = errors.New("a change is larger than the broker takes")
	// ErrLoop: a document was written by a projection of the feed's own topic.
	ErrLoop = errors.New("the collection is a projection of the feed's own topic")
	// ErrFenced: the TokenStore reports that another instance has saved a position in the
	// meantime.
	ErrFenced = errors.New("another instance of the feed is ahead")
)

// Codes of MongoDB's errors.
const (
	codeUnauthorized   = 13
	codeAuthentication = 18
	codeBadValue       = 2
	codeFailedToParse  = 9
	codeTypeMismatch   = 14
	codeIllegal        = 20
	codeNoImage        = 47
	codeNoCommand      = 59
	codeInvalidOptions = 72
	codeInvalidName    = 73
	codeNotSupported   = 115
	codeCappedLost     = 136
	codeOnView         = 166
	codeNotImplemented = 238
	codeInvalidToken   = 260
	codeStreamFatal    = 280
	codeHistoryLost    = 286
	codeTooLarge       = 10334
	codeNoStage        = 40324
	codeUnknownField   = 40415
	codeNotReplicaSet  = 40573
	codeTwoStarts      = 40674
	codeBadToken       = 50811
)

// codeOf is the server's code of an error, 0 where it has none.
func codeOf(err error) int32 {
	if e, ok := errors.AsType[mongo.CommandError](err); ok {
		return e.Code
	}
	return 0
}

// isFinal reports whether an error of our own ends the feed.
func isFinal(err error) bool {
	_, panicked := errors.AsType[*jetbus.PanicError](err)
	return panicked || errors.Is(err, ErrInvalidated) || errors.Is(err, ErrLoop) || errors.Is(err, ErrHistoryLost) ||
		errors.Is(err, ErrFenced) || errors.Is(err, ErrStream)
}

// refusal names an error that opening again does not cure; nil for the others.
func refusal(err error) error {
	switch codeOf(err) {
	case codeNotReplicaSet:
		return fmt.Errorf("%w: %w", ErrNotReplicaSet, err)
	case codeUnauthorized, codeAuthentication:
		return fmt.Errorf("%w: %w", ErrPrivilege, err)
	case codeNoImage:
		return fmt.Errorf("%w: %w", ErrNoImage, err)
	case codeTooLarge:
		return fmt.Errorf("%w: a change event is larger than a document may be, and this server cannot split it (6.0.9 and newer can): %w", ErrStream, err)
	case codeNoCommand, codeNotSupported, codeNotImplemented, codeNoStage:
		return fmt.Errorf("%w: the server has no change streams: a feed needs a MongoDB replica set: %w", ErrStream, err)
	case codeBadValue, codeFailedToParse, codeTypeMismatch, codeInvalidOptions, codeInvalidName, codeOnView,
		codeIllegal, codeUnknownField, codeTwoStarts, codeBadToken:
		return fmt.Errorf("%w: %w", ErrStream, err)
	}
	// The driver wraps it in text, as it does a connection that is cut meanwhile.
	if err != nil && (strings.Contains(err.Error(), "AuthenticationFailed") || strings.Contains(err.Error(), "MechanismUnavailable")) {
		return fmt.Errorf("%w: %w", ErrPrivilege, err)
	}
	if err != nil && strings.Contains(err.Error(), "MaxAwaitTime must be less") { // the driver has no name for it
		return fmt.Errorf("%w: MaxAwaitTime is not shorter than the client's Timeout: %w", jetbus.ErrInvalidOption, err)
	}
	return nil
}
