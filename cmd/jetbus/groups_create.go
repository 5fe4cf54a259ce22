package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

func newGroupsCreate(a *app, output *string) *cobra.Command {
	var c jetbus.GroupConfig
	var from string
	cmd := &cobra.Command{
		Use:   "create TOPIC GROUP",
		Short: "Declare a group: make it before its first member, or change its settings",
		Long: `Declares a group, so that events wait for its members. It may be repeated: a group that
exists goes on where it is, whatever --from says, with the settings that the flags name. It says
what has changed.

With --inactive the broker deletes the group, and its position, when no member has asked for
events for so long.`,
		Example: `  jetbus groups create orders.created mailer
  jetbus groups create orders.created report --from earliest --ack-timeout 5m
  jetbus groups create orders.created trial --inactive 1h`,
		Args: exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if c.From, err = parseStart(or(from, "latest"), time.Now()); err != nil {
				return err
			}
			c.Group = args[1]
			return a.createGroup(cmd, *output, args[0], c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "where a new group begins: latest, earliest, ts=TIME, after=ID or seq=N (default latest)")
	f.DurationVar(&c.AckTimeout, "ack-timeout", 0, "how long a lease lasts; never made shorter (default 30s)")
	f.IntVar(&c.MaxInFlight, "max-in-flight", 0, "how many events all members hold at most (default 10000)")
	f.Var((*periodFlag)(&c.Inactive), "inactive", "how long the group stays without members: 1h, 7d, none for ever (default none)")
	return cmd
}

func (a *app) createGroup(cmd *cobra.Command, output, topic string, c jetbus.GroupConfig) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	if _, err := c.Normalize(); err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		all, err := bus.Groups(cmd.Context(), topic)
		if err != nil {
			return err
		}
		before := slices.IndexFunc(all, func(g jetbus.GroupInfo) bool { return g.Group == c.Group })
		info, err := bus.EnsureGroup(cmd.Context(), topic, c)
		if err != nil {
			return err
		}
		if output != "table" {
			return writeValue(cmd.OutOrStdout(), output, info)
		}
		said := "created\n"
		if before >= 0 {
			said = groupChanges(all[before], info)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), said)
		return err
	})
}

// groupChanges says what became of a group that was there, one setting a line.
func groupChanges(before, after jetbus.GroupInfo) string {
	var b strings.Builder
	add := func(name, from, to string) {
		if from != to {
			fmt.Fprintf(&b, "%s %s -> %s\n", name, from, to)
		}
	}
	add("ack-timeout", period(before.AckTimeout), period(after.AckTimeout))
	add("max-in-flight", count(before.MaxInFlight), count(after.MaxInFlight))
	add("inactive", inactive(before), inactive(after))
	return or(b.String(), "unchanged\n")
}

// inactive is how long a group stays without members.
func inactive(g jetbus.GroupInfo) string {
	if g.Inactive == 0 {
		return period(-1)
	}
	return period(g.Inactive)
}
