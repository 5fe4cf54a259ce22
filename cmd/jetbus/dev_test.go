package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/projector"
)

// events reads how many events of a topic a line of dev names.
func events(t *testing.T, line, topic string) int {
	t.Helper()
	m := regexp.MustCompile(regexp.QuoteMeta(topic) + ` ([0-9,]+)`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("no count of %s in %q", topic, line)
	}
	n, err := strconv.Atoi(strings.ReplaceAll(m[1], ",", ""))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

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

func TestDev(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	first := command(t, "", "dev", "--dir", dir, "--listen", "0", "--interval", "200ms", "--for", "2s")
	if first.code != 0 || first.errOut != "" {
		t.Fatalf("exit code %d: %s", first.code, first.errOut)
	}
	for _, want := range []string{"broker  nats://127.0.0.1:", "store   " + dir, "try     jetbus sub process.state --server nats://", "found   nothing: the store is new", "again   jetbus dev --dir " + dir} {
		if !strings.Contains(first.out, want) {
			t.Errorf("does not say %q:\n%s", want, first.out)
		}
	}
	if strings.Contains(first.out, "\x1b") {
		t.Error("escape sequences although standard output is no terminal")
	}
	if !regexp.MustCompile(`processes [1-9][0-9]* alive .* busiest \S+\[[0-9]+\]`).MatchString(first.out) {
		t.Errorf("shows no processes:\n%s", first.out)
	}
	kept := lineWith(t, first.out, "kept ")
	heartbeats, states := events(t, kept, "heartbeat.received"), events(t, kept, "process.state")
	if heartbeats == 0 || heartbeats != states {
		t.Errorf("%d heartbeats and %d states are kept, want the same number of both", heartbeats, states)
	}

	second := command(t, "", "dev", "--dir", dir, "--listen", "0", "--for", "1s")
	if second.code != 0 {
		t.Fatalf("exit code %d: %s", second.code, second.errOut)
	}
	found := lineWith(t, second.out, "found ")
	if events(t, found, "heartbeat.received") != heartbeats || events(t, found, "process.state") != states {
		t.Errorf("kept %q, but found %q", kept, found)
	}
	if want := fmt.Sprintf("group   process-projector goes on behind #%d, 0 events waiting\n", heartbeats); !strings.Contains(second.out, want) {
		t.Errorf("does not say %q:\n%s", want, second.out)
	}
}

// child is dev in a process of its own.
func child(t *testing.T, dir string) (*exec.Cmd, *running) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "dev", "--plain", "--dir", dir, "--listen", "0", "--interval", "100ms")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	r := &running{out: newBuffer(), err: newBuffer(), done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = r.out, r.err
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		_ = cmd.Wait() // the test asks ProcessState
		r.code = cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-r.done
	})
	return cmd, r
}

// What dev said it has is there after kill -9, and in the end each heartbeat has
// given one state.
func TestDevKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	said := 0
	for range 3 {
		cmd, r := child(t, dir)
		r.wait(t, "busiest")
		found := lineWith(t, r.out.String(), "found ")
		if said > 0 && (events(t, found, "heartbeat.received") < said || events(t, found, "process.state") == 0) {
			t.Errorf("said that it has %d heartbeats, was killed, and then %s", said, found)
		}
		r.waitTimes(t, "busiest", 3)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-r.done
		for line := range strings.Lines(r.out.String()) {
			if strings.Contains(line, "busiest") && strings.HasSuffix(line, "\n") {
				said = events(t, line, "heartbeat.received")
			}
		}
	}
	r := begin(t, nil, "dev", "--dir", dir, "--listen", "0", "--plain")
	r.wait(t, "busiest")
	b := &bench{strings.TrimSpace(strings.TrimPrefix(lineWith(t, r.out.String(), "broker "), "broker"))}
	// What the killed ones held comes back when their leases end.
	var beats int
	var projected map[string]int
	for deadline := time.Now().Add(time.Minute); ; {
		beats = 0
		for _, e := range records(t, b.ok(t, "", "sub", projector.DefaultHeartbeats, "--no-follow", "-o", "json")) {
			if e.Time.Before(r.began) {
				beats++
			}
		}
		projected = map[string]int{}
		for _, e := range records(t, b.ok(t, "", "sub", projector.DefaultStates, "--no-follow", "-o", "json")) {
			if state, err := projector.StateTopic.Decode(e); err != nil {
				t.Fatal(err)
			} else if state.Status == projector.Alive && time.UnixMilli(state.LastSeen).Before(r.began) {
				projected[e.Headers["x-heartbeat-seq"]]++
			}
		}
		if len(projected) >= beats || time.Now().After(deadline) {
			break
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	for seq, n := range projected {
		if n != 1 {
			t.Errorf("heartbeat %s gave %d states", seq, n)
		}
	}
	if len(projected) != beats || beats < said {
		t.Errorf("%d heartbeats before the last start, %d of them projected; %d were said to be stored", beats, len(projected), said)
	}
}

func TestDevInUse(t *testing.T) {
	dir := t.TempDir()
	r := begin(t, nil, "dev", "--dir", dir, "--listen", "0", "--plain")
	out := r.wait(t, "busiest")
	got := command(t, "", "dev", "--dir", dir, "--listen", "0")
	if got.code != exitConflict || !strings.Contains(got.errOut, "in use by another broker: "+dir) {
		t.Errorf("a second one on the same folder: %+v", got)
	}
	listen := strings.TrimSpace(strings.TrimPrefix(lineWith(t, out, "broker "), "broker  nats://"))
	got = command(t, "", "dev", "--dir", t.TempDir(), "--listen", listen)
	if got.code != exitFailure || !strings.Contains(got.errOut, "listen on "+listen+": address already in use; choose another") {
		t.Errorf("a second one on the same address: %+v", got)
	}
	// The other commands work on it, as any NATS client does.
	b := &bench{"nats://" + listen}
	if n := len(records(t, b.ok(t, "", "sub", projector.DefaultStates, "--from", "earliest", "--limit", "5", "-o", "json"))); n != 5 {
		t.Errorf("%d states, want 5", n)
	}
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
	if !strings.Contains(r.out.String(), "ended after ") {
		t.Errorf("does not say what it did:\n%s", r.out)
	}
}

func TestPicture(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	p := picture{head: []string{"broker  nats://127.0.0.1:4222"}, now: now, topics: []topicCount{{"heartbeat.received", 12345, 1 << 20, 200}}}
	for i := range 300 {
		status := projector.Alive
		if i%10 == 0 {
			status = projector.Stale
		}
		p.processes = append(p.processes, projector.Process{
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
	for _, want := range []string{"12,345", "200/s", "270 alive, 30 stale", "298 ", "stale"} {
		if !strings.Contains(text, want) {
			t.Errorf("the screen does not show %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "299 ") {
		t.Errorf("a process that ended is shown as the busiest:\n%s", text)
	}
	if line := p.line(); strings.ContainsAny(line, "\x1b\n") || !strings.Contains(line, "heartbeat.received 12,345 +200/s  processes 270 alive 30 stale  busiest ") {
		t.Errorf("line %q", line)
	}
	if got := frame([]string{"a", "b"}); got != "\x1b[?2026h\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J\x1b[?2026l" {
		t.Errorf("frame %q", got)
	}
}

func TestSampler(t *testing.T) {
	s, err := newSampler()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.sample(t.Context()); err != nil {
		t.Fatal(err)
	}
	work := make([]byte, 1<<16)
	for began := time.Now(); time.Since(began) < 50*time.Millisecond; {
		digest := sha256.Sum256(work) // uses the CPU
		copy(work, digest[:])
	}
	beats, err := s.sample(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(beats) == 0 || len(beats) > maxProcesses {
		t.Fatalf("%d heartbeats", len(beats))
	}
	for i, h := range beats {
		if h.Name == "" || h.Host == "" || h.CPUPct < 0 || i > 0 && h.CPUPct > beats[i-1].CPUPct {
			t.Errorf("heartbeat %d: %+v", i, h)
		}
		if h.PID == os.Getpid() && (h.CPUPct == 0 || h.MemMB == 0) {
			t.Errorf("this process was busy: %+v", h)
		}
	}
	if len(busiest(beats, 1)) != 1 {
		t.Error("not bounded")
	}
}
