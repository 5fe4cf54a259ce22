package main

import (
	"crypto/sha256"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

// lineWith returns the last line that begins so.
func lineWith(t *testing.T, text, prefix string) string {
	t.Helper()
	found := ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			found = line
		}
	}
	if found == "" {
		t.Fatalf("no line begins with %q in:\n%s", prefix, text)
	}
	return found
}

func TestDevInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := begin(t, nil, "dev", "--gateway", "0", "--dir", dir, "--listen", "0", "--plain")
	out := r.wait(t, "busiest")
	got := command(t, "", "dev", "--gateway", "0", "--dir", dir, "--listen", "0")
	if got.code != exitConflict || !strings.HasSuffix(got.errOut, "in use by another broker: "+dir+" (stop that one first, or use another folder)\n") {
		t.Errorf("a second one on the same folder: %+v", got)
	}
	listen := strings.TrimSpace(strings.TrimPrefix(lineWith(t, out, "broker "), "broker  nats://"))
	got = command(t, "", "dev", "--gateway", "0", "--dir", t.TempDir(), "--listen", listen)
	if got.code != exitFailure || !strings.Contains(got.errOut, "listen on "+listen+": address already in use; choose another with --listen; port 0 takes a free one\n") {
		t.Errorf("a second one on the same address: %+v", got)
	}
	gateway := strings.TrimPrefix(strings.TrimSpace(lineWith(t, out, "gateway ")), "gateway http://")
	got = command(t, "", "dev", "--dir", t.TempDir(), "--listen", "0", "--gateway", gateway)
	if got.code != exitFailure || !strings.Contains(got.errOut, "gateway: listen on "+gateway+": address already in use; choose another with --gateway; ") {
		t.Errorf("a second gateway on the same address: %+v", got)
	}
	got = command(t, "", "dev", "--dir", t.TempDir(), "--listen", "0", "--gateway", "0.0.0.0:0")
	if got.code != exitUsage || !strings.Contains(got.errOut, "--gateway 0.0.0.0:0: anybody who can reach it could use the bus") {
		t.Errorf("a gateway for all: %+v", got)
	}
	// The other commands work on it, as any NATS client does.
	b := &bench{"nats://" + listen}
	if n := len(records(t, b.ok(t, "", "sub", processes.DefaultStates, "--from", "earliest", "--limit", "5", "-o", "json"))); n != 5 {
		t.Errorf("%d states, want 5", n)
	}
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
	if !strings.Contains(r.out.String(), "ended after ") {
		t.Errorf("does not say what it did:\n%s", r.out)
	}
}

// That a topic is removed is said, and the others go on.
func TestDevTopicRemoved(t *testing.T) {
	t.Parallel()
	r := begin(t, nil, "dev", "--gateway", "0", "--dir", t.TempDir(), "--listen", "0", "--plain")
	b := devBench(t, r)
	for _, topic := range []string{devSnapshot, devChanged} {
		b.ok(t, "", "topics", "rm", topic, "--yes")
		r.waitIn(t, r.err, `the next start makes it anew" topic=`+topic, 1)
	}
	lines := strings.Split(strings.TrimSpace(r.waitTimes(t, "busiest", strings.Count(r.out.String(), "busiest")+2)), "\n")
	last := lines[len(lines)-1]
	if !strings.Contains(last, "  "+processes.DefaultStates+" ") || strings.Contains(last, devSnapshot) || strings.Contains(last, devChanged) {
		t.Errorf("%q is not of the topics that are left", last)
	}
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
	if n := strings.Count(r.err.String(), "a topic was removed"); n != 2 {
		t.Errorf("two topics were removed, which is said %d times:\n%s", n, r.err)
	}
}

func TestPicture(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	p := picture{
		head: []string{"broker  nats://127.0.0.1:4222"}, now: now, topics: []topicCount{{"heartbeat.received", 12345, 1 << 20, 200}},
		collection: collectionCount{name: "processes", documents: 4321, lag: 17, phase: projector.Away},
	}
	for i := range 300 {
		status := processes.Alive
		if i%10 == 0 {
			status = processes.Stale
		}
		p.processes = append(p.processes, processes.Process{
			ProcessID: strconv.Itoa(i), PID: i, Name: "evil\x1b[2J\n" + strings.Repeat("x", 50), Host: "h", CPUPct: float64(i) / 10, LastSeen: now.UnixMilli(), Status: status,
		})
	}
	p.processes[299].LastSeen -= 5000 // the busiest has just ended
	ansi := regexp.MustCompile("\x1b\\[[0-9]*[mK]")
	for _, window := range [][2]int{{80, 24}, {200, 60}, {20, 10}, {1, 1}, {80, 4}} {
		lines := p.screen(window[0], window[1])
		if len(lines) > window[1] {
			t.Errorf("%d lines in a window of %d", len(lines), window[1])
		}
		for _, l := range lines {
			if bare := ansi.ReplaceAllString(l, ""); len([]rune(bare)) > window[0] || strings.ContainsAny(bare, "\x1b\n") {
				t.Errorf("line %q in a window of %d", l, window[0])
			}
		}
	}
	text := strings.Join(p.screen(80, 24), "\n")
	for _, want := range []string{"12,345", "200/s", "4,321         17  away", "270 alive, 30 stale", "298 ", "stale"} {
		if !strings.Contains(text, want) {
			t.Errorf("the screen does not show %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "299 ") {
		t.Errorf("a process that ended is shown as the busiest:\n%s", text)
	}
	if !strings.Contains(text, "and 287 more") {
		t.Errorf("the screen does not say how many it leaves out:\n%s", text)
	}
	if line := p.line(); strings.ContainsAny(line, "\x1b\n") || !strings.Contains(line, "heartbeat.received 12,345 +200/s  collection processes 4,321 documents lag 17 (away)  processes 270 alive 30 stale  busiest ") {
		t.Errorf("line %q", line)
	}
	if got := frame([]string{"a", "b"}); got != "\x1b[?2026h\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J\x1b[?2026l" {
		t.Errorf("frame %q", got)
	}
}

// However small the window is, there are processes in it.
func TestPictureOfSmallWindows(t *testing.T) {
	t.Parallel()
	p := picture{
		head: []string{
			"broker  nats://127.0.0.1:4222", "gateway http://127.0.0.1:8080", "metrics http://127.0.0.1:9090/metrics", "store   /x", "mongo   stand-in",
			"try     a", "        b", "        c", "        d", "        e", "up 1s, Ctrl-C ends it",
		},
		now: time.UnixMilli(1_000_000), topics: make([]topicCount, 4),
		collection: collectionCount{name: "processes", phase: projector.Following}, feed: feedState{topic: devChanged, state: changefeed.Streaming},
	}
	for i := range 27 {
		p.processes = append(p.processes, processes.Process{ProcessID: strconv.Itoa(i), PID: 1000 + i, Name: "shell", LastSeen: 1_000_000, Status: processes.Alive})
	}
	for _, c := range []struct {
		width, height, rows  int
		shows, doesNotAnyway []string
	}{
		{80, 60, 27, []string{"        e", "FEED"}, []string{"more"}},
		{80, 24, 5, []string{"broker", "gateway", "try     a", "FEED", "TOPIC", "MEM MiB", "STATUS", "and 22 more"}, []string{"        b", "store"}},
		{60, 12, 5, []string{"broker", "up 1s", "SEEN", "STATUS", "and 22 more"}, []string{"FEED", "TOPIC", "MEM"}},
		{60, 6, 2, []string{"and 25 more"}, []string{"broker"}},
		{60, 4, 1, []string{"27 alive"}, []string{"more"}},
	} {
		text := strings.Join(p.screen(c.width, c.height), "\n")
		if n := strings.Count(text, "shell"); n != c.rows {
			t.Errorf("%d processes in a window of %d x %d, want %d:\n%s", n, c.width, c.height, c.rows, text)
		}
		for _, want := range c.shows {
			if !strings.Contains(text, want) {
				t.Errorf("a window of %d x %d does not show %q:\n%s", c.width, c.height, want, text)
			}
		}
		for _, no := range c.doesNotAnyway {
			if strings.Contains(text, no) {
				t.Errorf("a window of %d x %d shows %q:\n%s", c.width, c.height, no, text)
			}
		}
	}
}

// What dev says to try works as it is typed: it names the server and the prefix where they are not the usual ones.
func TestTries(t *testing.T) {
	t.Parallel()
	const gateway = "http://127.0.0.1:8080"
	for _, c := range []struct{ url, prefix, flags string }{
		{defaultServer, "ev", ""},
		{"nats://127.0.0.1:4333", "a.b", " --server nats://127.0.0.1:4333 --prefix a.b"},
	} {
		want := []string{
			"try     jetbus sub process.state" + c.flags,
			"        jetbus sub processes.changed" + c.flags,
			"        jetbus topics" + c.flags,
			"        nats sub '" + c.prefix + ".process.state.>' --server " + c.url,
			"        curl " + gateway + "/v1/topics/process.state/snapshot",
		}
		if got := tries(c.url, gateway, c.prefix); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSampler(t *testing.T) {
	t.Parallel()
	s, err := newSampler()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.sample(t.Context()); err != nil {
		t.Fatal(err)
	}
	var beats []processes.Heartbeat
	for work := make([]byte, 1<<20); !busy(beats); { // until the system has noticed
		for range 20 {
			digest := sha256.Sum256(work) // uses the CPU
			copy(work, digest[:])
		}
		if beats, err = s.sample(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(beats) == 0 || len(beats) > maxProcesses {
		t.Fatalf("%d heartbeats", len(beats))
	}
	for i, h := range beats {
		if h.Name == "" || h.Host == "" || h.CPUPct < 0 || i > 0 && h.CPUPct > beats[i-1].CPUPct {
			t.Errorf("heartbeat %d: %+v", i, h)
		}
		if h.PID == os.Getpid() && h.MemMB == 0 {
			t.Errorf("this process has memory: %+v", h)
		}
	}
	if len(busiest(beats, 1)) != 1 {
		t.Error("not bounded")
	}
}

// busy reports whether this process used the CPU.
func busy(beats []processes.Heartbeat) bool {
	return slices.ContainsFunc(beats, func(h processes.Heartbeat) bool { return h.PID == os.Getpid() && h.CPUPct > 0 })
}
