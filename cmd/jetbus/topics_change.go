package main

import (
	"fmt"
	"io"

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
flags say, flags that are not given meaning their defaults; what cannot be changed is
refused with exit code 4.`,
		Example: `  jetbus topics create orders.created --retention 30d --max-bytes 5GiB
  jetbus topics create process.state --compact
  jetbus topics create payments --partitions 16
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
	f.BoolVar(&c.Delays, "delays", false, "allow events that are delivered later")
	f.StringVar(&c.Stream, "stream", "", "place the topic into a stream that topics share")
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
		info, err := bus.EnsureTopic(cmd.Context(), c)
		if err != nil {
			return err
		}
		if output != "table" {
			return writeValue(cmd.OutOrStdout(), output, info)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), describe(info))
		return err
	})
}

func newTopicsRemove(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "rm TOPIC",
		Aliases: []string{"delete"},
		Short:   "Remove a topic with all its events and groups",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
				info, err := bus.TopicInfo(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if !yes {
					groups, err := bus.Groups(cmd.Context(), args[0])
					if err != nil {
						return err
					}
					return usagef("%s has %s and %s, which nothing brings back; add --yes to remove it (see jetbus topics rm --help)",
						args[0], plural(info.Events, "event"), plural(len(groups), "group"))
				}
				if err := bus.DeleteTopic(cmd.Context(), args[0]); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %s with %s\n", args[0], plural(info.Events, "event"))
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	return cmd
}
