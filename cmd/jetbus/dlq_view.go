package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// deadTopics returns the topics that have dead letters.
func deadTopics(ctx context.Context, bus jetbus.Topics) ([]deadTopic, error) {
	infos, err := bus.ListTopics(ctx)
	if err != nil {
		return nil, err
	}
	list := []deadTopic{}
	for _, info := range infos {
		name := jetbus.DeadLetterTopic(info.Config.Name)
		if name == "" {
			continue
		}
		dead, err := bus.TopicInfo(ctx, name)
		switch {
		case errors.Is(err, jetbus.ErrNoTopic):
		case err != nil:
			return nil, err
		case dead.Events > 0:
			list = append(list, deadTopic{info.Config.Name, dead.Events})
		}
	}
	return list, nil
}

// listDead prints dead letters as they are read, but for tables and arrays.
func (a *app) listDead(cmd *cobra.Command, output string, f deadFlags, topic string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	q, err := f.query(topic, time.Now())
	if err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		watched := &watchedBus{Bus: bus, line: &progressLine{}}
		if output != "ndjson" || isFile(cmd.OutOrStdout()) { // else what is written shows how far it is, there or by whoever reads it
			watched.line = newProgressLine(cmd.ErrOrStderr())
		}
		defer watched.line.clear()
		letters := jetbus.DeadLetters(cmd.Context(), watched, q)
		if output == "ndjson" {
			return writeDead(cmd.OutOrStdout(), letters)
		}
		if output == "json" {
			list, err := collectDead(letters, func(d jetbus.DeadLetter) jetbus.DeadLetter { return d })
			if err != nil {
				return err
			}
			watched.line.clear()
			return writeValues(cmd.OutOrStdout(), output, list)
		}
		rows, err := collectDead(letters, deadRow)
		if err != nil {
			return err
		}
		watched.line.clear()
		if len(rows) == 0 {
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "no dead letter of %s matches\n", q.Topic)
			return err
		}
		_, err = io.WriteString(cmd.OutOrStdout(), table(slices.Insert(rows, 0, deadHeading)))
		return err
	})
}

// writeDead writes dead letters as they are read, a line each.
func writeDead(w io.Writer, letters iter.Seq2[jetbus.DeadLetter, error]) error {
	out := bufio.NewWriter(w)
	for d, err := range letters {
		if err != nil {
			return errors.Join(err, out.Flush())
		}
		line, err := jsonLine(d)
		if err != nil {
			return err
		}
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	return out.Flush()
}

// collectDead keeps of each dead letter what shown makes of it, and no more: there may be many,
// with large payloads.
func collectDead[T any](letters iter.Seq2[jetbus.DeadLetter, error], shown func(jetbus.DeadLetter) T) ([]T, error) {
	var list []T
	for d, err := range letters {
		if err != nil {
			return nil, err
		}
		list = append(list, shown(d))
	}
	return list, nil
}

const errorColumn = 70 // bytes of an error in a table

var deadHeading = []string{"SEQ", "GIVEN UP", "GROUP", "REASON", "ATTEMPTS", "KEY", "STATE", "ERROR"}

// deadRow is a dead letter in a table.
func deadRow(d jetbus.DeadLetter) []string {
	text := printable(d.Error)
	if len(text) > errorColumn {
		text = strings.ToValidUTF8(text[:errorColumn], "") + "..."
	}
	return []string{
		strconv.FormatUint(d.Seq, 10), moment(d.Time), d.Group, string(d.Reason), count(d.Attempts), or(d.Event.Key, "-"), deadState(d), text,
	}
}

func deadState(d jetbus.DeadLetter) string {
	if d.Replayed.IsZero() {
		return "open"
	}
	return "replayed"
}

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}

func (a *app) showDead(cmd *cobra.Command, output, topic, seq string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	low, high, err := parseSeqs(seq)
	if err != nil || low != high {
		return usagef("%q is no position of a dead letter; see jetbus dlq ls", seq)
	}
	q, err := (&deadFlags{seqs: []string{seq}}).query(topic, time.Now())
	if err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		for d, err := range jetbus.DeadLetters(cmd.Context(), bus, q) {
			if err != nil {
				return err
			}
			if output != "table" {
				return writeValue(cmd.OutOrStdout(), output, d)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), describeDead(d))
			return err
		}
		return fmt.Errorf("dead letter %d of %s: %w", low, q.Topic, jetbus.ErrNoDeadLetters)
	})
}

// describeDead is a dead letter for people, one property a line, its stack and its payload.
func describeDead(d jetbus.DeadLetter) string {
	state := "open"
	if !d.Replayed.IsZero() {
		state = "replayed " + moment(d.Replayed)
	}
	rows := [][]string{
		{"Dead letter", count(d.Seq)},
		{"Given up", moment(d.Time)},
		{"Group", d.Group},
		{"Reason", string(d.Reason)},
		{"Error", d.Error},
		{"Attempts", count(d.Attempts)},
		{"First failed", moment(d.FirstFailed)},
		{"Last failed", moment(d.LastFailed)},
		{"State", state},
		{"Event", d.Event.ID},
		{"Topic", d.Event.Topic + " #" + strconv.FormatUint(d.Event.Seq, 10)},
		{"Stream", d.Stream + ", made " + moment(d.StreamCreated)},
		{"Time", moment(d.Event.Time)},
		{"Key", or(d.Event.Key, "-")},
	}
	if d.Replays > 0 {
		before := count(d.Replays)
		if d.ReplayOf > 0 {
			before += ", the last of dead letter " + strconv.FormatUint(d.ReplayOf, 10)
		}
		rows = slices.Insert(rows, 9, []string{"Replays before", before})
	}
	if len(d.Event.CausedBy) > 0 {
		rows = append(rows, []string{"Caused by", strings.Join(d.Event.CausedBy, ", ")})
	}
	if len(d.Event.Tags) > 0 {
		rows = append(rows, []string{"Tags", strings.Join(d.Event.Tags, ", ")})
	}
	for _, name := range slices.Sorted(maps.Keys(d.Event.Headers)) {
		rows = append(rows, []string{"Header " + name, d.Event.Headers[name]})
	}
	if d.Truncated {
		rows = append(rows, []string{"Truncated", "all of the event is only in its stream"})
	}
	text := table(rows)
	if d.Stack != "" {
		text += "\nStack:\n    " + strings.ReplaceAll(printableLines(d.Stack), "\n", "\n    ") + "\n"
	}
	if len(d.Event.Payload) > 0 {
		text += "\nPayload:\n" + printable(string(d.Event.Payload)) + "\n"
	}
	return text
}

func (a *app) deadStats(cmd *cobra.Command, output, topic string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	q, err := (&deadFlags{}).query(topic, time.Now())
	if err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		watched := &watchedBus{Bus: bus, line: newProgressLine(cmd.ErrOrStderr())}
		s, err := jetbus.DeadLetterStats(cmd.Context(), watched, q.Topic)
		watched.line.clear()
		if err != nil {
			return err
		}
		if output != "table" {
			return writeValue(cmd.OutOrStdout(), output, s)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), describeStats(s))
		return err
	})
}

func describeStats(s jetbus.DeadLetterSummary) string {
	rows := [][]string{
		{"Topic", s.Topic},
		{"Dead letters", count(s.Total)},
		{"Open", count(s.Open)},
		{"Replayed", count(s.Replayed)},
		{"Oldest", moment(s.Oldest)},
		{"Newest", moment(s.Newest)},
	}
	if s.Foreign > 0 {
		rows = append(rows, []string{"No dead letters", plural(s.Foreign, "other event")})
	}
	var b strings.Builder
	b.WriteString(table(rows))
	for _, section := range []struct {
		heading string
		list    []jetbus.DeadLetterCount
	}{{"GROUP", s.Groups}, {"REASON", s.Reasons}, {"ERROR", s.Errors}} {
		rows := [][]string{{"COUNT", "OPEN", "NEWEST", "AT", section.heading}}
		for _, c := range section.list {
			rows = append(rows, []string{count(c.Total), count(c.Open), moment(c.Newest), "#" + strconv.FormatUint(c.Seq, 10), or(c.Name, "-")})
		}
		b.WriteString("\n" + table(rows))
	}
	return b.String()
}
