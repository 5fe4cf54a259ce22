package mongobox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/outrow"
)

// A claim looks first and takes then. It looks in a transaction that reads one snapshot
// and writes nothing: rows that are due, oldest first, and for each of their keys what
// else waits up to there. The rows of a key that it may have are those from its oldest
// up to the first that is not to be had: dead, waiting, or claimed. It takes them
// outside of the transaction, each if it is still due, and reads which it got. Behind
// the first of a key that it did not get it gives the others back.
//
// Why that is enough: no row appears ahead of the oldest of a key, since the counter
// gives positions in the order of commits. So whoever gets the oldest is the only one to
// go on with its key, whatever happened since the snapshot: A holds the rows 5, 6 and 7,
// and its lease runs out. B sees all three as due, while A, late, notes that 6 failed. B
// then gets 5 and 7, and gives 7 back. Or C sees them, too, and they meet half way: B
// gets 5, C gets 6 and 7 and gives them back, for want of 5.
//
// Why the rows are not taken in the transaction: of a drainer that is killed before the
// commit, the server would keep the rows locked for a minute, and with them every other
// claim that comes by.
const (
	scanRows  = 1000             // in a step
	scanSteps = 20               // of a claim that has found something
	scanAnew  = 10 * time.Second // how long claims that are full go on behind one that was cut short
	scanTime  = 3 * time.Second  // of one that has not: a claim that runs out of time has nothing, again and again
	maxLooks  = 5                // of a claim whose rows others take, and of one that is refused a snapshot
	giveBack  = 2 * time.Second  // for what a claim leaves behind when it fails
)

// Claim implements [jetbus.Outbox].
func (b *Box) Claim(ctx context.Context, o jetbus.ClaimOptions) ([]jetbus.OutboxRow, error) {
	var rows []jetbus.OutboxRow
	var err error
	if err = outrow.CheckClaim(o); err == nil {
		rows, err = b.claim(alone(ctx), o)
	}
	if err != nil {
		return nil, fmt.Errorf("claim in outbox %s: %w", b.name, err)
	}
	for _, row := range rows {
		if row.Claim == "" {
			b.refused.Hide(row.Ref, o.Lease)
		}
	}
	return rows, nil
}

func (b *Box) claim(ctx context.Context, o jetbus.ClaimOptions) ([]jetbus.OutboxRow, error) {
	lost := map[any]bool{}
	for look := 1; ; look++ {
		c := &claim{b: b, o: o, token: jetbus.NewID(), lost: lost, hidden: b.refused.Hidden(), has: map[string]bool{}, begun: map[lane]int64{}}
		err := c.look(ctx)
		if err != nil && look < maxLooks && ctx.Err() == nil && isTransient(err) {
			continue // the snapshot is gone, or the primary
		}
		if err != nil || len(c.found) == 0 {
			return nil, err
		}
		rows, err := c.take(ctx)
		if err != nil || len(rows) > 0 || look == maxLooks {
			return rows, err
		}
		for _, p := range c.found { // others look at the same rows: leave them to them
			lost[p.turnstile()] = true
		}
	}
}

// isTransient reports whether a transaction that failed may succeed when it is run again.
func isTransient(err error) bool {
	e, ok := errors.AsType[mongo.LabeledError](err)
	return ok && e.HasErrorLabel("TransientTransactionError")
}

// lane is what has an order.
type lane struct{ topic, key string }

// place is a row that may be claimed.
type place struct {
	id   bson.RawValue
	pos  int64
	size int  // of the document
	lane lane // without a key: the row has no order
	due  bool
	// err names the fields that cannot be read; nil: none. A row without a readable
	// position has no order, and pos is oldest.
	err      error
	unplaced bool // the position cannot be read
	oddDue   bool // due_at cannot be read
}

func (p place) ref() string { return refOf(p.id) }

// turnstile is what only one claim gets at a time: the key, or the row itself.
func (p place) turnstile() any {
	if p.lane.key == "" {
		return p.ref()
	}
	return p.lane
}

// claim is one attempt of Claim.
type claim struct {
	b     *Box
	o     jetbus.ClaimOptions
	token string

	lost   map[any]bool    // turnstiles that others got since the claim began
	hidden map[string]bool // Refs of rows that the server refused to let an earlier claim take
	found  []place
	has    map[string]bool // what was found, by Ref
	begun  map[lane]int64  // keys of which rows were found, and the positions up to which they were looked at
	over   map[lane]bool   // keys that go no further
	bytes  int             // of what was found
	full   bool            // there is no room for more
}

// scanFrom is where claims begin: at the oldest row, or where the claim before was cut
// short, until one has come to the end. However long that takes, what is behind many
// rows that are not to be had has its turn; and those ahead have theirs where there is
// always enough behind.
type scanFrom struct {
	mu    sync.Mutex
	from  int64
	over  map[lane]bool // keys of rows ahead of from
	on    bool          // from is where the last claim was cut short
	since time.Time     // when one was cut that had begun at the oldest row

	patience time.Duration // scanTime, but for tests
}

// begin returns where a claim begins, and which keys it passes over.
func (s *scanFrom) begin() (from int64, over map[lane]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		return oldest, map[lane]bool{}
	}
	return s.from, maps.Clone(s.over)
}

// cut notes where the last of many steps began: the rows before it were not to be had.
// The next claim begins there.
func (s *scanFrom) cut(from int64, over map[lane]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		s.since = time.Now()
	}
	s.from, s.over, s.on = from, over, true
}

// filled notes a claim that took all there was room for, short of the end.
func (s *scanFrom) filled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.since) > scanAnew {
		s.on, s.over = false, nil
	}
}

// anew has the next claim begin with the oldest row.
func (s *scanFrom) anew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on, s.over = false, nil
}

// look finds rows that may be claimed.
func (c *claim) look(ctx context.Context) error {
	session, err := c.b.rows.Database().Client().StartSession(options.Session().SetCausalConsistency(false))
	if err != nil {
		return err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	err = session.StartTransaction(transaction(readconcern.Snapshot()))
	if err != nil {
		return err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
		defer cancel()
		_ = session.AbortTransaction(ending) // it only read
	}()
	return c.scan(mongo.NewSessionContext(ctx, session))
}

// transaction are the options of one, whatever the defaults of the client are.
func transaction(read *readconcern.ReadConcern) *options.TransactionOptionsBuilder {
	return options.Transaction().SetReadConcern(read).SetReadPreference(readpref.Primary()).SetWriteConcern(writeconcern.Majority())
}

// scan goes through the rows that are due in steps, until it has enough.
func (c *claim) scan(ctx context.Context) error {
	var from int64
	from, c.over = c.b.scan.begin()
	filter := bson.D{inState(Pending)}
	if from != oldest {
		filter = append(filter, bson.E{Key: fieldPos, Value: bson.D{{Key: "$gte", Value: from}}})
	}
	if len(c.o.SkipTopics) > 0 {
		filter = append(filter, bson.E{Key: fieldTopic, Value: bson.D{{Key: "$nin", Value: c.o.SkipTopics}}})
	}
	cursor, err := c.b.rows.Find(ctx, append(filter, due),
		options.Find().SetSort(byPos).SetBatchSize(scanRows).SetProjection(placeFields))
	if err != nil {
		return err
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	began := time.Now()
	cut := int64(oldest) // the first position in the last step that has one
	for step := 1; ; step++ {
		places, err := next(ctx, cursor)
		if err == nil && len(places) > 0 {
			err = c.choose(ctx, places)
		}
		if i := slices.IndexFunc(places, place.placed); i >= 0 {
			cut = places[i].pos
		}
		switch {
		case err != nil:
			return err
		case len(places) < scanRows:
			c.b.scan.anew()
			return nil
		case step >= scanSteps && (len(c.found) > 0 || time.Since(began) > c.b.scan.patience):
			c.b.scan.cut(cut, c.over)
			return nil
		case c.full:
			c.b.scan.filled()
			return nil
		}
	}
}

// placeFields are what a place is made of.
var placeFields = bson.D{
	{Key: fieldTopic, Value: 1},
	{Key: fieldKey, Value: 1},
	{Key: fieldPos, Value: 1},
	{Key: fieldState, Value: 1},
	{Key: fieldDue, Value: 1},
	{Key: "due", Value: due.Value},
	{Key: "size", Value: bson.D{{Key: "$bsonSize", Value: "$$ROOT"}}},
}

func readPlace(raw bson.Raw) place {
	r := reader{raw: raw}
	p := place{pos: r.position()}
	p.unplaced = len(r.errs) > 0
	problems := len(r.errs)
	r.time(fieldDue)
	p.oddDue = len(r.errs) > problems
	state := r.text(fieldState)
	id := raw.Lookup(fieldRowID)
	p.id = bson.RawValue{Type: id.Type, Value: slices.Clone(id.Value)} // the driver uses the bytes again
	var ok bool
	if p.lane.topic, ok = raw.Lookup(fieldTopic).StringValueOK(); ok && !p.unplaced { // else the row has no order
		p.lane.key, _ = raw.Lookup(fieldKey).StringValueOK()
	}
	size, _ := raw.Lookup("size").AsInt64OK()
	p.size = int(size)
	isDue, _ := raw.Lookup("due").BooleanOK()
	_, isText := raw.Lookup(fieldState).StringValueOK() // an array matches a query for one of its items
	p.due = isDue && (state == string(Pending) || !isText)
	p.err = errors.Join(r.errs...)
	return p
}

// placed reports whether the row has a position.
func (p place) placed() bool { return !p.unplaced }

// next reads the rows of a step.
func next(ctx context.Context, cursor *mongo.Cursor) (places []place, err error) {
	for len(places) < scanRows && cursor.Next(ctx) {
		places = append(places, readPlace(cursor.Current))
	}
	return places, cursor.Err()
}

// choose takes the oldest rows of their keys, and those without a key; and if there is
// room the rows that follow them.
func (c *claim) choose(ctx context.Context, places []place) error {
	var heads, followers []place
	to := int64(oldest)
	for _, p := range places {
		to = max(to, p.pos)
	}
	fresh, begun := map[string]map[string]bool{}, map[string]map[string]bool{} // keys by topic
	reached := to                                                              // by those that are begun: not all have rows that are due in every step
	for _, p := range places {
		looked, isBegun := c.begun[p.lane]
		switch {
		case c.lost[p.turnstile()], c.over[p.lane], p.lane.key == "" && c.hidden[p.ref()]:
		case p.lane.key == "":
			heads = append(heads, p)
		case isBegun:
			put(begun, p.lane)
			reached = min(reached, looked)
		default:
			put(fresh, p.lane)
		}
	}
	waiting, err := c.waiting(ctx, fresh, oldest, to)
	if err == nil && len(begun) > 0 {
		var more []place
		more, err = c.waiting(ctx, begun, reached, to)
		waiting = append(waiting, more...)
	}
	if err != nil {
		return err
	}
	for _, p := range waiting {
		_, isBegun := c.begun[p.lane]
		switch {
		case p.lane.key == "" || c.over[p.lane] || c.has[p.ref()]: // without a key: the row is unreadable, and already in places
			continue
		case !p.due, c.hidden[p.ref()]:
			c.over[p.lane] = true
			continue
		case isBegun:
			followers = append(followers, p)
		default:
			heads = append(heads, p)
		}
		c.begun[p.lane] = to
	}
	for _, list := range [][]place{heads, followers} {
		slices.SortStableFunc(list, byPosition)
		for _, p := range list {
			c.add(p)
		}
	}
	return nil
}

// add takes a row if there is room for it. Where there is not, no later one is taken
// either, which may be of its key.
func (c *claim) add(p place) {
	if len(c.found) > 0 && c.o.MaxBytes > 0 && c.bytes+p.size > c.o.MaxBytes {
		c.full = true
	}
	if c.full {
		return
	}
	c.found = append(c.found, p)
	c.has[p.ref()] = true
	c.bytes += p.size
	c.full = len(c.found) == c.o.Max
}

func byPosition(a, b place) int { return cmp.Compare(a.pos, b.pos) }

// put adds a key to those of its topic.
func put(keys map[string]map[string]bool, l lane) {
	if keys[l.topic] == nil {
		keys[l.topic] = map[string]bool{}
	}
	keys[l.topic][l.key] = true
}

// waiting lists the rows of keys between two positions that are not sent, in their order.
func (c *claim) waiting(ctx context.Context, keys map[string]map[string]bool, from, to int64) (out []place, err error) {
	states := inState(Pending, Dead)
	if c.b.o.SkipDead {
		states = inState(Pending)
	}
	between := bson.D{{Key: "$not", Value: bson.D{{Key: "$gt", Value: to}}}} // a row without a position is the first
	if from != oldest {
		between = append(between, bson.E{Key: "$gte", Value: from})
	}
	for topic, set := range keys {
		cursor, err := c.b.rows.Find(ctx, bson.D{
			{Key: fieldTopic, Value: topic},
			{Key: fieldKey, Value: bson.D{{Key: "$in", Value: slices.Collect(maps.Keys(set))}}},
			states,
			{Key: fieldPos, Value: between},
		}, options.Find().SetSort(byPos).SetBatchSize(scanRows).SetProjection(placeFields))
		if err != nil {
			return nil, err
		}
		for cursor.Next(ctx) {
			out = append(out, readPlace(cursor.Current))
		}
		_ = cursor.Close(context.WithoutCancel(ctx))
		if err := cursor.Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}
