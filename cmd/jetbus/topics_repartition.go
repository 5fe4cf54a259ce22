package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// repartitionFlags are the flags of topics repartition.
type repartitionFlags struct{ yes, wait bool }

func newTopicsRepartition(a *app, output *string) *cobra.Command {
	var f repartitionFlags
	cmd := &cobra.Command{
		Use:   "repartition TOPIC PARTITIONS",
		Short: "Give a topic more partitions",
		Long: `Gives a topic with partitions more of them, for events from now on: a new generation.
Without --yes it changes nothing, and says what would happen, and how much the groups
have left in the partitions there are.

What is stored stays where it is. Publishers that run learn of it with their next event.
A group handles an event of a new partition when it is done with what older ones may
have of its key; --wait shows how far the groups are, and ends when they are done.

It may be repeated: a topic that has that many partitions is left as it is. Fewer are
refused, and so is any change of a topic that is compacted, has a snapshot or --delays.`,
		Example: `  jetbus topics repartition orders.created 12
  jetbus topics repartition orders.created 12 --yes --wait`,
		Args: exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return usagef("%q is no number of partitions", args[1])
			}
			return a.repartitionTopic(cmd, *output, f, args[0], n)
		},
	}
	cmd.Flags().BoolVar(&f.yes, "yes", false, "do it")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "go on until all groups are done with the older partitions")
	return cmd
}

// growth is what topics repartition prints for programs.
type growth struct {
	Topic       string              `json:"topic"`
	Generations []jetbus.Generation `json:"generations"`       // as they are, with Planned as they would be
	Planned     bool                `json:"planned,omitempty"` // nothing has changed
	Left        []groupLeft         `json:"left"`              // what groups have in all generations but the last
}

// groupLeft is what a group has left in one generation.
type groupLeft struct {
	Group      string `json:"group"`
	Generation int    `json:"generation"`
	Partitions int    `json:"partitions"` // that it is not done with
	Pending    uint64 `json:"pending"`
	Held       int    `json:"held"`
	Retries    uint64 `json:"retries"`
}

func (a *app) repartitionTopic(cmd *cobra.Command, output string, f repartitionFlags, topic string, n int) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		list, err := bus.Generations(cmd.Context(), topic)
		if err != nil {
			return err
		}
		g := growth{Topic: topic, Generations: list, Planned: list[len(list)-1].Partitions != n}
		switch {
		case !g.Planned: // as it is
		case f.yes:
			if g.Generations, err = bus.Repartition(cmd.Context(), topic, n); err != nil {
				return err
			}
			g.Planned = false
		case f.wait:
			return usagef("%s has %s, not %d: --wait is for what --yes begins", topic, plural(list[len(list)-1].Partitions, "partition"), n)
		default:
			if err := bus.CheckRepartition(cmd.Context(), topic, n); err != nil {
				return err
			}
			g.Generations = append(g.Generations, jetbus.Generation{Generation: len(list) + 1, Partitions: n, Stream: list[0].Stream})
		}
		if err := g.look(cmd.Context(), bus); err != nil {
			return err
		}
		if err := g.write(cmd.OutOrStdout(), output); err != nil || !f.wait {
			return err
		}
		return g.wait(cmd, bus, output)
	})
}

// look finds out what groups have left in all generations but the last.
func (g *growth) look(ctx context.Context, bus *adapter.Bus) error {
	groups, err := bus.Groups(ctx, g.Topic)
	if err != nil {
		return err
	}
	last := g.Generations[len(g.Generations)-1].Generation
	g.Left = []groupLeft{}
	for _, group := range groups {
		parts, err := bus.GroupPartitions(ctx, g.Topic, group.Group)
		switch {
		case errors.Is(err, jetbus.ErrConflict), errors.Is(err, jetbus.ErrNoGroup):
			continue // one that reads the whole topic has no use for partitions; or it is gone
		case err != nil:
			return err
		}
		for _, p := range parts {
			if p.Generation < last && !p.Drained() {
				g.add(group.Group, p)
			}
		}
	}
	return nil
}

func (g *growth) add(group string, p jetbus.PartitionInfo) {
	at := slices.IndexFunc(g.Left, func(l groupLeft) bool { return l.Group == group && l.Generation == p.Generation })
	if at < 0 {
		at = len(g.Left)
		g.Left = append(g.Left, groupLeft{Group: group, Generation: p.Generation})
	}
	l := &g.Left[at]
	l.Partitions++
	l.Pending, l.Held, l.Retries = l.Pending+p.Pending, l.Held+p.Held, l.Retries+p.Retries
}

func (g *growth) write(w io.Writer, output string) error {
	if output != "table" {
		return writeValue(w, output, g)
	}
	text := g.summary()
	if len(g.Left) > 0 {
		text += "\n" + g.table()
	}
	_, err := io.WriteString(w, text)
	return err
}

// summary says in words what has happened, or would.
func (g *growth) summary() string {
	last := g.Generations[len(g.Generations)-1]
	if !g.Planned {
		text := fmt.Sprintf("%s has %s since generation %d\n", g.Topic, plural(last.Partitions, "partition"), last.Generation)
		if len(g.Left) == 0 && last.Generation > 1 {
			text += "no group has anything left in older ones\n"
		}
		return text
	}
	now := g.Generations[len(g.Generations)-2]
	return fmt.Sprintf(`%s has %s and would get %d, as generation %d
of its keys %d%% would move, to the new partitions %d to %d; what is stored stays where it is
nothing was changed; add --yes to do it
`, g.Topic, plural(now.Partitions, "partition"), last.Partitions, last.Generation,
		100*(last.Partitions-now.Partitions)/last.Partitions, now.Partitions, last.Partitions-1)
}

func (g *growth) table() string {
	rows := [][]string{{"GROUP", "GENERATION", "PARTITIONS LEFT", "WAITING", "HELD", "RETRIES"}}
	for _, l := range g.Left {
		rows = append(rows, []string{
			l.Group, strconv.Itoa(l.Generation), fmt.Sprintf("%d of %d", l.Partitions, g.Generations[l.Generation-1].Partitions),
			count(l.Pending), count(l.Held), count(l.Retries),
		})
	}
	return table(rows)
}

// drainLook is how often topics repartition --wait looks how far the groups are.
const drainLook = time.Second

// wait shows how far the groups are until they are done.
func (g *growth) wait(cmd *cobra.Command, bus *adapter.Bus, output string) error {
	tick := time.NewTicker(drainLook)
	defer tick.Stop()
	for len(g.Left) > 0 {
		select {
		case <-tick.C:
		case <-cmd.Context().Done():
			return fmt.Errorf("%s: interrupted while groups are not done with older partitions; repeat it to go on: %w", g.Topic, context.Cause(cmd.Context()))
		}
		before := slices.Clone(g.Left)
		if err := g.look(cmd.Context(), bus); err != nil {
			return err
		}
		if slices.Equal(before, g.Left) {
			continue
		}
		if err := g.write(cmd.OutOrStdout(), output); err != nil {
			return err
		}
	}
	return nil
}
