package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

func newTopicsCreate(a *app, output *string) *cobra.Command {
	var c jetbus.TopicConfig
	cmd := &cobra.Command{
		Use:   "create TOPIC",
		Short: "Declare a topic: create it, or change it to what the flags say",
		Long: `Declares a topic. It may be repeated: an existing topic is changed to what the
flags say, and flags that are not given, empty, 0 or false leave it as it is; of a new one
they mean their defaults, or in --stream what that has. It says what has changed.

What cannot be changed is refused with exit code 4, and so is what would make the topic
keep less than it does, unless --yes is given: events that are too old or too many then are
removed at once.`,
		Example: `  jetbus topics create orders.created --retention 30d --max-bytes 5GiB
  jetbus topics create orders.created --retention 7d --yes
  jetbus topics create process.state --compact
  jetbus topics create payments --partitions 16
  jetbus topics create reminders.due --delays
  jetbus topics create orders.snapshot --snapshot-of orders.created`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Name = args[0]
			return a.createTopic(cmd, *output, c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Description, "description", "", "what the topic is about")
	f.Var((*periodFlag)(&c.Retention), "retention", "how long events are kept: 12h, 30d, none for ever (default 7d)")
	f.Var((*sizeFlag)(&c.MaxBytes), "max-bytes", "bound of the topic's size, -1 for none (default 10GiB)")
	f.Int64Var(&c.MaxEvents, "max-events", 0, "bound of the number of events (default none)")
	f.StringVar((*string)(&c.Discard), "discard", "", "what a full topic does: old (remove the oldest) or new (refuse new ones) (default old)")
	f.StringVar((*string)(&c.Storage), "storage", "", "file or memory (default file)")
	f.IntVar(&c.Replicas, "replicas", 0, "copies in a cluster, 1 to 5 (default 1)")
	f.DurationVar(&c.DuplicateWindow, "duplicate-window", 0, "how long an id is remembered (default 2m)")
	f.BoolVar(&c.KeyInSubject, "key-in-subject", false, "keep keys in subjects: the latest event of a key can be asked for")
	f.BoolVar(&c.Compact, "compact", false, "keep the last event of each key, and delete a key at its tombstone")
	f.IntVar(&c.History, "history", 0, "events of a key that a compacted topic keeps, 1 to 64 (default 1)")
	f.DurationVar(&c.TombstoneTTL, "tombstone-ttl", 0, "how long a tombstone of a compacted topic can be read (default 24h)")
	f.StringVar(&c.SnapshotOf, "snapshot-of", "", "keep the last event of each key of that topic, which has --key-in-subject")
	f.IntVar(&c.Partitions, "partitions", 0, "spread the events by their keys over that many partitions, for package partition (default none)")
	f.BoolVar(&c.Delays, "delays", false, "allow events that are delivered later; a topic that has limits needs --max-bytes -1 and --max-events -1 as well")
	f.StringVar(&c.Stream, "stream", "", "place the topic into a stream that topics share")
	f.BoolVar(&c.Shrink, "yes", false, "let an existing topic keep less than it does")
	return cmd
}

func (a *app) createTopic(cmd *cobra.Command, output string, c jetbus.TopicConfig) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	if err := jetbus.ValidTopic(c.Name); err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		before, err := bus.TopicInfo(cmd.Context(), c.Name)
		if err != nil && !errors.Is(err, jetbus.ErrNoTopic) {
			return err
		}
		existed := err == nil
		info, err := bus.EnsureTopic(cmd.Context(), c)
		if err != nil {
			return topicError(err)
		}
		if output != "table" {
			return writeValue(cmd.OutOrStdout(), output, info)
		}
		said := "created\n"
		if existed {
			said = topicChanges(before.Config, info.Config)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), said+describe(info))
		return err
	})
}

// topicChanges says what became of a topic that was there, one setting a line: of those that
// can change, which storage, compact, partitions and key-in-subject cannot.
func topicChanges(before, after jetbus.TopicConfig) string {
	var b strings.Builder
	add := func(name, from, to string) {
		if from != to {
			fmt.Fprintf(&b, "%s %s -> %s\n", name, printable(from), printable(to))
		}
	}
	add("description", strconv.Quote(before.Description), strconv.Quote(after.Description))
	add("retention", period(before.Retention), period(after.Retention))
	add("max-bytes", limit(before.MaxBytes, size), limit(after.MaxBytes, size))
	add("max-events", limit(before.MaxEvents, count), limit(after.MaxEvents, count))
	add("discard", string(before.Discard), string(after.Discard))
	add("replicas", strconv.Itoa(before.Replicas), strconv.Itoa(after.Replicas))
	add("duplicate-window", period(before.DuplicateWindow), period(after.DuplicateWindow))
	add("delays", yes(before.Delays), yes(after.Delays))
	add("history", strconv.Itoa(before.History), strconv.Itoa(after.History))
	add("tombstone-ttl", period(before.TombstoneTTL), period(after.TombstoneTTL))
	if b.Len() == 0 {
		return "unchanged\n"
	}
	return b.String()
}
