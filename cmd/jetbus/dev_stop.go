package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

// stop ends what start began, each part when what it follows has ended and it has caught
// up with that, and says what was done.
func (d *devRun) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	var errs []error
	var summary []string
	if d.edge != nil {
		errs = append(errs, d.edge.close(ctx, drainTimeout))
	}
	if d.heart != nil {
		d.quit()
		d.beating.Wait()
		d.drain(ctx, processes.DefaultHeartbeats, processes.DefaultGroup, d.projector.Done())
	}
	if d.projector != nil {
		errs = append(errs, d.projector.Stop(ctx))
	}
	if d.mongo.projection != nil {
		d.drain(ctx, processes.DefaultStates, devCollection, d.mongo.projection.Done())
		errs = append(errs, d.mongo.projection.Stop(ctx))
	}
	errs = append(errs, d.feed.stop(ctx, &d.mongo))
	if d.projector != nil {
		summary = d.summary(ctx)
	}
	errs = append(errs, d.schemas.close(ctx))
	if d.bus != nil {
		errs = append(errs, d.bus.Close(ctx))
	}
	errs = append(errs, d.mongo.close(ctx), d.meter.close(ctx))
	if d.nc != nil {
		d.nc.Close()
	}
	errs = append(errs, d.broker.Stop(ctx))
	for _, line := range summary {
		if _, err := fmt.Fprintln(d.out, line); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// drain lets a group finish the events that are stored, as long as it gets on with
// them; what is left waits for the next start.
func (d *devRun) drain(ctx context.Context, topic, group string, done <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	last, unchanged := uint64(0), 0
	for unchanged < 40 { // two seconds: the rest is held by a projector that was killed
		left, err := d.left(ctx, topic, group)
		if err != nil || left == 0 {
			return
		}
		if unchanged++; left != last {
			last, unchanged = left, 0
		}
		select {
		case <-ctx.Done():
			return
		case <-done:
			return
		case <-ticker.C:
		}
	}
}

// left is how many events a group has not finished. The server tells its groups of an event
// after it has acknowledged the publish: for a moment a group that is behind says that it is
// not, and the topic is looked at.
func (d *devRun) left(ctx context.Context, topic, group string) (uint64, error) {
	groups, err := d.bus.Groups(ctx, topic)
	if err != nil {
		return 0, err
	}
	for _, g := range groups {
		if g.Group != group {
			continue
		}
		left := g.Pending + uint64(g.Held) //nolint:gosec // a count is not negative
		if left > 0 {
			return left, nil
		}
		for _, err := range d.bus.Read(ctx, []string{topic}, jetbus.ReadOptions{After: map[string]uint64{topic: g.AckedSeq}}) {
			if err != nil {
				return 0, err
			}
			left = 1
			break
		}
		return left, nil
	}
	return 0, nil
}

// summary says what this run did and how to go on.
func (d *devRun) summary(ctx context.Context) []string {
	s := d.projector.Stats()
	published, lost := uint64(0), uint64(0)
	if d.heart != nil {
		published, lost = d.heart.published.Load(), d.heart.lost.Load()
	}
	first := fmt.Sprintf("ended after %v: %s published, %s, %s of them stale",
		time.Since(d.started).Round(time.Second), plural(published, "heartbeat"), plural(s.States+s.Stale, "state"), count(s.Stale))
	if lost > 0 {
		first += fmt.Sprintf("; %s not stored", plural(lost, "heartbeat"))
	}
	kept := "kept    " + d.broker.Dir()
	if infos, err := d.infos(ctx); err == nil {
		var parts []string
		for _, info := range infos {
			parts = append(parts, fmt.Sprintf("%s %s", info.Config.Name, plural(info.Events, "event")))
		}
		kept += ": " + strings.Join(parts, ", ")
	}
	lines := []string{first, kept}
	if d.mongo.projection != nil {
		lines = append(lines, d.mongo.summary(ctx), d.feed.summary(d.mongo.standIn != nil))
	}
	return append(lines, d.o.again)
}

// againLine says how to start anew what a command line started: with its flags but for how long
// it was to run, and without the password of a database.
func againLine(cmd *cobra.Command) string {
	line := "again   " + commandName() + " dev"
	cmd.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		switch {
		case f.Name == "for":
			return
		case f.Name == "mongo":
			value = withoutPassword(value)
		case f.Value.Type() == "bool" && value == "true":
			line += " --" + f.Name
			return
		case f.Value.Type() == "bool":
			line += " --" + f.Name + "=" + value
			return
		}
		line += " --" + f.Name + " " + quoted(value)
	})
	return line
}

// quoted is an argument as a shell takes it.
func quoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:,=@%+", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// maxNotes bounds what is kept for the end.
const maxNotes = 16 << 10

// notes keeps log lines while the screen is up. It is safe for concurrent use.
type notes struct {
	mu   sync.Mutex
	text bytes.Buffer
	more int // lines that found no room
}

// Write takes one line.
func (n *notes) Write(line []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.text.Len()+len(line) > maxNotes {
		n.more++
		return len(line), nil
	}
	return n.text.Write(line)
}

// String returns what was kept.
func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.more > 0 {
		return n.text.String() + fmt.Sprintf("and %s more\n", plural(n.more, "line"))
	}
	return n.text.String()
}
