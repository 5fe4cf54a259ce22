package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/outrow"
)

// A claim is made in steps of one transaction. The heads are the oldest rows of their keys, and
// all rows without a key. A claim locks its heads, and skips heads that are locked. The
// followers of a head are the rows of its key up to the first row that cannot be claimed,
// because it is dead or waits. The head is the lock of its key: only the claim that has locked
// it takes the followers.
//
// A story: A holds the rows 5, 6 and 7 of a key, and its lease expires. B claims them, while A
// belatedly records that 6 failed. If heads and followers were found and changed in one
// statement, B could see all three as due, find 6 changed when it tries to change it, and leave
// it out: 7 would overtake 6. So all followers are locked first, due or not, and only then does
// the claim decide how many of them it takes.
//
// A statement reads only as many pending rows as a step has, however many wait. It looks for
// followers up to the end of the step; the following steps look for more. Each of these starts
// again at the oldest row of a key that the claim does not have. If it started after the last
// step, a row that was committed in the meantime before that position would be overtaken by the
// next row of its key.
const (
	// scanText finds the end of a step, the number of rows in it, and how many of them are due.
	// A claim must not read the whole backlog of a few keys to find that it has enough, nor read
	// in one statement all rows that are not due or that belong to skipped topics.
	scanText = `SELECT max(s.pos), count(*), coalesce(sum(s.due), 0) FROM (
  SELECT o.pos, CASE WHEN {due} {skip} THEN 1 ELSE 0 END AS due FROM {table} o
  WHERE o.state = 'pending' AND o.pos > ? ORDER BY o.pos LIMIT ?) s`

	headsText = `SELECT o.pos, {size}, {rawtopic}, {rawkey}, o.due_at FROM {table} o
WHERE o.state = 'pending' AND {due} {skip} AND o.pos > ? AND o.pos <= ?
  AND (o."key" = '' OR NOT EXISTS (
    SELECT 1 FROM {table} b WHERE b.topic = o.topic AND b."key" = o."key" AND b.pos < o.pos AND b.state <> 'sent' {blocking}))
ORDER BY o.pos LIMIT ? {skiplocked}`

	followersText = `SELECT o.pos, {size}, {rawtopic}, {rawkey}, o.due_at, CASE WHEN o.state = 'pending' AND {due} THEN 1 ELSE 0 END FROM {table} o
WHERE o.state <> 'sent' {alive} AND (o.topic, o."key") IN (SELECT h.topic, h."key" FROM {table} h WHERE h.pos IN ({heads}))
  AND o.pos <= ? AND o.pos NOT IN ({rows})
ORDER BY o.pos LIMIT ? {lock}`

	// sizeText is about what a row takes in memory. Databases know it without reading
	// the payload.
	sizeText = `coalesce({octets}(o.payload), 0) + coalesce({octets}(o.headers), 0) + coalesce({octets}(o.caused_by), 0) + coalesce({octets}(o.tags), 0)`

	// dueText selects rows that may be claimed now. It includes rows whose due_at is not a time:
	// otherwise they would be pending forever. A claim makes them dead. In SQLite, texts, blobs
	// and infinity are greater than any integer.
	dueText = `(coalesce(due_at, 0) <= {now} OR due_at > {lasttime})`
)

const (
	scanRows  = 1000             // in a step
	scanSteps = 20               // of a claim that has found something
	scanAnew  = 10 * time.Second // how long full claims continue after a claim that was cut short

	idleLeast = 10 * time.Second // that a transaction may be idle, so that a busy client is not taken for one that is gone
	idleMost  = 24 * time.Hour
)

// Claim implements [jetbus.Outbox].
func (b *Box) Claim(ctx context.Context, o jetbus.ClaimOptions) ([]jetbus.OutboxRow, error) {
	var rows []jetbus.OutboxRow
	var err error
	if err = outrow.CheckClaim(o); err == nil {
		var c *claim
		alone, ended := false, map[int64]error{}
		attempt := func(conn *sql.Conn) (err error) {
			c = &claim{
				b: b, conn: conn, o: o, hidden: b.refused.Hidden(), alone: alone, ended: ended,
				heads: map[lane]int64{}, lanes: map[int64]lane{}, errs: map[int64]error{},
			}
			if err := c.prepare(ctx); err != nil {
				return err
			}
			rows, err = c.run(ctx)
			return err
		}
		if err = b.transact(ctx, attempt); isDeadlock(err) {
			err = b.transact(ctx, attempt)
		}
		known := -1 // how many rows end a transaction
		for c != nil && c.taking && isRefused(err) && known < len(ended) {
			alone, known = true, len(ended)
			err = b.transact(ctx, attempt)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("claim in outbox %s: %w", b.o.Table, err)
	}
	for _, row := range rows {
		if row.Claim == "" {
			b.refused.Hide(row.Ref, o.Lease)
		}
	}
	return rows, nil
}

// deadlock is what PostgreSQL says to one of two transactions that wait for each other, when
// it ends that one. Two claims may: one has locked row 7 of a key as its head when row 6 is
// committed; another one locks that as the head, and waits for 7, as the first one does for 6
// in its next step. Nothing has failed, and once more is nearly always enough: the one that went on has both,
// and a head that another has locked is passed over.
const deadlock = "40P01"

func isDeadlock(err error) bool {
	refused, ok := errors.AsType[sqlStateError](err)
	return ok && refused.SQLState() == deadlock
}

// transact runs f in a transaction that may write from the beginning.
func (b *Box) transact(ctx context.Context, f func(conn *sql.Conn) error) error {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err = conn.ExecContext(ctx, b.d.begin); err == nil {
		err = f(conn)
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		abandon(ctx, conn)
	}
	return err
}

// noTransaction is what SQLite says of a ROLLBACK behind a BEGIN that it refused. It is no
// reason to give the connection up: a database in memory may be in it.
const noTransaction = "no transaction is active"

// abandon ends a transaction that failed. It may have begun although BEGIN did: the answer
// did not come in time.
func abandon(ctx context.Context, conn *sql.Conn) {
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, err := conn.ExecContext(ending, "ROLLBACK")
	if err != nil && !strings.Contains(err.Error(), noTransaction) {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // never used again
	}
}

// lane is a topic and a key, whose rows have an order.
type lane struct{ topic, key string }

// claim is one call of Claim.
type claim struct {
	b     *Box
	conn  *sql.Conn
	o     jetbus.ClaimOptions
	rows  []int64 // to be taken
	token string  // names the claim

	errs   map[int64]error // why some of these rows have no valid due_at
	lanes  map[int64]lane  // of the rows, if they have a key
	heads  map[lane]int64  // the rows that are heads of keys that may have followers
	hidden map[string]bool // Refs of rows that the database refused to let an earlier claim take
	bytes  int64           // of the rows
	full   bool            // the claim takes no more rows
	taking bool            // all rows have been found
	alone  bool            // take each row alone
	ended  map[int64]error // why rows ended the transaction of an earlier attempt
}

// letGo has the database end the transaction of a host that vanished in the middle of it,
// without hanging up: it would have rows locked until the connection is found to be broken,
// which takes up to hours where the database waits for it to speak. So it has them for a
// lease at most, as if it had claimed them. (Where it is the database that speaks, a
// connection is broken after some minutes of no answer.)
func (c *claim) letGo(ctx context.Context) error {
	if c.b.d.idle == "" {
		return nil
	}
	idle := min(max(c.o.Lease, idleLeast), idleMost)
	_, err := c.conn.ExecContext(ctx, c.b.d.idle+strconv.FormatInt(idle.Milliseconds(), 10))
	return err
}

// prepare begins a claim in its transaction.
func (c *claim) prepare(ctx context.Context) error {
	err := c.letGo(ctx)
	if err == nil && c.alone && c.b.d.immediate != "" {
		_, err = c.conn.ExecContext(ctx, c.b.d.immediate)
	}
	return err
}

func (c *claim) run(ctx context.Context) ([]jetbus.OutboxRow, error) {
	from := c.b.scan.begin()
	late := enough(ctx)
	for step := 1; ; step++ {
		to, n, due, err := c.scan(ctx, from)
		if err == nil && due > 0 {
			err = c.take(ctx, from, to)
		}
		if err != nil {
			return nil, err
		}
		var note func()
		switch {
		case n < scanRows:
			note = c.b.scan.anew
		case step >= scanSteps && len(c.rows) > 0, step > 1 && late():
			note = func() { c.b.scan.cut(from) }
		case c.full:
			note = c.b.scan.filled
		default:
			from = to
			continue
		}
		rows, err := c.mark(ctx)
		if err == nil { // otherwise the next claim looks at the same rows
			note()
		}
		return rows, err
	}
}

// enough returns what reports whether half of the time of ctx is over, if it has a
// deadline: a scan that ran out of time would have nothing, again and again.
func enough(ctx context.Context) (late func() bool) {
	deadline, ok := ctx.Deadline()
	half := time.Now().Add(time.Until(deadline) / 2)
	return func() bool { return ok && time.Now().After(half) }
}

// scanFrom is where claims begin: at the oldest row, or where the claim before was cut
// short, until one has come to the end. However long that takes, what is behind many
// rows that are not to be had has its turn; and those ahead have theirs where there is
// always enough behind.
type scanFrom struct {
	mu    sync.Mutex
	from  int64
	on    bool      // from is where the last claim was cut short
	since time.Time // when one was cut that had begun at the oldest row
}

// oldest is ahead of every row.
const oldest = math.MinInt64

func (s *scanFrom) begin() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		return oldest
	}
	return s.from
}

// cut notes where the last of many steps began: the rows before it were not to be had.
// The next claim begins there.
func (s *scanFrom) cut(from int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		s.since = time.Now()
	}
	s.from, s.on = from, true
}

// filled notes a claim that took all there was room for, short of the end.
func (s *scanFrom) filled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.since) > scanAnew {
		s.on = false
	}
}

// anew has the next claim begin with the oldest row.
func (s *scanFrom) anew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = false
}

// fill completes a statement for this claim.
func (c *claim) fill(text string, more ...string) string {
	skip := ""
	if len(c.o.SkipTopics) > 0 {
		skip = "AND CAST(o.topic AS TEXT) NOT IN (" + marks(len(c.o.SkipTopics)) + ")"
	}
	alive, blocking := "", ""
	if c.b.o.SkipDead { // in the words of the index {name}_alive: SQLite knows by them that it may use it
		alive, blocking = "AND o.state <> 'dead'", "AND b.state <> 'dead'"
	}
	text = strings.NewReplacer("{size}", sizeText, "{due}", dueText, "{rawtopic}", c.b.d.rawColumn("o.topic"), "{rawkey}", c.b.d.rawColumn(`o."key"`)).Replace(text)
	text = strings.NewReplacer(append([]string{"{skip}", skip, "{alive}", alive, "{blocking}", blocking, "{octets}", c.b.d.octets}, more...)...).Replace(text)
	return c.b.d.rebind(c.b.fill(text))
}

// skipped are the arguments of {skip}.
func (c *claim) skipped(more ...any) []any {
	var args []any
	for _, topic := range c.o.SkipTopics {
		args = append(args, topic)
	}
	return append(args, more...)
}

// scan returns how far the next step goes, how many rows are in it, and how many are due.
func (c *claim) scan(ctx context.Context, from int64) (to int64, n, due int, err error) {
	var last sql.NullInt64
	err = c.conn.QueryRowContext(ctx, c.fill(scanText), c.skipped(from, int64(scanRows))...).Scan(&last, &n, &due)
	return last.Int64, n, due, err
}

// take finds the rows of a step.
func (c *claim) take(ctx context.Context, from, to int64) error {
	err := c.each(ctx, c.fill(headsText), c.skipped(from, to, c.room()), func(rows *sql.Rows) error {
		var h heading
		if err := rows.Scan(h.fields()...); err != nil {
			return err
		}
		if !c.isHidden(&h) && c.add(&h) && h.key != "" {
			c.heads[h.lane()] = h.pos
		}
		return nil
	})
	if err != nil || c.full || len(c.heads) == 0 {
		return err
	}
	return c.follow(ctx, to)
}

// follow finds the followers of the heads, including heads of earlier steps, up to the end of a
// step.
func (c *claim) follow(ctx context.Context, to int64) error {
	heads, taken := padded(maps.Values(c.heads)), padded(slices.Values(c.rows))
	args := slices.Concat(heads, []any{to}, taken, []any{c.room()})
	text := c.fill(followersText, "{heads}", marks(len(heads)), "{rows}", marks(len(taken)))
	return c.each(ctx, text, args, func(rows *sql.Rows) error {
		var h heading
		var due int
		if err := rows.Scan(append(h.fields(), &due)...); err != nil {
			return err
		}
		if due == 0 || c.isHidden(&h) {
			delete(c.heads, h.lane()) // the key's later rows must wait
		}
		if _, ok := c.heads[h.lane()]; ok {
			c.add(&h)
		}
		return nil
	})
}

// The lengths of a list of positions in a statement are leastPadded, four times as many, and
// so on. Two of the longest are within the 32,766 parameters that SQLite takes.
const leastPadded = 8

// padded lists positions, the last of them again and again up to one of a few lengths: the
// text of a statement depends on how many there are, and drivers keep what they have prepared
// by its text. There is one position at the least.
func padded(positions iter.Seq[int64]) []any {
	var out []any
	for pos := range positions {
		out = append(out, pos)
	}
	length := leastPadded
	for length < len(out) {
		length *= 4
	}
	return append(out, slices.Repeat(out[len(out)-1:], length-len(out))...)
}

// room is how many rows a query must return, so that there are enough without the hidden ones.
func (c *claim) room() int64 { return int64(c.o.Max - len(c.rows) + len(c.hidden)) }

// isHidden reports whether the database refused to let an earlier claim take the row.
func (c *claim) isHidden(h *heading) bool { return c.hidden[refOf(h.pos)] }

// refOf is the Ref of the row with a position.
func refOf(pos int64) string { return strconv.FormatInt(pos, 10) }

// heading is the part of a row that a claim reads before it takes the row. Its topic and key are
// in the encoding of the database, which may be unable to convert them.
type heading struct {
	pos        int64
	topic, key text
	size, due  integer
}

// fields returns the scan destinations of the columns of headsText.
func (h *heading) fields() []any { return []any{&h.pos, &h.size, &h.topic, &h.key, &h.due} }

func (h *heading) lane() lane { return lane{string(h.topic), string(h.key)} }

// add takes a row if there is room for it. After the first row that does not fit it takes no
// other row, because a later row may have the same key.
func (c *claim) add(h *heading) bool {
	if len(c.rows) > 0 && c.o.MaxBytes > 0 && c.bytes+h.size.value > int64(c.o.MaxBytes) {
		c.full = true
	}
	if c.full {
		return false
	}
	if err := h.due.timeProblem("due_at"); err != nil {
		c.errs[h.pos] = err
	}
	if h.key != "" {
		c.lanes[h.pos] = h.lane()
	}
	c.rows = append(c.rows, h.pos)
	c.bytes += h.size.value
	c.full = len(c.rows) == c.o.Max
	return true
}

// each calls f for the rows of a query.
func (c *claim) each(ctx context.Context, query string, args []any, f func(rows *sql.Rows) error) error {
	rows, err := c.conn.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
