package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// outboxFlags are the flags that all commands of outbox share.
type outboxFlags struct {
	db, table, output string
}

func newOutbox(a *app) *cobra.Command {
	f := &outboxFlags{}
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Publish what services have put into an outbox, and look after its rows",
		Long: `An outbox is a table, or a collection of MongoDB, into which a service puts events in the
transactions that they tell of, by package outbox or by INSERT. jetbus outbox run publishes
them from there; ls, retry, kill, rm and stats look after the rows, and need no broker.

--db says where it is:

  postgres://user:password@host/database?sslmode=require
  sqlite:shop.db, or the path of a file
  mongodb://host/database

It may hold a password, and flags are in the process list: JETBUS_OUTBOX_DB is not.`,
		Example: `  jetbus outbox run --db sqlite:shop.db
  jetbus outbox stats --db postgres://shop@db.example.com/shop
  jetbus outbox ls --state dead
  jetbus outbox retry --all-dead --topic orders.paid`,
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.db, "db", "", "database: postgres://..., sqlite:FILE or mongodb://... (env JETBUS_OUTBOX_DB, which the process list does not show)")
	flags.StringVar(&f.table, "table", outbox.DefaultTable, "table, or collection; in PostgreSQL behind a schema and a dot if need be")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or ndjson")
	cmd.AddCommand(newOutboxRun(a, f), newOutboxList(a, f), newOutboxStats(a, f))
	for _, c := range rowChanges {
		cmd.AddCommand(newOutboxChange(a, f, c))
	}
	return cmd
}

// outboxBox is an outbox in any database.
type outboxBox interface {
	jetbus.Outbox
	List(ctx context.Context, q outbox.Query) ([]outbox.Row, error)
	Retry(ctx context.Context, q outbox.Query) (int, error)
	Kill(ctx context.Context, q outbox.Query) (int, error)
	Remove(ctx context.Context, q outbox.Query) (int, error)
}

// errNoRow says that an outbox has no such row.
var errNoRow = errors.New("no such row")

func newOutboxStats(a *app, f *outboxFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Count what waits in an outbox, and what is dead",
		Long: `Counts the rows of an outbox that wait to be published, those that a drainer has at the
moment included, and those that are dead. An oldest row that grows old says that nobody
drains the outbox, or that something is in the way.`,
		Example: `  jetbus outbox stats --db sqlite:shop.db
  jetbus outbox stats -o json`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.outboxStats(cmd, f) },
	}
}

// outboxCounts is what stats prints for programs.
type outboxCounts struct {
	Table   string `json:"table"`
	Pending int    `json:"pending"`
	Dead    int    `json:"dead"`
	AgeMs   int64  `json:"ageMs"` // of the oldest pending row; 0: there is none
}

func (a *app) outboxStats(cmd *cobra.Command, f *outboxFlags) error {
	return a.withOutbox(cmd.Context(), f, outboxTable{}, func(ctx context.Context, box outboxBox) error {
		s, err := box.OutboxStats(ctx)
		if err != nil {
			return err
		}
		if f.output != "table" {
			return writeValue(cmd.OutOrStdout(), f.output, outboxCounts{f.table, s.Pending, s.Dead, s.Age.Milliseconds()})
		}
		oldest := "-"
		if s.Pending > 0 {
			oldest = s.Age.Round(time.Second).String()
		}
		_, err = io.WriteString(cmd.OutOrStdout(), table([][]string{
			{"Table", f.table}, {"Pending", count(s.Pending)}, {"Oldest", oldest}, {"Dead", count(s.Dead)},
		}))
		if err == nil && s.Dead > 0 {
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "see jetbus outbox ls --state dead")
		}
		return err
	})
}
