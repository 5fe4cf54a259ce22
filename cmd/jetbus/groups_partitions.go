package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/partition"
)

// partitionLine is one partition of a group: who has it, and what is left in it.
type partitionLine struct {
	Partition  string  `json:"partition"` // P1.3: the fourth of the first generation
	Generation int     `json:"generation"`
	Number     int     `json:"number"`
	Member     string  `json:"member,omitempty"` // "": nobody has it
	Epoch      uint64  `json:"epoch,omitempty"`
	Orphaned   bool    `json:"orphaned,omitempty"` // its member is gone
	Pending    uint64  `json:"pending"`
	Held       int     `json:"held"`
	Retries    uint64  `json:"retries"`
	AckedSeq   uint64  `json:"ackedSeq"`
	LagSeconds float64 `json:"lagSeconds"`
}

func newGroupsPartitions(a *app, output *string) *cobra.Command {
	var bucket string
	cmd := &cobra.Command{
		Use:   "partitions TOPIC GROUP",
		Short: "Tell which member has which partition, and what is left in it",
		Long: `Tells which member of a group has which partition, in which epoch, and what is left
in it. Partitions of older generations, from before the topic got more of them, have
nobody once they are drained.`,
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
		lines, err := partitionsOf(cmd.Context(), bus, bucket, topic, group)
		if err != nil {
			return err
		}
		if output != "table" {
			return writeValues(cmd.OutOrStdout(), output, lines)
		}
		rows := [][]string{{"PARTITION", "MEMBER", "EPOCH", "WAITING", "HELD", "RETRIES", "SETTLED TO", "BEHIND"}}
		for _, l := range lines {
			member, epoch := or(l.Member, "-"), "-"
			if l.Orphaned {
				member += " (gone)"
			}
			if l.Epoch > 0 {
				epoch = strconv.FormatUint(l.Epoch, 10)
			}
			rows = append(rows, []string{l.Partition, member, epoch, count(l.Pending), count(l.Held), count(l.Retries), count(l.AckedSeq), behind(l.LagSeconds)})
		}
		_, err = io.WriteString(cmd.OutOrStdout(), table(rows))
		return err
	})
}

// partitionsOf joins what is known of a group's partitions with who has them.
func partitionsOf(ctx context.Context, bus *adapter.Bus, bucket, topic, group string) ([]partitionLine, error) {
	parts, err := bus.GroupPartitions(ctx, topic, group)
	if err != nil {
		return nil, err
	}
	who, err := partition.LookupTopic(ctx, bus, bucket, topic, group)
	if err != nil && !errors.Is(err, jetbus.ErrNoGroup) { // it was made, and nobody came
		return nil, err
	}
	owners := map[jetbus.Partition]partition.PartitionInfo{}
	for _, g := range who.Generations {
		for _, p := range g.Partitions {
			owners[jetbus.Partition{Generation: g.Generation, Number: p.Partition}] = p
		}
	}
	lines := make([]partitionLine, len(parts))
	for i, p := range parts {
		owner := owners[p.Partition]
		lines[i] = partitionLine{
			Partition: p.String(), Generation: p.Generation, Number: p.Number, Member: owner.Member, Epoch: owner.Epoch, Orphaned: owner.Orphaned,
			Pending: p.Pending, Held: p.Held, Retries: p.Retries, AckedSeq: p.AckedSeq, LagSeconds: secondsSince(p.Oldest),
		}
	}
	return lines, nil
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
		lines, err := partitionsOf(cmd.Context(), bus, bucket, topic, group)
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
