//go:build unix

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

// A backfill whose command is killed again and again ends with what one writes that is left
// alone.
func TestBackfillKilled(t *testing.T) {
	const events = 6000 // at 500 a second, so that none ends before it is killed
	broker := bustest.Start(t, embedded.Config{Listen: "127.0.0.1:0"})
	bus := bustest.Open(t, broker, adapter.Config{})
	to := []string{"--server", broker.URL()}
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, topic := range []string{"readings", "whole", "killed"} {
		ok(t, append(to, "topics", "create", topic)...)
	}
	for i, name := range []string{"mb", "mib"} {
		text := fmt.Sprintf(`{"type":"object","properties":{%q:{"type":"integer"}},"required":[%q]}`, name, name)
		ok(t, append(to, "schema", "register", "readings", file(fmt.Sprint(i), text), "--force", "--by", "test")...)
	}
	edits := file("edits", `{"readings": {"1": {"rename": {"mb": "mib"}}}}`)
	var batch []jetbus.Event
	for i := range events {
		batch = append(batch, jetbus.Event{
			Topic: "readings", ID: fmt.Sprint("r", i), Key: fmt.Sprint("k", i%50), Payload: fmt.Appendf(nil, `{"mb":%d}`, i), Headers: map[string]string{"x-schema-version": "1"},
		})
	}
	if _, err := bus.PublishBatch(t.Context(), batch, jetbus.BatchOptions{}); err != nil {
		t.Fatal(err)
	}
	run := func(topic string, more ...string) *process {
		t.Helper()
		return start(t, append(append(to, "backfill", "readings", topic, "--upcasters", edits), more...)...)
	}
	done := func(p *process) {
		t.Helper()
		<-p.ended
		if p.err != nil || !strings.Contains(p.stdout.String(), "6,000 events of readings written") {
			t.Errorf("%v: %s%s", p.err, p.stdout.String(), p.stderr.String())
		}
	}
	done(run("whole"))
	for _, at := range []uint64{200, 700, 1500} {
		p := run("killed", "--rate", "500")
		eventually(t, func() string {
			info, err := bus.TopicInfo(t.Context(), "killed")
			if err != nil {
				t.Fatal(err)
			}
			if info.Events < at {
				return fmt.Sprintf("%d events written, want %d", info.Events, at)
			}
			return ""
		})
		p.kill()
		if strings.Contains(p.stdout.String(), "written") {
			t.Errorf("it had ended: %s", p.stdout.String())
		}
	}
	done(run("killed"))
	read := func(topic string) (out []string) {
		for e, err := range bus.Scan(t.Context(), topic, jetbus.ScanQuery{}) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprintf("%s %s %s %v", e.Headers[registry.HeaderBackfillOf], e.Key, e.Payload, e.CausedBy))
		}
		return out
	}
	if want, got := read("whole"), read("killed"); len(want) != events || !slices.Equal(want, got) {
		t.Errorf("%d and %d events, or others, want %d", len(want), len(got), events)
	}
}
