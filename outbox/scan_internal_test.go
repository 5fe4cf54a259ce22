package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// backlog is a database in which very many rows are due, and none is to be had.
type backlog struct {
	rows  int64
	held  int64   // how many of them are not due, the first ones
	scans []int64 // where they began
	takes int     // how often it was asked for heads
}

var errNoUse = errors.New("not used")

func (b *backlog) Connect(context.Context) (driver.Conn, error) { return b, nil }
func (b *backlog) Driver() driver.Driver                        { return nil }
func (b *backlog) Prepare(string) (driver.Stmt, error)          { return nil, errNoUse }
func (b *backlog) Begin() (driver.Tx, error)                    { return nil, errNoUse }
func (b *backlog) Close() error                                 { return nil }

func (b *backlog) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return driver.RowsAffected(0), nil
}

func (b *backlog) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if !strings.HasPrefix(query, "SELECT max(") {
		b.takes++
		return &answer{columns: 4}, nil // no heads
	}
	from, _ := args[0].Value.(int64)
	most, _ := args[1].Value.(int64)
	b.scans = append(b.scans, from)
	time.Sleep(100 * time.Millisecond) // of a bubble
	from = max(from, 0)
	last := min(b.rows, from+most)
	if last <= from {
		return &answer{columns: 3, row: []driver.Value{nil, int64(0), int64(0)}}, nil
	}
	return &answer{columns: 3, row: []driver.Value{last, last - from, max(last-max(from, b.held), 0)}}, nil
}

// answer is at most one row.
type answer struct {
	columns int
	row     []driver.Value // nil: none
}

func (a *answer) Columns() []string { return make([]string, a.columns) }
func (a *answer) Close() error      { return nil }

func (a *answer) Next(to []driver.Value) error {
	if a.row == nil {
		return io.EOF
	}
	copy(to, a.row)
	a.row = nil
	return nil
}

// TestScanLong ends a scan that takes long and finds nothing, before the claim is out of
// time; the next one goes on there, and the one after the end begins anew.
func TestScanLong(t *testing.T) {
	synctest.Test(t, scanLong)
}

func scanLong(t *testing.T) {
	const most = 31 // steps in 3.05 seconds
	d := &backlog{rows: (2*most - 2) * scanRows}
	db := sql.OpenDB(d)
	b := &Box{db: db, d: dialects[SQLite]}
	for i, want := range []struct {
		first int64
		steps int
	}{{oldest, most}, {(most - 1) * scanRows, most}, {oldest, most}} {
		d.scans = nil
		ctx, cancel := context.WithTimeout(t.Context(), 6100*time.Millisecond)
		rows, err := b.Claim(ctx, jetbus.ClaimOptions{Max: 10, Lease: time.Minute})
		cancel()
		time.Sleep(time.Minute) // of a drainer that looks seldom
		if err != nil || len(rows) > 0 {
			t.Errorf("claim %d: %d rows, %v", i, len(rows), err)
		}
		if len(d.scans) != want.steps || d.scans[0] != want.first {
			t.Errorf("claim %d looked %d times, at first behind %d; want %d times and %d", i, len(d.scans), d.scans[0], want.steps, want.first)
		}
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// TestScanHeld goes on behind rows that are not due, or of topics that are skipped, a step at
// a time: however many they are, no statement looks at all of them.
func TestScanHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &backlog{rows: 3*scanRows + 1, held: 3 * scanRows}
		db := sql.OpenDB(d)
		b := &Box{db: db, d: dialects[SQLite]}
		rows, err := b.Claim(t.Context(), jetbus.ClaimOptions{Max: 10, Lease: time.Minute})
		if err != nil || len(rows) > 0 {
			t.Errorf("%d rows, %v", len(rows), err)
		}
		if want := []int64{oldest, scanRows, 2 * scanRows, 3 * scanRows}; !slices.Equal(d.scans, want) || d.takes != 1 {
			t.Errorf("looked behind %d, want %d; asked %d times for heads, want once", d.scans, want, d.takes)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestScanAnew: where there is always enough behind the place where a claim was cut short,
// the rows ahead of it have their turn all the same.
func TestScanAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scanFrom
		begins := func(want int64) {
			t.Helper()
			if from := s.begin(); from != want {
				t.Errorf("a claim begins at %d, want %d", from, want)
			}
		}
		s.cut(5)
		for range 10 {
			begins(5)
			s.filled()
			time.Sleep(time.Second)
		}
		s.cut(9) // the time counts from the first one
		begins(9)
		time.Sleep(time.Second)
		begins(9)
		s.filled()
		begins(oldest)
		s.cut(7)
		s.filled()
		begins(7)
	})
}

// asked is a database without rows that notes what it is asked.
type asked struct {
	backlog

	texts map[string]bool
	text  string // the last one
	args  []any  // of that
}

func (a *asked) Connect(context.Context) (driver.Conn, error) { return a, nil }

func (a *asked) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	a.texts[query], a.text, a.args = true, query, nil
	for _, arg := range args {
		a.args = append(a.args, arg.Value)
	}
	return &answer{columns: 5}, nil
}

// TestFollowTexts asks for what follows heads in a few words, however many heads and rows
// there are: drivers prepare each text once. It asks for these heads, and for none of the rows.
func TestFollowTexts(t *testing.T) {
	const to = -1 // of no row
	d := &asked{texts: map[string]bool{}}
	db := sql.OpenDB(d)
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	follow := func(most, heads, rows int) {
		t.Helper()
		c := &claim{b: &Box{db: db, d: dialects[SQLite]}, conn: conn, o: jetbus.ClaimOptions{Max: most}, heads: map[lane]int64{}}
		for i := range rows {
			c.rows = append(c.rows, int64(i))
			if i < heads {
				c.heads[lane{"orders", strconv.Itoa(i)}] = int64(i)
			}
		}
		if err := c.follow(t.Context(), to); err != nil {
			t.Fatal(err)
		}
		split := slices.Index(d.args, any(int64(to)))
		last := len(d.args) - 1
		if split < 0 || different(d.args[:split]) != heads || different(d.args[split+1:last]) != rows || d.args[last] != int64(most-rows) {
			t.Fatalf("of %d heads and %d rows it asks for %v", heads, rows, d.args)
		}
		if n := strings.Count(d.text, "?"); n != len(d.args) || n > 32766 {
			t.Fatalf("%d parameters, %d arguments", n, len(d.args))
		}
	}
	for rows := 1; rows < jetbus.DefaultDrainWindow; rows++ {
		follow(jetbus.DefaultDrainWindow, 1, rows)
		follow(jetbus.DefaultDrainWindow, (rows+1)/2, rows)
		follow(jetbus.DefaultDrainWindow, rows, rows)
	}
	if n := len(d.texts); n > 10 {
		t.Errorf("%d texts", n)
	}
	follow(5000, 4999, 4999) // the most that a claim may ask for
	if err := errors.Join(conn.Close(), db.Close()); err != nil {
		t.Error(err)
	}
}

// different counts positions, which are from 0 on, and each once.
func different(positions []any) int {
	seen, largest := map[any]bool{}, int64(-1)
	for _, p := range positions {
		pos, _ := p.(int64)
		seen[pos], largest = true, max(largest, pos)
	}
	if int(largest)+1 != len(seen) {
		return -1
	}
	return len(seen)
}
