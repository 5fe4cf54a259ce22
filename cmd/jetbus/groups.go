package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/partition"
)

func newGroups(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "groups",
		Aliases: []string{"group"},
		Short:   "List and declare groups, how far behind they are, and who has which partition",
		Long:    "Without a command it lists the groups of all topics.",
		Example: `  jetbus groups
  jetbus groups lag orders.created
  jetbus groups create orders.created mailer --from earliest
  jetbus groups describe orders.created mailer
  jetbus groups partitions orders.created mailer
  jetbus groups kick orders.created mailer 01890f2e-7a51-7cc4-a3a1-5a5f6e0a9d11`,
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listGroups(cmd, output, nil) },
	}
	cmd.PersistentFlags().StringVarP(&output, "output", "o", "table", "table, json or ndjson")
	ls := &cobra.Command{
		Use:   "ls [TOPIC...]",
		Short: "List the groups of topics, by default of all",
		Args:  between(0, -1),
		RunE:  func(cmd *cobra.Command, args []string) error { return a.listGroups(cmd, output, args) },
	}
	lag := &cobra.Command{
		Use:   "lag [TOPIC...]",
		Short: "Tell how many events groups have not settled, and for how long",
		Long: `Tells how many events groups have not settled yet, and how long the oldest of them
has been in its topic.`,
		Args: between(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.lagOfGroups(cmd, output, args) },
	}
	var bucket string
	describe := &cobra.Command{
		Use:   "describe TOPIC GROUP",
		Short: "Describe a group, its settings and its members",
		Args:  exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.describeGroup(cmd, output, bucket, args[0], args[1])
		},
	}
	describe.Flags().StringVar(&bucket, "bucket", partition.DefaultBucket, "where the members of a group by partition meet")
	kick := newGroupsKick(a)
	inWords(kick)
	cmd.AddCommand(ls, newGroupsCreate(a, &output), describe, lag, newGroupsPartitions(a, &output), kick)
	return cmd
}

// groupsOf lists the groups of topics, by default of all.
func groupsOf(ctx context.Context, bus jetbus.Topics, topics []string) ([]jetbus.GroupInfo, error) {
	if len(topics) == 0 {
		infos, err := bus.ListTopics(ctx)
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			if info.Config.SnapshotOf == "" { // which has none
				topics = append(topics, info.Config.Name)
			}
		}
	}
	var all []jetbus.GroupInfo
	for _, topic := range topics {
		groups, err := bus.Groups(ctx, topic)
		if err != nil {
			return nil, err
		}
		all = append(all, groups...)
	}
	return all, nil
}

func (a *app) listGroups(cmd *cobra.Command, output string, topics []string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		groups, err := groupsOf(cmd.Context(), bus, topics)
		switch {
		case err != nil:
			return err
		case output != "table":
			return writeValues(cmd.OutOrStdout(), output, groups)
		case len(groups) == 0:
			return noGroups(cmd)
		}
		rows := groupRows(groups)
		rows[0] = append([]string{"TOPIC"}, rows[0]...)
		for i, g := range groups {
			rows[i+1] = append([]string{g.Topic}, rows[i+1]...)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), table(rows))
		return err
	})
}

func noGroups(cmd *cobra.Command) error {
	_, err := fmt.Fprintln(cmd.ErrOrStderr(), "there are no groups; one is made by its first subscriber, as jetbus sub with --group, or by jetbus groups create")
	return err
}

// groupDescription is what describe prints for programs.
type groupDescription struct {
	Group      jetbus.GroupInfo           `json:"group"`
	Stream     string                     `json:"stream"`
	LagSeconds float64                    `json:"lagSeconds"`
	Assignment *partition.TopicAssignment `json:"assignment,omitempty"` // of a group by partition
}

func (a *app) describeGroup(cmd *cobra.Command, output, bucket, topic, group string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		ctx := cmd.Context()
		d, err := findGroup(ctx, bus, topic, group)
		if err != nil {
			return err
		}
		info, err := bus.TopicInfo(ctx, topic)
		if err != nil {
			return err
		}
		d.Stream = info.Stream
		if info.Config.Partitions > 0 {
			who, err := partition.LookupTopic(ctx, bus, bucket, topic, group)
			switch {
			case err == nil:
				d.Assignment = &who
			case !errors.Is(err, jetbus.ErrNoGroup): // its members do not use partitions, or there were none
				return err
			}
		}
		if output != "table" {
			return writeValue(cmd.OutOrStdout(), output, d)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), d.table())
		return err
	})
}

// findGroup describes one group of a topic.
func findGroup(ctx context.Context, bus *adapter.Bus, topic, group string) (groupDescription, error) {
	if err := jetbus.ValidGroup(group); err != nil {
		return groupDescription{}, err
	}
	groups, err := bus.Groups(ctx, topic)
	if err != nil {
		return groupDescription{}, err
	}
	for _, g := range groups {
		if g.Group == group {
			oldest, err := oldestOf(ctx, bus, g)
			return groupDescription{Group: g, LagSeconds: secondsSince(oldest)}, err
		}
	}
	return groupDescription{}, fmt.Errorf("group %s/%s: %w; see jetbus groups ls %s", topic, group, jetbus.ErrNoGroup, topic)
}

// table is the description for people, one property a line, and the members.
func (d groupDescription) table() string {
	g := d.Group
	state := "nobody listens"
	switch {
	case g.Paused:
		state = "paused"
	case g.Waiting > 0:
		state = "listening"
	}
	rows := [][]string{
		{"Group", g.Group},
		{"Topic", g.Topic},
		{"Stream", d.Stream},
		{"Created", moment(g.Created)},
		{"State", state},
		{"Ack timeout", period(g.AckTimeout)},
		{"Max in flight", count(g.MaxInFlight)},
		{"Inactive", inactive(g)},
		{"Settled to", count(g.AckedSeq)},
		{"Waiting", count(g.Pending)},
		{"Held", count(g.Held)},
		{"Retrying", count(g.Retrying)},
		{"Behind", behind(d.LagSeconds)},
		{"Last ack", moment(g.LastAck)},
	}
	if d.Assignment == nil {
		return table(rows)
	}
	return table(rows) + "\n" + table(memberRows(d.Assignment))
}

// memberRows are the members of a group by partition, each with what it has.
func memberRows(a *partition.TopicAssignment) [][]string {
	type row struct {
		partition.MemberInfo
		has []string
	}
	var order []string
	members := map[string]*row{}
	for _, g := range a.Generations {
		for _, m := range g.Members {
			r := members[m.ID]
			if r == nil {
				r = &row{MemberInfo: m}
				members[m.ID] = r
				order = append(order, m.ID)
			}
			for _, p := range m.Partitions {
				r.has = append(r.has, jetbus.Partition{Generation: g.Generation, Number: p}.String())
			}
		}
	}
	rows := [][]string{{"MEMBER", "STATE", "WEIGHT", "JOINED", "PARTITIONS"}}
	for _, id := range order {
		m := members[id]
		rows = append(rows, []string{id, m.State, strconv.Itoa(m.Weight), moment(m.Joined), or(strings.Join(m.has, " "), "-")})
	}
	return rows
}

// behind is a lag for people.
func behind(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return period(time.Duration(seconds * float64(time.Second)).Round(time.Millisecond))
}

// secondsSince is how long ago something was; 0 for what never was.
func secondsSince(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(time.Since(t).Round(time.Millisecond), time.Millisecond).Seconds()
}
