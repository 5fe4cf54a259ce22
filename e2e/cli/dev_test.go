//go:build unix

package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/projector/processes"
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

// get asks a server by HTTP.
func get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %s", url, res.Status, err, body)
	}
	return string(body)
}

func TestDev(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	p := start(t, "dev", "--gateway", "0", "--dir", dir, "--listen", "0", "--interval", "200ms")
	gateway := strings.TrimSpace(strings.TrimPrefix(lineWith(t, p.wait(t, "busiest", 1), "gateway "), "gateway"))
	if states := get(t, gateway+"/v1/topics/process.state/snapshot"); !strings.Contains(states, `"status":"alive"`) {
		t.Errorf("the gateway at %s: %s", gateway, states)
	}
	p.interrupt(t)
	first := p.stdout.String()
	for _, want := range []string{"broker  nats://127.0.0.1:", "gateway http://127.0.0.1:", "store   " + dir, "try     jetbus sub process.state --server nats://", "found   nothing: the store is new", "again   jetbus dev --dir " + dir} {
		if !strings.Contains(first, want) {
			t.Errorf("does not say %q:\n%s", want, first)
		}
	}
	if strings.Contains(first, "\x1b") {
		t.Error("escape sequences although standard output is no terminal")
	}
	if !regexp.MustCompile(`processes [1-9][0-9]* alive .* busiest \S+\[[0-9]+\]`).MatchString(first) {
		t.Errorf("shows no processes:\n%s", first)
	}
	kept := lineWith(t, first, "kept ")
	heartbeats, states := events(t, kept, "heartbeat.received"), events(t, kept, "process.state")
	if heartbeats == 0 || heartbeats != states {
		t.Errorf("%d heartbeats and %d states are kept, want the same number of both", heartbeats, states)
	}

	second := ok(t, "dev", "--gateway", "0", "--dir", dir, "--listen", "0", "--for", "5s")
	found := lineWith(t, second, "found ")
	if events(t, found, "heartbeat.received") != heartbeats || events(t, found, "process.state") != states {
		t.Errorf("kept %q, but found %q", kept, found)
	}
	if want := fmt.Sprintf("group   process-projector goes on behind #%d, 0 events waiting\n", heartbeats); !strings.Contains(second, want) {
		t.Errorf("does not say %q:\n%s", want, second)
	}
}

// What dev said it has is there after kill -9, and in the end each heartbeat has given
// one state, or none where a newer one of its process was faster: what the killed ones
// held comes back when their leases end, behind what the process has said since.
func TestDevKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	said := 0
	for range 3 {
		p := start(t, "dev", "--gateway", "0", "--plain", "--dir", dir, "--listen", "0", "--interval", "100ms")
		found := lineWith(t, p.wait(t, "busiest", 1), "found ")
		if said > 0 && (events(t, found, "heartbeat.received") < said || events(t, found, "process.state") == 0) {
			t.Errorf("said that it has %d heartbeats, was killed, and then %s", said, found)
		}
		p.wait(t, "busiest", 3)
		p.kill()
		for line := range strings.Lines(p.stdout.String()) {
			if strings.Contains(line, "busiest") && strings.HasSuffix(line, "\n") {
				said = events(t, line, "heartbeat.received")
			}
		}
	}
	began := time.Now()
	p := start(t, "dev", "--gateway", "0", "--plain", "--dir", dir, "--listen", "0", "--interval", "10s")
	url := strings.TrimSpace(strings.TrimPrefix(lineWith(t, p.wait(t, "busiest", 1), "broker "), "broker"))
	beats := 0
	within(t, 5*time.Minute, func() string { // the leases of three that were killed, and a command for each look
		projected, newest := states(t, url)
		missing := 0
		beats = 0
		for _, e := range records(t, url, processes.DefaultHeartbeats) {
			if !e.Time.Before(began) {
				continue
			}
			beats++
			switch n := projected[e.Seq]; {
			case n > 1:
				t.Fatalf("heartbeat %d gave %d states", e.Seq, n)
			case n == 0 && newest[e.Key] < e.Seq:
				missing++
			}
		}
		if missing == 0 {
			return ""
		}
		return fmt.Sprintf("%d of %d heartbeats before the last start are not projected", missing, beats)
	})
	if beats < said {
		t.Errorf("%d heartbeats before the last start; %d were said to be stored", beats, said)
	}
}

// states counts the states by the heartbeat that they come from, and says which
// heartbeat the newest state of each process comes from.
func states(t *testing.T, url string) (projected map[uint64]int, newest map[string]uint64) {
	t.Helper()
	projected, newest = map[uint64]int{}, map[string]uint64{}
	for _, e := range records(t, url, processes.DefaultStates) {
		state, err := processes.StateTopic.Decode(e)
		if err != nil {
			t.Fatal(err)
		}
		seq, err := strconv.ParseUint(e.Headers["x-heartbeat-seq"], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		newest[e.Key] = max(newest[e.Key], seq)
		if state.Status == processes.Alive {
			projected[seq]++
		}
	}
	return projected, newest
}
