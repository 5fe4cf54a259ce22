//go:build unix

package examples

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry"
)

const (
	heartbeats = "host.heartbeat"
	inventory  = "inventory"
)

// Each heartbeat is in the topic of its version, in the collection as one of version 2, and
// in the topic of changes: also one that was a dead letter. A second run continues on the
// same servers.
func TestEvolutionExample(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	for runs := 1; runs <= 2; runs++ {
		run(t, "evolution", s.args...)
		s.compareVersions(runs)
		s.compareHosts()
		s.compareChanges(runs)
		s.compareDeadLetters(runs)
		s.settled(heartbeats, inventory)
	}
	s.compareSchemas()
}

// compareVersions checks that each topic of a version has the heartbeats of that version.
func (s *servers) compareVersions(runs int) {
	s.Helper()
	want := map[string][]string{}
	for _, e := range s.events(heartbeats) {
		version := e.Headers[registry.HeaderSchemaVersion]
		want[version] = append(want[version], e.ID)
	}
	for _, version := range []string{"1", "2"} {
		var got []string
		for _, e := range s.events(heartbeats + ".v" + version) {
			got = append(got, e.ID)
		}
		if diff := cmp.Diff(want[version], got); diff != "" || len(got) != 3*runs {
			s.Errorf("topic of version %s after %d runs (-want +got):\n%s", version, runs, diff)
		}
	}
}

// host is a document. An old heartbeat that no upcaster turned into a new one has another field.
type host struct {
	MemMiB    int    `json:"mem_mib"`
	Heartbeat string `json:"heartbeat"`
}

// lastHeartbeats returns what the collection must have: the last heartbeat of each host.
func (s *servers) lastHeartbeats() map[string]host {
	s.Helper()
	last := map[string]host{}
	for _, e := range s.events(heartbeats) {
		memory := map[string]int{"1": 1024, "2": 2048}[e.Headers[registry.HeaderSchemaVersion]]
		last[e.Key] = host{memory, e.ID}
	}
	return last
}

func (s *servers) compareHosts() {
	s.Helper()
	want := s.lastHeartbeats()
	if diff := cmp.Diff(want, decode[host](s, "hosts")); diff != "" || len(want) != 6 {
		s.Errorf("the collection does not have the last heartbeats of 6 hosts (-want +got):\n%s", diff)
	}
}

// compareChanges checks that each heartbeat changed the collection once, and that the last
// changes are the collection.
func (s *servers) compareChanges(runs int) {
	s.Helper()
	changed, last := map[string]bool{}, map[string]host{}
	for _, e := range s.events("hosts.changed") {
		if e.Key == "" {
			continue // about the feed itself
		}
		var h host
		s.ok(json.Unmarshal(e.Payload, &h))
		if changed[h.Heartbeat] {
			s.Errorf("heartbeat %s of %s changed the collection twice", h.Heartbeat, e.Key)
		}
		changed[h.Heartbeat], last[e.Key] = true, h
	}
	if diff := cmp.Diff(s.lastHeartbeats(), last); diff != "" || len(changed) != 6*runs {
		s.Errorf("%d of %d heartbeats are changes; the last ones (-want +got):\n%s", len(changed), 6*runs, diff)
	}
}

// compareDeadLetters checks that both databases failed three times, and were replayed once.
func (s *servers) compareDeadLetters(runs int) {
	s.Helper()
	var got, want []string
	for _, d := range s.deadLetters(heartbeats) {
		got = append(got, fmt.Sprintf("%s of %s: %s after %d attempts: %s, replayed %t", d.Event.Key, d.Group, d.Reason, d.Attempts, d.Error, !d.Replayed.IsZero()))
	}
	for range runs {
		for _, key := range []string{"db-1", "db-2"} {
			want = append(want, key+" of inventory: max_attempts after 3 attempts: databases are not supported, replayed true")
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("dead letters (-want +got):\n%s", diff)
	}
}

// compareSchemas checks that the registry says who forced version 2.
func (s *servers) compareSchemas() {
	s.Helper()
	schemas, err := registry.Open(s.Context(), s.nc, registry.Config{})
	s.ok(err)
	s.Cleanup(func() { stop(s.T, schemas.Close) })
	versions, err := schemas.Versions(s.Context(), heartbeats, false)
	s.ok(err)
	if len(versions) != 2 || versions[0].ForcedBy() != "" || versions[1].ForcedBy() != "release 2" {
		s.Errorf("versions: %+v", versions)
	}
}

// A program that is interrupted leaves its events to the next run.
func TestEvolutionExampleStopsBySignal(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	s.pause(jetbus.TopicConfig{Name: heartbeats, Stream: "HOST_HEARTBEATS"}, inventory)
	s.interrupt("evolution")
	s.ok(s.bus.ResumeGroup(t.Context(), heartbeats, inventory))
	run(t, "evolution", s.args...)
	s.settled(heartbeats, inventory)
	s.compareHosts()
}
