package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

func newProjectList(a *app, f *projectFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the collections that projections keep, and how far they are",
		Long: `Lists the collections of a database that projections keep. POSITION is the sequence of the
topic up to which everything is in the collection for certain, LAST that of its last event,
and LAG how many events are missing. A topic that shares its stream with others counts
their sequences too. DOCUMENTS has those of deleted keys in it.`,
		Example: `  jetbus project ls --mongo mongodb://127.0.0.1:27017
  jetbus project ls -o json`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listProjections(cmd, f) },
	}
}

// The states of a collection that ls knows.
const (
	projectionGone       = "topic is gone"
	projectionNewStream  = "topic was made anew"
	projectionRestored   = "topic was restored"
	projectionRebuilding = "rebuilding"
	projectionFilling    = "filling"
	projectionRunning    = "running"
)

// projectedCollection is what ls prints: a topic, and how far its collection is. A
// collection that has several topics is there for each of them.
type projectedCollection struct {
	Collection string     `json:"collection"`
	Projection string     `json:"projection"`
	Topic      string     `json:"topic"`
	Stream     string     `json:"stream"`
	Documents  int64      `json:"documents"` // of the collection, those of deleted keys included
	Position   uint64     `json:"position"`
	LastSeq    uint64     `json:"lastSeq"`
	Lag        uint64     `json:"lag"`
	State      string     `json:"state,omitempty"`
	LastAck    *time.Time `json:"lastAck,omitempty"`
}

func (a *app) listProjections(cmd *cobra.Command, f *projectFlags) error {
	if err := checkOutput(f.output); err != nil {
		return err
	}
	return a.withMongo(cmd.Context(), &f.mongo, func(db *mongo.Database) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
		defer cancel()
		list, err := mongosink.ReadStatus(ctx, db)
		if err != nil {
			return err
		}
		if len(list) == 0 && f.output == "table" {
			_, err := fmt.Fprintf(cmd.ErrOrStderr(), "no projection has used database %s; start one with jetbus project, or name another with --db\n", db.Name())
			return err
		}
		return a.withBus(ctx, func(bus *adapter.Bus) error {
			var rows []projectedCollection
			for _, s := range list {
				more, err := examine(ctx, bus, db, s)
				if err != nil {
					return err
				}
				rows = append(rows, more...)
			}
			return writeProjections(cmd.OutOrStdout(), f.output, rows)
		})
	})
}

// examine asks the database and the bus about a collection and its topics.
func examine(ctx context.Context, bus topicReader, db *mongo.Database, s mongosink.Status) ([]projectedCollection, error) {
	documents, err := db.Collection(s.Collection).EstimatedDocumentCount(ctx)
	if err != nil {
		return nil, fmt.Errorf("count the documents of %s: %w", s.Collection, err)
	}
	var rows []projectedCollection
	for _, source := range s.Sources {
		row := projectedCollection{
			Collection: s.Collection, Projection: s.Projection, Topic: source.Topic, Stream: source.Stream,
			Documents: documents, Position: source.Position.Seq,
		}
		switch {
		case s.Rebuilding:
			row.State = projectionRebuilding
		case !source.Position.Known:
			row.State = projectionFilling
		}
		if err := row.follow(ctx, bus, source); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// topicReader is the part of a bus that ls uses.
type topicReader interface {
	jetbus.Topics
	jetbus.CheckpointBus
}

// follow compares the collection with its topic.
func (p *projectedCollection) follow(ctx context.Context, bus topicReader, source mongosink.SourceStatus) error {
	info, err := bus.TopicInfo(ctx, p.Topic)
	switch {
	case errors.Is(err, jetbus.ErrNoTopic):
		p.State = projectionGone
		return nil
	case err != nil:
		return err
	}
	p.LastSeq = info.LastSeq
	if info.Stream != source.Stream || !info.Created.Equal(source.Created) {
		p.State = projectionNewStream
		return nil
	}
	err = source.Position.Last.Verify(ctx, bus, p.Topic)
	if _, restored := errors.AsType[*jetbus.RestoredError](err); restored {
		p.State = projectionRestored
		return nil
	}
	if err != nil {
		return err
	}
	if p.LastSeq > p.Position {
		p.Lag = p.LastSeq - p.Position
	}
	groups, err := bus.Groups(ctx, p.Topic)
	if err != nil {
		return err
	}
	for _, g := range groups {
		if g.Group != p.Projection {
			continue
		}
		p.Position = max(p.Position, g.AckedSeq)
		p.Lag = g.Pending + uint64(max(g.Held, 0)) //nolint:gosec // not negative
		if !g.LastAck.IsZero() {
			p.LastAck = &g.LastAck
		}
		if p.State == "" && g.Waiting > 0 {
			p.State = projectionRunning
		}
	}
	return nil
}

func writeProjections(w io.Writer, output string, list []projectedCollection) error {
	if output != "table" {
		return writeValues(w, output, list)
	}
	rows := [][]string{{"COLLECTION", "PROJECTION", "TOPIC", "DOCUMENTS", "POSITION", "LAST", "LAG", "STATE"}}
	for _, p := range list {
		rows = append(rows, []string{
			p.Collection, p.Projection, p.Topic, count(p.Documents), count(p.Position), count(p.LastSeq), count(p.Lag), or(p.State, "-"),
		})
	}
	_, err := io.WriteString(w, table(rows))
	return err
}
