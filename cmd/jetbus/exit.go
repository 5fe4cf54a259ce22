package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/outbox"
	"github.com/seed-63e9a637/jetbus/partition"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// The exit codes.
const (
	exitFailure  = 1
	exitUsage    = 2
	exitNotFound = 3
	exitConflict = 4
	exitPartial  = 5
)

// usageError is a command line that cannot be understood.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// partialError is work of which some was done.
type partialError struct{ err error }

func (e *partialError) Error() string { return e.err.Error() }
func (e *partialError) Unwrap() error { return e.err }

// exitCode returns the exit code for an error.
func exitCode(err error) int {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	if err == nil || isUnread(err) {
		return 0
	}
	if _, ok := errors.AsType[*partialError](err); ok {
		return exitPartial
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	switch {
	case is(jetbus.ErrInvalidTopic, jetbus.ErrInvalidGroup, jetbus.ErrInvalidEvent, jetbus.ErrInvalidHeader, jetbus.ErrInvalidOption):
		return exitUsage
	case is(projector.ErrNewStream): // may wrap ErrPositionUnknown
		return exitConflict
	case is(jetbus.ErrNoTopic, jetbus.ErrNoGroup, jetbus.ErrPositionUnknown, jetbus.ErrNoDeadLetters):
		return exitNotFound
	case is(jetbus.ErrConflict, jetbus.ErrNoPartitions, jetbus.ErrWrongSequence, jetbus.ErrGroupBusy, embedded.ErrInUse):
		return exitConflict
	case is(schema.ErrInvalidSchema, schema.ErrTooLarge, registry.ErrInvalidReference, registry.ErrInvalidLevel, registry.ErrInvalidModel, registry.ErrInvalidMode, registry.ErrInvalidExport):
		return exitUsage
	case is(registry.ErrNoSchema, registry.ErrNoVersion, registry.ErrErased):
		return exitNotFound
	case is(registry.ErrIncompatible, registry.ErrReferenced, registry.ErrReadOnly, registry.ErrNotDeleted, registry.ErrContended, registry.ErrBackfillDiffers):
		return exitConflict
	case is(projector.ErrOwned, mongosink.ErrIndexConflict):
		return exitConflict
	case is(outbox.ErrNoTable, errNoCollection, errNoRow, errNoFeed, partition.ErrNoMember):
		return exitNotFound
	case is(changefeed.ErrRunning, changefeed.ErrForeign, changefeed.ErrOtherSource, changefeed.ErrLoop):
		return exitConflict
	}
	return exitFailure
}

// isUnread reports whether an error is no other than that whoever read standard output has gone,
// as head does when it has enough. A connection that broke is another matter, and so is
// work of which a part was left.
func isUnread(err error) bool {
	switch e := err.(type) { //nolint:errorlint // it looks at all of the tree
	case *fs.PathError:
		return e.Path == os.Stdout.Name() && slices.ContainsFunc(errsUnread, func(unread error) bool { return errors.Is(e.Err, unread) })
	case *partialError:
		return false
	case interface{ Unwrap() error }:
		return isUnread(e.Unwrap())
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !isUnread(err) })
	}
	return false
}

// report writes the error of a command as one line, with what to do about it, and returns its exit code.
func report(w io.Writer, command string, err error) int {
	code := exitCode(err)
	if code == 0 {
		return 0
	}
	text := inWordsOfCommand(err)
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	if r := remedy(command, err); r != "" {
		text += "; " + r
	}
	fmt.Fprintf(w, "jetbus: %s\n", printable(text))
	return code
}

// remedies are what users of the command do where those of the library do what a
// [jetbus.RemedyError] or a [jetbus.ConflictError] names.
var remedies = map[string]string{
	"Config.Replicas": "connect to a cluster",
	"EnsureTopic":     "see jetbus topics, or declare it with jetbus topics create",
	"ListTopics":      "see jetbus topics",
	"Repartition":     "jetbus topics repartition gives it more",
	"TopicConfig.Compact, TopicConfig.SnapshotOf": "declare it with --compact, or another one with --snapshot-of; see jetbus topics create --help",
	"TopicConfig.Delays":                          "allow them with jetbus topics create TOPIC --delays --max-bytes -1 --max-events -1",
	"TopicConfig.DuplicateWindow":                 "the topic's --duplicate-window says how long that is; see jetbus topics create --help",
	"TopicConfig.KeyInSubject":                    "declare one with --key-in-subject; see jetbus topics create --help",
	"TopicConfig.MaxBytes":                        "that is --max-bytes of jetbus topics create",
	"TopicConfig.MaxBytes, TopicConfig.MaxEvents": "that is --max-bytes -1 --max-events -1",
	"TopicConfig.Partitions":                      "declare another one with --partitions; see jetbus topics create --help",
	"TopicConfig.Replicas":                        "leave out --replicas, or connect to a cluster",
	"TopicConfig.Shrink":                          "jetbus topics create --yes allows it",
	"TopicConfig.SnapshotOf":                      "declare one with --snapshot-of; see jetbus topics create --help",
	"TopicConfig.Stream":                          "see --stream of jetbus topics create --help",
	"TopicConfig.Stream, TopicConfig.Subject":     "a program adopts it, with TopicConfig.Stream and TopicConfig.Subject; --stream of jetbus topics create names another",
	"TopicConfig.TombstoneTTL":                    "see --tombstone-ttl of jetbus topics create --help",
}

// remedy is what the user of a command can do about an error that does not say it itself.
func remedy(command string, err error) string {
	if u, ok := errors.AsType[*usageError](err); ok && !strings.Contains(u.Error(), "see jetbus ") {
		return "see " + command + " --help"
	}
	if r := remedies[seeOf(err)]; r != "" {
		return r
	}
	if taken, ok := errors.AsType[*takenError](err); ok {
		return "choose another with " + taken.flag + "; port 0 takes a free one"
	}
	switch {
	case errors.Is(err, jetbus.ErrNoDeadLetters):
		return "jetbus dlq lists the topics that have some, and jetbus dlq ls those of one"
	case errors.Is(err, registry.ErrNoSchema):
		return "see jetbus schema ls"
	case errors.Is(err, registry.ErrNoVersion) && !errors.Is(err, registry.ErrInvalidReference):
		return "see jetbus schema ls with the topic"
	case errors.Is(err, registry.ErrIncompatible):
		return "change the schema, or register it with --force --by"
	case errors.Is(err, jetbus.ErrNoTopic):
		return remedies["EnsureTopic"]
	case errors.Is(err, jetbus.ErrDenied):
		return "check --user, --password, --token and --creds"
	case errors.Is(err, projector.ErrNewStream):
		return "fill the collection anew with jetbus project --rebuild"
	case errors.Is(err, mongosink.ErrIndexConflict):
		return "or change --index"
	case errors.Is(err, outbox.ErrNoTable), errors.Is(err, errNoCollection):
		return "name another with --table, or make it with jetbus outbox run --create"
	case errors.Is(err, partition.ErrNoMember):
		return "see jetbus groups describe"
	case errors.Is(err, errNoRow):
		return "see jetbus outbox ls"
	}
	return feedRemedy(err)
}

// flagError says what is wrong with a flag's value without naming functions of Go.
func flagError(err error) error {
	var number *strconv.NumError
	switch {
	case errors.As(err, &number):
		switch {
		case number.Func == "ParseBool":
			return fmt.Errorf("%s: use true or false", beforeValue(err))
		case errors.Is(number.Err, strconv.ErrRange):
			return fmt.Errorf("%s: %q is out of range", beforeValue(err), number.Num)
		}
		return fmt.Errorf("%s: %q is no number", beforeValue(err), number.Num)
	case isDashValue(err):
		return fmt.Errorf("%w; write -- before arguments that begin with a dash", err)
	case strings.Contains(err.Error(), "time: "):
		return fmt.Errorf("%s: use a duration as 90s or 1h30m", beforeValue(err))
	}
	return err
}

// isDashValue reports whether an unknown flag is probably an argument that begins with a dash, such
// as a number or JSON.
func isDashValue(err error) bool {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	return ok && unknown.GetSpecifiedShortnames() != "" && !unicode.IsLetter([]rune(unknown.GetSpecifiedShortnames())[0])
}

// beforeValue is what the parser of flags says of a value before it says why.
func beforeValue(err error) string {
	text, _, _ := strings.Cut(err.Error(), " flag: ")
	return text + " flag"
}

// exactly and atLeast are cobra's argument checks as usage errors that name the usage.
func exactly(n int) cobra.PositionalArgs { return between(n, n) }

func between(low, high int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < low || high >= 0 && len(args) > high {
			return usagef("%s given; usage: %s; see %s --help", plural(len(args), "argument"), cmd.UseLine(), cmd.CommandPath())
		}
		return nil
	}
}

// noCommand refuses arguments of a command that only has subcommands.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	cmd.SuggestionsMinimumDistance = 2 // letters that may be wrong
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		hint = fmt.Sprintf(", did you mean %s?", strings.Join(s, " or "))
	}
	what := "there is"
	if cmd.HasParent() {
		what = cmd.Name() + " has"
	}
	return usagef("%s no command %q%s; see %s --help", what, args[0], hint, cmd.CommandPath())
}
