package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/projector"
)

// rebuild fills a collection anew, puts it in the place of the old one and says what it did.
func rebuild(cmd *cobra.Command, output string, bus *adapter.Bus, sink projector.Rebuilder, s projectSpec, o projector.Options) error {
	progress := newProgressLine(cmd.ErrOrStderr())
	show := func(s projector.RebuildStats) { progress.show(func() string { return describeRebuild(s) }) }
	began := time.Now()
	stats, err := projector.Rebuild(cmd.Context(), bus, sink, o, projector.RebuildOptions{Progress: show})
	progress.clear()
	switch {
	case errors.Is(err, context.Canceled) && cmd.Context().Err() != nil:
		return fmt.Errorf("interrupted after %s: %w", plural(stats.Read, "event"), err)
	case err != nil:
		return err
	}
	if output != "table" {
		return writeValue(cmd.OutOrStdout(), output, stats)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), printable(fmt.Sprintf("%s rebuilt in %v: %s of %s, %s, %s",
		s.Collection, time.Since(began).Round(time.Millisecond), plural(stats.Read, "event"), s.Topic, plural(stats.Written, "document"), plural(stats.Rejected, "dead letter"))))
	return err
}

// describeRebuild says how far a rebuild is.
func describeRebuild(s projector.RebuildStats) string {
	of := ""
	if s.Total > 0 {
		of = " of " + count(s.Total)
	}
	return fmt.Sprintf("%s  %s%s events, %s written, %s", s.Phase, count(s.Read), of, count(s.Written), plural(s.Rejected, "dead letter"))
}
