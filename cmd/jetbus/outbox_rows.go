package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// rowFilter are the flags that select rows.
type rowFilter struct{ topic, key string }

func (f *rowFilter) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.topic, "topic", "", "only events of this topic")
	cmd.Flags().StringVar(&f.key, "key", "", "only events with this key")
}

func newOutboxList(a *app, f *outboxFlags) *cobra.Command {
	var filter rowFilter
	var state string
	var limit int
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the rows of an outbox, the oldest first",
		Long: `Lists the rows of an outbox, the oldest first. STATE is pending, dead, or sent where rows
are kept after that; a drainer that has a pending row is said there. A dead row holds back
the later ones of its key, until it is retried or removed.`,
		Example: `  jetbus outbox ls --db sqlite:shop.db
  jetbus outbox ls --state dead --topic orders.paid -o ndjson`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usagef("--limit %d: use 1 or more, or 0 for all", limit)
			}
			if limit == 0 {
				limit = -1
			}
			return a.listRows(cmd, f, outbox.Query{State: outbox.State(state), Topic: filter.topic, Key: filter.key, Limit: limit})
		},
	}
	filter.add(cmd)
	cmd.Flags().StringVar(&state, "state", "", "only pending, dead or sent ones")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most that many; 0 for all")
	return cmd
}

// outboxRow is what ls prints for programs.
type outboxRow struct {
	Event        jetbus.Event `json:"event"`
	State        outbox.State `json:"state"`
	Attempts     int          `json:"attempts"` // that failed
	LastError    string       `json:"lastError,omitempty"`
	Problem      string       `json:"problem,omitempty"` // why the row cannot be read as an event
	Added        time.Time    `json:"added"`
	DueAt        *time.Time   `json:"dueAt,omitempty"`        // missing: at once
	ClaimedUntil *time.Time   `json:"claimedUntil,omitempty"` // missing: no drainer has it
	SentAt       *time.Time   `json:"sentAt,omitempty"`
}

func (a *app) listRows(cmd *cobra.Command, f *outboxFlags, q outbox.Query) error {
	switch q.State {
	case "", outbox.Pending, outbox.Dead, outbox.Sent:
	default:
		return usagef("--state %q: use pending, dead or sent", q.State)
	}
	return a.withOutbox(cmd.Context(), f, outboxTable{}, func(ctx context.Context, box outboxBox) error {
		rows, err := box.List(ctx, q)
		if err != nil {
			return err
		}
		if f.output == "table" {
			if len(rows) == 0 {
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "no row of %s matches\n", f.table)
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), rowTable(rows))
			return err
		}
		list := make([]outboxRow, len(rows))
		for i, r := range rows {
			list[i] = outboxRow{
				Event: r.Event, State: r.State, Attempts: r.Attempts, LastError: r.LastError, Added: r.Added,
				DueAt: unlessZero(r.DueAt), ClaimedUntil: unlessZero(r.ClaimedUntil), SentAt: unlessZero(r.SentAt),
			}
			if r.Err != nil {
				list[i].Problem = r.Err.Error()
			}
		}
		return writeValues(cmd.OutOrStdout(), f.output, list)
	})
}

func unlessZero(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func rowTable(rows []outbox.Row) string {
	lines := [][]string{{"ID", "TOPIC", "KEY", "STATE", "ATTEMPTS", "ADDED", "DUE", "ERROR"}}
	for _, r := range rows {
		text := printable(r.LastError)
		if r.Err != nil {
			text = printable(r.Err.Error())
		}
		if len(text) > errorColumn {
			text = strings.ToValidUTF8(text[:errorColumn], "") + "..."
		}
		state := string(r.State)
		if !r.ClaimedUntil.IsZero() {
			state += ", claimed"
		}
		lines = append(lines, []string{
			r.Event.ID, r.Event.Topic, or(r.Event.Key, "-"), state, count(r.Attempts), moment(r.Added), moment(r.DueAt), or(text, "-"),
		})
	}
	return table(lines)
}

// rowChange is a command that changes rows.
type rowChange struct {
	name, short, long, done string
	all                     string       // flag that selects all rows of a state
	state                   outbox.State // that state
	always                  bool         // it asks for a confirmation for ids, too
	change                  func(outboxBox, context.Context, outbox.Query) (int, error)
}

var rowChanges = []rowChange{
	{
		name: "retry", short: "Publish dead rows after all", done: "retried", all: "all-dead", state: outbox.Dead,
		long:   "Has dead rows published after all, and pending ones that wait for their next attempt at\nonce, with their attempts forgotten. Rows that a drainer has are left alone.",
		change: outboxBox.Retry,
	},
	{
		name: "kill", short: "Set pending rows aside", done: "killed", all: "all-pending", state: outbox.Pending,
		long:   "Sets pending rows aside: they are dead, and not published until they are retried. Rows that a\ndrainer has are left alone.",
		change: outboxBox.Kill,
	},
	{
		name: "rm", short: "Remove dead rows for good", done: "removed", all: "all-dead", state: outbox.Dead, always: true,
		long:   "Removes dead rows for good: their events are never published, and later rows of their keys\ngo on.",
		change: outboxBox.Remove,
	},
}

func newOutboxChange(a *app, f *outboxFlags, c rowChange) *cobra.Command {
	var filter rowFilter
	var all, yes bool
	asks := "--" + c.all + " shows what it would take, and asks for the number of rows, unless --yes is given."
	if c.always {
		asks = "It shows what it would take, and asks for the number of rows, unless --yes is given."
	}
	cmd := &cobra.Command{
		Use:   c.name + " [ID...]",
		Short: c.short,
		Long:  c.long + " Rows are named by the ids of their events, or\nall of them by --" + c.all + ".\n\n" + asks + "\n\nIf some of the ids could not be " + c.done + ", the exit code is 5.",
		Example: fmt.Sprintf(`  jetbus outbox %s 01980e2c-5f5e-7c3a-9d7e-0e5f0b1c2d3e --db sqlite:shop.db
  jetbus outbox %s --%s --topic orders.paid`, c.name, c.name, c.all),
		Args: between(0, -1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			switch {
			case all && len(ids) > 0:
				return usagef("name rows by their ids or take --%s, not both", c.all)
			case !all && len(ids) == 0:
				return usagef("name rows by the ids of their events, or take --%s; see jetbus outbox ls --state %s", c.all, c.state)
			case slices.Contains(ids, ""):
				return usagef("an id is empty: name rows by the ids of their events")
			}
			q := outbox.Query{Topic: filter.topic, Key: filter.key, IDs: distinct(ids), Limit: -1}
			if all {
				q.State = c.state
			}
			return a.changeRows(cmd, f, c, q, !yes && (all || c.always))
		},
	}
	filter.add(cmd)
	cmd.Flags().BoolVar(&all, c.all, false, "all rows that are "+string(c.state))
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) changeRows(cmd *cobra.Command, f *outboxFlags, c rowChange, q outbox.Query, ask bool) error {
	return a.withOutboxOpen(cmd.Context(), f, outboxTable{}, func(box outboxBox) error {
		named := q.IDs
		if ask {
			ids, err := a.previewRows(cmd, box, c, q)
			if err != nil {
				return err
			}
			q.IDs = ids // what came meanwhile was not confirmed
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
		defer cancel()
		var rows []outbox.Row
		if len(named) > 0 { // as they were before, to say why one is not changed
			before := q
			before.IDs = named
			var err error
			if rows, err = box.List(ctx, before); err != nil {
				return err
			}
		}
		n, err := c.change(box, ctx, q)
		if err != nil {
			return err
		}
		err = unchanged(c, named, rows, n)
		if n == 0 && err != nil {
			return err
		}
		if f.output != "table" {
			return errors.Join(err, writeValue(cmd.OutOrStdout(), f.output, map[string]int{c.done: n}))
		}
		_, writeErr := fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", plural(n, "row"), c.done)
		return errors.Join(err, writeErr)
	})
}

const (
	previewRows = 10   // that are shown
	maxPreview  = 1000 // that are counted one by one
)

// previewRows shows what would be changed, asks, and returns the ids of the rows, where
// they are not too many.
func (a *app) previewRows(cmd *cobra.Command, box outboxBox, c rowChange, q outbox.Query) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
	defer cancel()
	q.State, q.Limit = c.state, maxPreview+1
	rows, err := box.List(ctx, q)
	if err != nil {
		return nil, err
	}
	n := len(rows)
	if n > maxPreview {
		if q.Topic != "" || q.Key != "" {
			return nil, usagef("more than %s rows would be %s; add --yes", count(maxPreview), c.done)
		}
		s, err := box.OutboxStats(ctx)
		if err != nil {
			return nil, err
		}
		if n = s.Dead; c.state == outbox.Pending {
			n = s.Pending
		}
	} else {
		for _, r := range rows {
			ids = append(ids, r.Event.ID)
		}
	}
	if n == 0 && len(q.IDs) > 0 {
		q.State = ""
		if rows, err = box.List(ctx, q); err != nil {
			return nil, err
		}
		return nil, unchanged(c, q.IDs, rows, 0)
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: none is %s", errNoRow, c.state)
	}
	text := rowTable(rows[:min(previewRows, len(rows))])
	if n > previewRows {
		text += fmt.Sprintf("and %s more\n", count(n-previewRows))
	}
	if _, err := io.WriteString(cmd.ErrOrStderr(), text); err != nil {
		return nil, err
	}
	return ids, confirm(cmd, plural(n, "row")+" would be "+c.done, n)
}

// unchanged says of ids that were named why nothing was changed of theirs, if so. An id can be
// that of several rows, of as many topics, and n counts rows.
func unchanged(c rowChange, ids []string, rows []outbox.Row, n int) error {
	of := map[string][]outbox.Row{}
	for _, r := range rows {
		of[r.Event.ID] = append(of[r.Event.ID], r)
	}
	if n >= len(rows) && len(of) >= len(ids) {
		return nil
	}
	var reasons []string
	kind, could := errNoRow, 0 // rows that could be changed
	for _, id := range ids {
		if len(of[id]) == 0 {
			reasons = append(reasons, fmt.Sprintf("there is no %s", id))
			continue
		}
		before := could
		for _, r := range of[id] {
			if c.obstacle(r) == "" {
				could++
			}
		}
		if could == before {
			reasons = append(reasons, c.obstacle(of[id][0]))
			kind = jetbus.ErrConflict
		}
	}
	done, total := min(n, len(ids)-len(reasons)), len(ids)
	if len(reasons) == 0 {
		if n >= could {
			return nil
		}
		reasons = []string{"something else changed the rest meanwhile"}
		kind = jetbus.ErrConflict
		done, total = n, could
	}
	err := fmt.Errorf("%d of %s %s: %w: %s", done, plural(total, "row"), c.done, kind, strings.Join(reasons, ", "))
	if n > 0 {
		return &partialError{err}
	}
	return err
}

// obstacle is why a row cannot be changed; empty if it can.
func (c rowChange) obstacle(r outbox.Row) string {
	switch id := r.Event.ID; {
	case !r.ClaimedUntil.IsZero():
		return fmt.Sprintf("a drainer has %s until %s", id, moment(r.ClaimedUntil))
	case c.name == "retry" && r.State == outbox.Sent, c.name != "retry" && r.State != c.state:
		return fmt.Sprintf("%s is %s", id, r.State)
	case errors.Is(r.Err, jetbus.ErrPayloadTooLarge):
		return fmt.Sprintf("%s: %v", id, r.Err)
	}
	return ""
}

// distinct lists each id once.
func distinct(ids []string) []string {
	var out []string
	for _, id := range ids {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}
