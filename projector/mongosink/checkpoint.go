package mongosink

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
)

// lastEvent is the form in which the book stores the newest event that was written to a
// collection.
type lastEvent struct {
	Seq    int64  `bson:"seq"`
	ID     string `bson:"id,omitempty"`
	Stored int64  `bson:"stored,omitempty"` // in nanoseconds since 1970; 0: unknown
}

func lastOf(c jetbus.Checkpoint) *lastEvent {
	if c.Seq == 0 {
		return nil
	}
	l := &lastEvent{Seq: int64(c.Seq), ID: c.ID} //nolint:gosec // sequences are far below 2^63
	if !c.Stored.IsZero() {
		l.Stored = c.Stored.UnixNano()
	}
	return l
}

// checkpoint converts the event to a checkpoint; nil becomes the zero checkpoint.
func (l *lastEvent) checkpoint() jetbus.Checkpoint {
	if l == nil {
		return jetbus.Checkpoint{}
	}
	c := jetbus.Checkpoint{Seq: uint64(max(l.Seq, 0)), ID: l.ID} //nolint:gosec // not negative
	if l.Stored != 0 {
		c.Stored = time.Unix(0, l.Stored).UTC()
	}
	return c
}

// note stores the newest event of a batch before the batch is written, so that the
// collection never has a document of a later event than its page records. If the stored
// event is newer, note keeps and reads it.
func (m *bookmark) note(ctx context.Context, last jetbus.Checkpoint) error {
	if last.Seq <= m.pos.Last.Seq {
		return nil
	}
	field := m.field("last")
	filter := bson.D{
		{Key: "_id", Value: m.page},
		{Key: "projection", Value: m.src.Projection},
		{Key: m.field("stream"), Value: m.src.Stream},
		{Key: m.field("created"), Value: m.src.Created.UnixNano()},
		{Key: field + ".seq", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$gte", Value: int64(last.Seq)}}}}}, //nolint:gosec // see above
	}
	if m.token != "" {
		filter = append(filter, bson.E{Key: "token", Value: m.token})
	}
	r, err := m.book.UpdateOne(ctx, filter, bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: lastOf(last)}}}})
	if err != nil {
		return err
	}
	if r.MatchedCount > 0 {
		m.pos.Last = last
		return nil
	}
	p, err := readPage(ctx, m.book, m.page)
	if err != nil {
		return err
	}
	if p == nil || p.Token != m.token {
		return m.fenced()
	}
	if err := p.check(m.src); err != nil {
		return err
	}
	if _, ok := p.Sources[sourceField(m.src.Topic)]; !ok {
		return m.fenced()
	}
	m.pos.Last = p.position(m.src.Topic).Last
	return nil
}
