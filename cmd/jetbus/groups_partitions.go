package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/partition"
)

func newGroupsPartitions(a *app, output *string) *cobra.Command {
	var bucket string
	cmd := &cobra.Command{
		Use:   "partitions TOPIC GROUP",
		Short: "List the partitions of a group and their members",
		Long: `Lists the partitions of a group: the member that has each, its metadata and epoch, and the
lag of the group. "(gone)" marks a member whose session expired, "(away)" one that stopped
and for which the partition is reserved. Partitions of older generations, from before the
topic got more of them, have no member once they are drained.`,
		Args: exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.listPartitions(cmd, *output, bucket, args[0], args[1])
		},
	}
	cmd.Flags().StringVar(&bucket, "bucket", partition.DefaultBucket, "where the members meet")
	return cmd
}

func (a *app) listPartitions(cmd *cobra.Command, output, bucket, topic, group string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		lines, err := partition.Status(cmd.Context(), bus, bucket, topic, group)
		if err != nil {
			return err
		}
		if output != "table" {
			return writeValues(cmd.OutOrStdout(), output, lines)
		}
		rows := [][]string{{"PARTITION", "MEMBER", "EPOCH", "WAITING", "HELD", "RETRIES", "SETTLED TO", "BEHIND", "META"}}
		for _, l := range lines {
			member, epoch := or(l.Member, "-"), "-"
			switch {
			case l.Orphaned:
				member += " (gone)"
			case l.Member != "" && !l.Owned:
				member += " (away)"
			}
			if l.Epoch > 0 {
				epoch = strconv.FormatUint(l.Epoch, 10)
			}
			rows = append(rows, []string{l.Name, member, epoch, count(l.Pending), count(l.Held), count(l.Retries), count(l.AckedSeq), behind(l.LagSeconds), metaText(l.Meta)})
		}
		_, err = io.WriteString(cmd.OutOrStdout(), table(rows))
		return err
	})
}

// metaText is the metadata of a member for people: host=h7 zone=eu.
func metaText(meta map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(meta)) {
		out = append(out, name+"="+meta[name])
	}
	return or(strings.Join(out, " "), "-")
}

func newGroupsKick(a *app) *cobra.Command {
	var bucket string
	var yes bool
	cmd := &cobra.Command{
		Use:   "kick TOPIC GROUP MEMBER",
		Short: "Take a member's partitions away from it",
		Long: `Ends the session of a member of a group by partition: the others share out what it
had at once. It is for a member that hangs. One that works notices, stops what it does
and joins anew; until it has noticed, two may have a partition. It asks for the number
of partitions, unless --yes is given.`,
		Example: `  jetbus groups kick orders.created mailer mailer-0`,
		Args:    exactly(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.kickMember(cmd, bucket, yes, args[0], args[1], args[2])
		},
	}
	cmd.Flags().StringVar(&bucket, "bucket", partition.DefaultBucket, "where the members meet")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) kickMember(cmd *cobra.Command, bucket string, yes bool, topic, group, member string) error {
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		lines, err := partition.Status(cmd.Context(), bus, bucket, topic, group)
		if err != nil {
			return err
		}
		has := 0
		for _, l := range lines {
			if l.Member == member && !l.Orphaned {
				has++
			}
		}
		if !yes {
			what := fmt.Sprintf("member %s would lose %s of %s/%s", member, plural(has, "partition"), topic, group)
			if err := confirm(cmd, what, has); err != nil {
				return err
			}
		}
		if err := partition.KickTopic(cmd.Context(), bus, bucket, topic, group, member); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "member %s is out of %s/%s; it had %s\n", member, topic, group, plural(has, "partition"))
		return err
	})
}
