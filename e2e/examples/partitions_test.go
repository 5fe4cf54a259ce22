//go:build unix

package examples

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/partition"
	"github.com/seed-63e9a637/jetbus/projector/processes"
	"github.com/seed-63e9a637/jetbus/registry"
)

// document is a document of the projection: a state, and the sequence of its event.
type document struct {
	processes.Process

	Seq uint64 `json:"_seq"`
}

// peak is what the analyzers keep of a process.
type peak struct {
	CPUPct    float64 `json:"cpu_pct"`
	LastSeen  int64   `json:"last_seen_ts"`
	Partition int     `json:"partition"`
}

// The collections are the fold of the topic: a projection or an analyzer that misses an event
// has an older state, or a lower peak. A second run continues on the same servers.
func TestPartitionsExample(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	for runs := 1; runs <= 2; runs++ {
		run(t, "partitions", s.args...)
		if n := len(s.events(processes.DefaultHeartbeats)); n != 72*runs {
			t.Errorf("%d heartbeats, want 72 in each of %d runs", n, runs)
		}
		s.comparePartitions(72 * runs)
	}
}

// comparePartitions compares the collections and the groups with the log of so many states.
func (s *servers) comparePartitions(states int) {
	s.Helper()
	wantDocuments, wantPeaks := map[string]document{}, map[string]peak{}
	used := map[int]bool{}
	log := s.events(processes.DefaultStates)
	for _, e := range append(log, s.events(processes.DefaultHeartbeats)...) {
		if e.Headers[registry.HeaderSchemaVersion] != "1" {
			s.Errorf("event %d of %s states schema version %q", e.Seq, e.Topic, e.Headers[registry.HeaderSchemaVersion])
		}
	}
	for _, e := range log {
		var d document
		s.ok(json.Unmarshal(e.Payload, &d.Process))
		d.Seq = e.Seq
		want, err := jetbus.PartitionOf(e.Key, 8)
		s.ok(err)
		if e.Partition != want || e.Key != d.ProcessID {
			s.Errorf("event %d of process %s has the key %s and partition %d, want %d", e.Seq, d.ProcessID, e.Key, e.Partition, want)
		}
		used[e.Partition] = true
		wantDocuments[e.Key] = d
		wantPeaks[e.Key] = peak{max(wantPeaks[e.Key].CPUPct, d.CPUPct), d.LastSeen, want}
	}
	if len(log) != states || len(wantDocuments) != 24 || len(used) != 8 {
		s.Errorf("%d states of %d processes in %d partitions, want %d of 24 in 8", len(log), len(wantDocuments), len(used), states)
	}
	if diff := cmp.Diff(wantDocuments, decode[document](s, projected)); diff != "" {
		s.Errorf("the collection is not the last states (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantPeaks, decode[peak](s, "peaks")); diff != "" {
		s.Errorf("the analyzers missed states (-want +got):\n%s", diff)
	}
	s.comparePartitionGroups()
}

const (
	projected = "processes" // the projection and its collection
	analyzers = "analyzers"
)

// comparePartitionGroups checks that all groups are done, and that the members handed over.
func (s *servers) comparePartitionGroups() {
	s.Helper()
	s.settled(processes.DefaultHeartbeats, processes.DefaultGroup)
	s.settled(processes.DefaultStates, projected)
	s.settled(processes.DefaultStates, analyzers)
	for _, topic := range []string{processes.DefaultHeartbeats, processes.DefaultStates} {
		if dead := s.deadLetters(topic); len(dead) > 0 {
			s.Errorf("dead letters of %s: %+v", topic, dead)
		}
	}
	s.noMembers()
	indexes, err := s.db.Collection(projected).Indexes().ListSpecifications(s.Context())
	s.ok(err)
	names := map[string]bool{}
	for _, index := range indexes {
		names[index.Name] = true
	}
	if !names["host_1_name_1"] || !names["status_1"] {
		s.Errorf("the collection has the indexes %v, want host_1_name_1 and status_1", names)
	}
}

// noMembers checks that no process has a partition.
func (s *servers) noMembers() {
	s.Helper()
	a, err := partition.LookupTopic(s.Context(), s.bus, "", processes.DefaultStates, analyzers)
	s.ok(err)
	for _, g := range a.Generations {
		if len(g.Members) > 0 {
			s.Errorf("partitions are not handed over: %+v", g)
		}
	}
}

// decode returns the documents of a collection by their keys.
func decode[T any](s *servers, collection string) map[string]T {
	s.Helper()
	byKey := map[string]T{}
	for key, text := range s.documents(collection) {
		var v T
		s.ok(json.Unmarshal([]byte(text), &v))
		byKey[key] = v
	}
	return byKey
}

// A program that is interrupted hands its partitions over, and loses no event.
func TestPartitionsExampleStopsBySignal(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	ctx := t.Context()
	s.pause(jetbus.TopicConfig{Name: processes.DefaultHeartbeats}, processes.DefaultGroup)
	s.interrupt("partitions")
	s.noMembers()
	s.ok(s.bus.ResumeGroup(ctx, processes.DefaultHeartbeats, processes.DefaultGroup))
	run(t, "partitions", s.args...)
	s.comparePartitions(144)
}

// A program whose part fails ends with the error of that part.
func TestPartitionsExampleEndsWithItsParts(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	s.pause(jetbus.TopicConfig{Name: processes.DefaultHeartbeats}, processes.DefaultGroup)
	stderr := s.disturb("partitions", func(*os.Process) {
		s.ok(s.bus.DeleteGroup(t.Context(), processes.DefaultHeartbeats, processes.DefaultGroup))
	})
	if !strings.Contains(stderr, jetbus.ErrNoGroup.Error()) {
		t.Errorf("stderr is %q, want the error %q", stderr, jetbus.ErrNoGroup)
	}
	s.noMembers()
}
