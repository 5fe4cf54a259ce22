package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// inWordsOfCommand is the text of an error without the library's names for what this command
// has flags for, and without a remedy of the library for which remedy has the command's.
func inWordsOfCommand(err error) string {
	text := err.Error()
	if known, ok := errors.AsType[*jetbus.RemedyError](err); ok && remedies[known.See] != "" {
		text = strings.ReplaceAll(text, known.Error(), known.Err.Error())
	}
	if c, ok := errors.AsType[*jetbus.ConflictError](err); ok {
		text = strings.ReplaceAll(text, c.Error(), conflictWords(c))
	}
	return text
}

// seeOf is what of the library does away with an error, where the error says so.
func seeOf(err error) string {
	if known, ok := errors.AsType[*jetbus.RemedyError](err); ok {
		return known.See
	}
	if c, ok := errors.AsType[*jetbus.ConflictError](err); ok {
		return c.See
	}
	return ""
}

// topicFlags are the flags of topics create for the fields of a topic's configuration.
var topicFlags = map[string]string{
	"Compact": "--compact", "Delays": "--delays", "Discard": "--discard", "DuplicateWindow": "--duplicate-window", "History": "--history",
	"KeyInSubject": "--key-in-subject", "MaxBytes": "--max-bytes", "MaxEvents": "--max-events", "Partitions": "--partitions",
	"Replicas": "--replicas", "Retention": "--retention", "SnapshotOf": "--snapshot-of", "Storage": "--storage", "Stream": "--stream",
	"TombstoneTTL": "--tombstone-ttl",
}

// conflictWords is the text of a conflict, with the settings of a topic as flags and their
// values as people write them.
func conflictWords(c *jetbus.ConflictError) string {
	out := *c
	if remedies[c.See] != "" {
		out.See = ""
	}
	if strings.HasPrefix(c.What, "topic ") {
		out.Differences = make([]jetbus.Difference, len(c.Differences))
		for i, d := range c.Differences {
			out.Differences[i] = differenceWords(d)
		}
	}
	return out.Error()
}

func differenceWords(d jetbus.Difference) jetbus.Difference {
	flag := topicFlags[d.Field]
	if flag == "" {
		return d
	}
	out := jetbus.Difference{Field: flag, Have: settingWords(d.Field, d.Have), Want: settingWords(d.Field, d.Want)}
	if out.Have == out.Want { // they differ by less than is shown
		out.Have, out.Want = d.Have, d.Want
	}
	return out
}

// settingWords is a setting of a topic for people: "7 days", "10.0 GiB", "none".
func settingWords(field, value string) string {
	switch field {
	case "Retention", "DuplicateWindow", "TombstoneTTL":
		if d, err := time.ParseDuration(value); err == nil {
			value = period(d)
		}
	case "MaxBytes", "MaxEvents":
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil:
		case field == "MaxBytes":
			value = size(n)
		default:
			value = count(n)
		}
	}
	return or(value, "none")
}

// topicWords matches what topicError looks at: what is quoted, which is the user's, the names of the
// fields of a topic's configuration, names of several parts, which may be a topic's, and durations of minutes and more, as Go writes them.
var topicWords = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\b(?:TopicConfig\.)?(?:` + strings.Join(slices.Sorted(maps.Keys(topicFields)), "|") + `)\b|\b\w+(?:[.-]\w+)+|\b(?:[0-9]+h)?[0-9]+m[0-9]+s\b`)

// topicFields are topicFlags and what else of a topic's configuration has a flag.
var topicFields = func() map[string]string {
	all := map[string]string{"Description": "--description", "DiscardNew": "--discard new", "DiscardOld": "--discard old"}
	maps.Copy(all, topicFlags)
	return all
}()

// noSubject leaves Subject out where Stream is named beside it: it has no flag.
var noSubject = strings.NewReplacer(", Stream and Subject", " and Stream", "Stream, Subject and", "Stream and")

// topicError says what is wrong with a topic's configuration in terms of the flags of topics
// create. A conflict says so by itself.
func topicError(err error) error {
	if !errors.Is(err, jetbus.ErrInvalidOption) && !errors.Is(err, jetbus.ErrInvalidTopic) && !errors.Is(err, jetbus.ErrUnsupported) {
		return err
	}
	text := topicWords.ReplaceAllStringFunc(noSubject.Replace(inWordsOfCommand(err)), func(s string) string {
		if flag := topicFields[strings.TrimPrefix(s, "TopicConfig.")]; flag != "" {
			return flag
		}
		if d, err := time.ParseDuration(s); err == nil {
			return or(period(d), s)
		}
		return s
	})
	return &safeError{text, err}
}

// fileError says what is wrong with a file, and not which call of the system failed.
func fileError(err error) error {
	failed, ok := errors.AsType[*fs.PathError](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, fs.ErrNotExist):
		return &safeError{"there is no file " + failed.Path, err}
	}
	return &safeError{failed.Path + ": " + failed.Err.Error(), err}
}

// addressError says what is wrong with an address to listen on that is none, or of no host.
func addressError(err error, address string) error {
	host, unknown := errors.AsType[*net.DNSError](err)
	if unknown && !strings.HasPrefix(host.Name, "tcp/") { // that is of a port
		return &safeError{fmt.Sprintf("listen on %s: %s", address, hostWords(host)), err}
	}
	if _, malformed := errors.AsType[*net.AddrError](err); !unknown && !malformed {
		return err
	}
	return &safeError{fmt.Sprintf("%s is no address to listen on: use host:port, or a port", address), err}
}

func hostWords(host *net.DNSError) string {
	if host.IsNotFound {
		return "there is no host " + host.Name
	}
	return "the address of host " + host.Name + " cannot be looked up"
}

// hostError says why a server cannot be reached, and what to do about it.
func hostError(err error) error {
	if host, ok := errors.AsType[*net.DNSError](err); ok {
		return &safeError{hostWords(host) + "; name another with --server", err}
	}
	if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() || errors.Is(err, nats.ErrTimeout) {
		return &safeError{"no server answers there in time; name another with --server, or wait longer with --timeout", err}
	}
	return err
}
