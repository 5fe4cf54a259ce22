package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
	"github.com/seed-63e9a637/jetbus/metrics"
)

const (
	maxUsageRows  = 1000 // versions, and pairs of a version and a source; the others count as metrics.Other
	maxUsageBytes = 200  // of a version or source
)

// usage is how many events of a topic have a schema version and a source.
type usage struct {
	Version string `json:"version"` // as the events state it; metrics.NoVersion: they state none
	Source  string `json:"source"`  // the CloudEvents source; empty: the events have none
	Events  uint64 `json:"events"`
	First   int64  `json:"first"` // when the first and the last were stored, in epoch milliseconds
	Last    int64  `json:"last"`
}

func newSchemaUsage(a *app, f *schemaFlags) *cobra.Command {
	var since string
	cmd := &cobra.Command{
		Use:   "usage TOPIC",
		Short: "Count the schema versions that publishers use",
		Long: `Counts the events of a topic by the schema version that they state and by their CloudEvents
source, the lowest version first. "none" counts the events that state no version. If --since
covers the longest pause of any publisher, versions that are not listed are no longer written.
This holds only if the topic keeps all events of that time: not for compacted topics.

The command reads all events since that time: use a short time for a busy topic. Beyond 1,000 pairs of a
version and a source, other sources of a version count as "other", and so do versions beyond 1,000.`,
		Example: `  jetbus schema usage orders.created
  jetbus schema usage orders.created --since 24h -o json`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.schemaUsage(cmd, f, args[0], since) },
	}
	cmd.Flags().StringVar(&since, "since", "1h", "events stored since this time (RFC 3339, epoch milliseconds) or in this duration")
	return cmd
}

func (a *app) schemaUsage(cmd *cobra.Command, f *schemaFlags, topic, since string) error {
	if err := checkOutput(f.output); err != nil {
		return err
	}
	now := time.Now()
	from, err := parseTime(since, func(d time.Duration) time.Time { return now.Add(-d) })
	if err != nil {
		return usagef("--since: %w", err)
	}
	return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		watched := &watchedBus{Bus: bus, line: newProgressLine(cmd.ErrOrStderr())}
		list, err := readUsage(cmd.Context(), watched, topic, from)
		watched.line.clear()
		if err != nil {
			return err
		}
		if f.output != "table" {
			return writeValues(cmd.OutOrStdout(), f.output, list)
		}
		if len(list) == 0 {
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "no events in %s since %s\n", topic, moment(from))
			return err
		}
		rows := [][]string{{"VERSION", "SOURCE", "EVENTS", "FIRST", "LAST"}}
		for _, u := range list {
			rows = append(rows, []string{u.Version, or(u.Source, "-"), count(u.Events), moment(time.UnixMilli(u.First)), moment(time.UnixMilli(u.Last))})
		}
		_, err = io.WriteString(cmd.OutOrStdout(), table(rows))
		return err
	})
}

func readUsage(ctx context.Context, bus jetbus.Store, topic string, from time.Time) ([]usage, error) {
	list, err := countUsage(bus.Scan(ctx, topic, jetbus.ScanQuery{From: jetbus.AtTime(from)}))
	if err != nil {
		return nil, fmt.Errorf("count the versions of %s: %w", topic, err)
	}
	return list, nil
}

// countUsage counts the pairs of a version and a source, the lowest version first: events without a version, then
// versions by their numbers, then other texts. Within a version the source with the most events comes first.
func countUsage(events iter.Seq2[jetbus.Event, error]) ([]usage, error) {
	type pair struct{ version, source string }
	counts, versions := map[pair]*usage{}, map[string]bool{}
	for e, err := range events {
		if err != nil {
			return nil, err
		}
		version, source := usageText(or(e.Headers[jetbus.HeaderSchemaVersion], metrics.NoVersion)), usageText(ce.Source(&e))
		if !versions[version] && len(versions) >= maxUsageRows {
			version = metrics.Other
		}
		u := counts[pair{version, source}]
		if u == nil && len(counts) >= maxUsageRows {
			source = metrics.Other
			u = counts[pair{version, source}]
		}
		if u == nil {
			version, source = strings.Clone(version), strings.Clone(source) // they are parts of a message
			versions[version] = true
			u = &usage{Version: version, Source: source, First: e.Stored.UnixMilli()}
			counts[pair{version, source}] = u
		}
		u.Events++
		u.Last = e.Stored.UnixMilli()
	}
	list := make([]usage, 0, len(counts))
	for _, u := range counts {
		list = append(list, *u)
	}
	slices.SortFunc(list, func(a, b usage) int {
		return cmp.Or(cmp.Compare(versionRank(a.Version), versionRank(b.Version)), strings.Compare(a.Version, b.Version),
			cmp.Compare(b.Events, a.Events), strings.Compare(a.Source, b.Source))
	})
	return list, nil
}

// versionRank orders versions: none, numbers, other texts.
func versionRank(version string) uint64 {
	if version == metrics.NoVersion {
		return 0
	}
	if n, err := strconv.ParseUint(version, 10, 31); err == nil {
		return n
	}
	return math.MaxUint64
}

// usageText bounds a version or a source.
func usageText(s string) string {
	if len(s) <= maxUsageBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxUsageBytes], "") + "..."
}
