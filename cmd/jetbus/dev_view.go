package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

// staleRows is how many stale processes the screen keeps room for.
const staleRows = 3

// picture is what the live view shows at a moment.
type picture struct {
	head       []string // of the screen
	now        time.Time
	topics     []topicCount
	waiting    uint64 // heartbeats that the projector has not got yet
	feed       feedState
	collection collectionCount
	processes  []processes.Process
}

// topicCount is one topic with its speed.
type topicCount struct {
	name   string
	events uint64
	bytes  uint64
	rate   float64 // events a second
}

// rates turns positions of topics into speeds.
type rates struct {
	at   time.Time
	last map[string]uint64
}

// count describes a topic, with its speed since the last time.
func (r *rates) count(info jetbus.TopicInfo, elapsed time.Duration) topicCount {
	c := topicCount{name: info.Config.Name, events: info.Events, bytes: info.Bytes}
	if before, ok := r.last[c.name]; ok && elapsed > 0 && info.LastSeq >= before {
		c.rate = float64(info.LastSeq-before) / elapsed.Seconds()
	}
	r.last[c.name] = info.LastSeq
	return c
}

// counts describes topics.
func (r *rates) counts(infos []jetbus.TopicInfo, now time.Time) []topicCount {
	elapsed := now.Sub(r.at)
	if r.last == nil {
		r.last = make(map[string]uint64)
	}
	var list []topicCount
	for _, info := range infos {
		list = append(list, r.count(info, elapsed))
	}
	r.at = now
	return list
}

// line is the picture in one line, without anything that only a terminal understands.
func (p picture) line() string {
	var b strings.Builder
	b.WriteString(p.now.Format("15:04:05"))
	for _, t := range p.topics {
		fmt.Fprintf(&b, "  %s %s +%.0f/s", t.name, count(t.events), t.rate)
	}
	if f := p.feed; f.state != "" {
		fmt.Fprintf(&b, "  feed %s lag %v", devCollection, f.lag)
		if f.state != changefeed.Streaming {
			fmt.Fprintf(&b, " (%s)", f.state)
		}
	}
	if c := p.collection; c.phase != "" {
		fmt.Fprintf(&b, "  collection %s %s lag %s", c.name, plural(c.documents, "document"), count(c.lag))
		if c.phase != projector.Following {
			fmt.Fprintf(&b, " (%s)", c.phase)
		}
	}
	alive, stale := p.split()
	fmt.Fprintf(&b, "  processes %s alive %s stale", count(len(alive)), count(len(stale)))
	for i, q := range alive[:min(3, len(alive))] {
		sep := ", "
		if i == 0 {
			sep = "  busiest "
		}
		fmt.Fprintf(&b, "%s%s[%d] %.1f%%", sep, q.Name, q.PID, q.CPUPct)
	}
	return printable(b.String())
}

// fresh is how old a heartbeat may be for its numbers to be those of now; a
// process that has ended is alive for a while longer.
const fresh = 3 * time.Second

// split returns the processes that live, the busiest first and those not heard of just now
// last, and those that are stale, the latest first.
func (p picture) split() (alive, stale []processes.Process) {
	for _, q := range p.processes {
		if q.Status == processes.Alive {
			alive = append(alive, q)
		} else {
			stale = append(stale, q)
		}
	}
	old := func(q processes.Process) int {
		if p.now.Sub(time.UnixMilli(q.LastSeen)) > fresh {
			return 1
		}
		return 0
	}
	slices.SortFunc(alive, func(a, b processes.Process) int {
		return cmp.Or(cmp.Compare(old(a), old(b)), cmp.Compare(b.CPUPct, a.CPUPct), cmp.Compare(b.MemMB, a.MemMB), cmp.Compare(a.ProcessID, b.ProcessID))
	})
	slices.SortFunc(stale, func(a, b processes.Process) int {
		return cmp.Or(cmp.Compare(b.LastSeen, a.LastSeen), cmp.Compare(a.ProcessID, b.ProcessID))
	})
	return alive, stale
}

// screen is the picture as lines that fit a window.
func (p picture) screen(width, height int) []string {
	var lines []string
	for less := range nothingElse + 1 {
		if lines = p.above(width, less); height-len(lines) >= min(len(p.processes), leastRows) {
			break
		}
	}
	lines = append(lines, p.rows(width, height-len(lines))...)
	lines = lines[:min(len(lines), height)]
	for i, l := range lines {
		if !strings.HasPrefix(l, "\x1b") {
			lines[i] = cut(l, width)
		}
	}
	return lines
}

// leastRows is how many processes are to be seen in any window, if it has that many lines.
const leastRows = 6

// What is left out above the processes of a small window, one thing after the other.
const (
	oneToTry = iota + 1
	addresses
	nothingToTry
	noCollection
	noTopics
	nothingElse
)

// above is what stands above the processes, with less of it the smaller the window is.
func (p picture) above(width, less int) []string {
	heading := func(format string, columns ...any) string {
		return bold + cut(fmt.Sprintf(format, columns...), width) + plain
	}
	lines := slices.DeleteFunc(slices.Clone(p.head), func(l string) bool {
		what, _, _ := strings.Cut(l, " ")
		return less >= oneToTry && what == "" || less >= nothingToTry && what == "try" ||
			less >= addresses && !slices.Contains([]string{"broker", "gateway", "try", "up"}, what) || less >= nothingElse
	})
	if less < noTopics {
		lines = append(lines, "", heading("%-24s %12s %10s %10s", "TOPIC", "EVENTS", "SIZE", "RATE"))
		for _, t := range p.topics {
			lines = append(lines, fmt.Sprintf("%-24s %12s %10s %8.0f/s", t.name, count(t.events), size(t.bytes), t.rate))
		}
	}
	if c := p.collection; c.phase != "" && less < noCollection {
		lines = append(lines, "", heading("%-24s %12s %10s  %s", "COLLECTION", "DOCUMENTS", "LAG", "STATE"),
			fmt.Sprintf("%-24s %12s %10s  %s", c.name, count(c.documents), count(c.lag), c.phase))
	}
	if f := p.feed; f.state != "" && less < noCollection {
		lines = append(lines, heading("%-24s %12s %10s  %s", "FEED", "PUBLISHED", "LAG", "STATE"),
			fmt.Sprintf("%-24s %12s %10v  %s", f.topic, count(f.published), f.lag, f.state))
	}
	alive, stale := p.split()
	title := fmt.Sprintf("PROCESSES  %s alive, %s stale", count(len(alive)), count(len(stale)))
	if p.waiting > 0 {
		title += fmt.Sprintf(", %s waiting", plural(p.waiting, "heartbeat"))
	}
	return append(lines, "", title, heading("%s", processRow(width, "PID", "NAME", "CPU %", "MEM MiB", "SEEN", "STATUS")))
}

// rows are the processes that there is room for, and how many more there are.
func (p picture) rows(width, room int) []string {
	alive, stale := p.split()
	room = max(room, 0)
	more := len(alive) + len(stale) - room
	if more > 0 && room > 1 {
		room, more = room-1, more+1
	} else {
		more = 0
	}
	last := min(len(stale), staleRows, room)
	if spare := room - last - len(alive); spare > 0 {
		last = min(last+spare, len(stale))
	}
	var lines []string
	for _, q := range alive[:min(len(alive), room-last)] {
		lines = append(lines, p.row(q, width))
	}
	for _, q := range stale[:last] {
		lines = append(lines, dim+cut(p.row(q, width), width)+plain)
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("%8s  and %s more", "", count(more)))
	}
	return lines
}

func (p picture) row(q processes.Process, width int) string {
	age := max(p.now.Sub(time.UnixMilli(q.LastSeen)), 0).Round(time.Second)
	return processRow(width, fmt.Sprint(q.PID), cut(printable(q.Name), 24), fmt.Sprintf("%.1f", q.CPUPct), fmt.Sprintf("%.1f", q.MemMB), age.String(), string(q.Status))
}

// fullRow is how wide a row of all columns is.
const fullRow = 71

// processRow is a line of the table of processes. A window that is too narrow for all columns
// goes without the memory: which process is stale the last column says.
func processRow(width int, pid, name, cpu, mem, seen, status string) string {
	row := fmt.Sprintf("%8s  %-24s %8s", pid, name, cpu)
	if width >= fullRow {
		row += fmt.Sprintf(" %10s", mem)
	}
	return row + fmt.Sprintf(" %8s  %s", seen, status)
}

// cut shortens a line to a number of characters.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n])
	}
	return s
}
