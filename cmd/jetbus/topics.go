package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

func newTopics(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "topics",
		Aliases: []string{"topic"},
		Short:   "List, describe, declare and remove topics",
		Long:    "Without a command it lists the topics.",
		Example: `  jetbus topics
  jetbus topics info process.state
  jetbus topics create orders.created --retention 30d --key-in-subject
  jetbus topics repartition orders.created 12
  jetbus topics rm orders.created --yes`,
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listTopics(cmd, output) },
	}
	cmd.PersistentFlags().StringVarP(&output, "output", "o", "table", "table, json or ndjson")
	ls := &cobra.Command{
		Use:   "ls",
		Short: "List the topics",
		Args:  exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.listTopics(cmd, output) },
	}
	info := &cobra.Command{
		Use:   "info TOPIC",
		Short: "Describe a topic and its groups",
		Args:  exactly(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return a.describeTopic(cmd, output, args[0]) },
	}
	rm := newTopicsRemove(a)
	inWords(rm)
	cmd.AddCommand(ls, info, newTopicsCreate(a, &output), newTopicsRepartition(a, &output), rm)
	return cmd
}

func (a *app) listTopics(cmd *cobra.Command, output string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		infos, err := bus.ListTopics(cmd.Context())
		if err != nil {
			return err
		}
		if output != "table" {
			return writeValues(cmd.OutOrStdout(), output, infos)
		}
		if len(infos) == 0 {
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "there are no topics under the prefix %s; declare one with jetbus topics create\n", a.prefix)
			return err
		}
		rows := [][]string{{"TOPIC", "EVENTS", "SIZE", "FIRST", "LAST", "LAST AT", "GROUPS", "RETENTION", "KEYS", "PARTITIONS"}}
		for _, t := range infos {
			keys := "-"
			if t.Config.KeyInSubject {
				keys = "in subject"
			}
			rows = append(rows, []string{
				t.Config.Name, count(t.Events), size(t.Bytes), count(t.FirstSeq), count(t.LastSeq), moment(t.LastTime),
				count(t.Groups), period(t.Config.Retention), keys, partitions(t),
			})
		}
		_, err = io.WriteString(cmd.OutOrStdout(), table(rows))
		return err
	})
}

// topicDescription is what info prints for programs.
type topicDescription struct {
	jetbus.TopicInfo
	Groups []jetbus.GroupInfo
}

// MarshalJSON gives the members of the topic, as jetbus topics does, and the list of its groups.
func (d topicDescription) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(d.TopicInfo)
	if err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, err
	}
	if members["groupList"], err = json.Marshal(d.Groups); err != nil {
		return nil, err
	}
	return json.Marshal(members)
}

func (a *app) describeTopic(cmd *cobra.Command, output, topic string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		info, err := bus.TopicInfo(cmd.Context(), topic)
		if err != nil {
			return err
		}
		groups, err := bus.Groups(cmd.Context(), topic)
		if err != nil {
			return err
		}
		if output != "table" {
			return writeValue(cmd.OutOrStdout(), output, topicDescription{info, append([]jetbus.GroupInfo{}, groups...)})
		}
		text := describe(info)
		if len(groups) > 0 {
			text += "\n" + table(groupRows(groups))
		}
		_, err = io.WriteString(cmd.OutOrStdout(), text)
		return err
	})
}

// describe is a topic for people, one property a line: of topics info and topics create.
func describe(t jetbus.TopicInfo) string {
	rows := [][]string{
		{"Topic", t.Config.Name},
		{"Stream", t.Stream},
		{"Created", moment(t.Created)},
		{"Events", count(t.Events)},
		{"Size", size(t.Bytes)},
		{"Sequences", count(t.FirstSeq) + " to " + count(t.LastSeq)},
		{"Last event", moment(t.LastTime)},
		{"Retention", period(t.Config.Retention)},
		{"Max bytes", limit(t.Config.MaxBytes, size)},
		{"Max events", limit(t.Config.MaxEvents, count)},
		{"When full", "discard " + string(t.Config.Discard)},
		{"Storage", string(t.Config.Storage)},
		{"Replicas", strconv.Itoa(t.Config.Replicas)},
		{"Duplicates", "refused for " + period(t.Config.DuplicateWindow)},
		{"Key in subject", yes(t.Config.KeyInSubject)},
		{"Delays", yes(t.Config.Delays)},
	}
	if t.Config.Compact {
		rows = append(rows, []string{"Compacted", fmt.Sprintf("to %d of a key, tombstones stay for %s", t.Config.History, period(t.Config.TombstoneTTL))})
	}
	if t.Config.SnapshotOf != "" {
		rows = append(rows, []string{"Snapshot of", t.Config.SnapshotOf}, []string{"Lag", strconv.FormatInt(t.Lag, 10)})
	}
	if t.Config.Partitions > 0 {
		rows = append(rows, []string{"Partitions", partitions(t)})
	}
	if t.Config.Description != "" {
		rows = append(rows[:1], append([][]string{{"Description", t.Config.Description}}, rows[1:]...)...)
	}
	if t.Config.Subject != "" {
		rows = append(rows, []string{"Subject", t.Config.Subject})
	}
	return table(rows)
}

// partitions are those of a topic for people: "12", or "12, before 8" for one that got
// more of them.
func partitions(t jetbus.TopicInfo) string {
	if t.Config.Partitions == 0 {
		return "-"
	}
	var before []string
	for _, g := range t.Generations[:max(len(t.Generations)-1, 0)] {
		before = append(before, strconv.Itoa(g.Partitions))
	}
	if len(before) == 0 {
		return strconv.Itoa(t.Config.Partitions)
	}
	slices.Reverse(before)
	return fmt.Sprintf("%d, before %s", t.Config.Partitions, strings.Join(before, ", "))
}

func groupRows(groups []jetbus.GroupInfo) [][]string {
	rows := [][]string{{"GROUP", "SETTLED TO", "WAITING", "HELD", "RETRYING", "LAST ACK", "STATE"}}
	for _, g := range groups {
		state := "-"
		switch {
		case g.Paused:
			state = "paused"
		case g.Waiting > 0:
			state = "listening"
		}
		rows = append(rows, []string{g.Group, count(g.AckedSeq), count(g.Pending), count(g.Held), count(g.Retrying), moment(g.LastAck), state})
	}
	return rows
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func checkOutput(output string) error {
	if output != "table" && output != "json" && output != "ndjson" {
		return usagef("--output %q: use table, json or ndjson", output)
	}
	return nil
}

// writeValues writes a list for programs: one array, or one value a line.
func writeValues[T any](w io.Writer, output string, list []T) error {
	if output == "json" {
		return writeValue(w, output, append([]T{}, list...))
	}
	for _, v := range list {
		if err := writeValue(w, output, v); err != nil {
			return err
		}
	}
	return nil
}

// writeValue writes one value for programs, over several lines in json.
func writeValue(w io.Writer, output string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	text = printableJSON(text)
	if output == "json" {
		var b bytes.Buffer
		if err := json.Indent(&b, text, "", "  "); err != nil {
			return err
		}
		text = b.Bytes()
	}
	_, err = w.Write(append(text, '\n'))
	return err
}
