package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// groupLag is how far a group is behind.
type groupLag struct {
	Topic    string  `json:"topic"`
	Group    string  `json:"group"`
	Events   uint64  `json:"events"`  // not settled
	Seconds  float64 `json:"seconds"` // since the oldest of them was stored; 0: there is none
	AckedSeq uint64  `json:"ackedSeq"`
	LastSeq  uint64  `json:"lastSeq"` // of the topic's stream
}

func (a *app) lagOfGroups(cmd *cobra.Command, output string, topics []string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		lags, err := lagOf(cmd.Context(), bus, topics)
		switch {
		case err != nil:
			return err
		case output != "table":
			return writeValues(cmd.OutOrStdout(), output, lags)
		case len(lags) == 0:
			return noGroups(cmd)
		}
		rows := [][]string{{"TOPIC", "GROUP", "EVENTS", "BEHIND", "SETTLED TO", "TOPIC ENDS AT"}}
		for _, l := range lags {
			rows = append(rows, []string{l.Topic, l.Group, count(l.Events), behind(l.Seconds), count(l.AckedSeq), count(l.LastSeq)})
		}
		_, err = io.WriteString(cmd.OutOrStdout(), table(rows))
		return err
	})
}

// lagOf tells how far the groups of topics are behind.
func lagOf(ctx context.Context, bus *adapter.Bus, topics []string) ([]groupLag, error) {
	groups, err := groupsOf(ctx, bus, topics)
	if err != nil {
		return nil, err
	}
	ends := map[string]uint64{}
	lags := []groupLag{}
	for _, g := range groups {
		if _, known := ends[g.Topic]; !known {
			info, err := bus.TopicInfo(ctx, g.Topic)
			if err != nil {
				return nil, err
			}
			ends[g.Topic] = info.LastSeq
		}
		oldest, err := oldestOf(ctx, bus, g)
		if err != nil {
			return nil, err
		}
		lags = append(lags, groupLag{
			Topic: g.Topic, Group: g.Group, Events: g.Pending + uint64(max(g.Held, 0)), Seconds: secondsSince(oldest),
			AckedSeq: g.AckedSeq, LastSeq: ends[g.Topic],
		})
	}
	return lags, nil
}

// oldestOf is when the oldest event was stored that a group has not settled; zero where
// there is none.
func oldestOf(ctx context.Context, bus *adapter.Bus, g jetbus.GroupInfo) (oldest time.Time, err error) {
	if g.Pending == 0 && g.Held == 0 {
		return time.Time{}, nil
	}
	parts, err := bus.GroupPartitions(ctx, g.Topic, g.Group)
	switch {
	case err == nil:
		for _, p := range parts {
			if !p.Oldest.IsZero() && (oldest.IsZero() || p.Oldest.Before(oldest)) {
				oldest = p.Oldest
			}
		}
		return oldest, nil
	case !errors.Is(err, jetbus.ErrNoPartitions) && !errors.Is(err, jetbus.ErrConflict): // it is one of the whole topic
		return time.Time{}, err
	}
	for e, err := range bus.Scan(ctx, g.Topic, jetbus.ScanQuery{From: jetbus.AfterSeq(g.AckedSeq), Limit: 1}) {
		return e.Stored, err
	}
	return time.Time{}, nil
}
