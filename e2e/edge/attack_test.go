//go:build linux

package edge

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
	"github.com/seed-63e9a637/jetbus/registry"
)

// Bounds of a jetbus serve with default limits while clients without privileges attack it.
const (
	mostRSS     = 1 << 30
	mostPublish = 50 * time.Millisecond // of 99 of 100 publishes of a bystander
	mostConnect = 5 * time.Second       // until a client with a valid token has an answer
)

var (
	attackTime = flag.Duration("attack", 3*time.Second, "duration of each attack")
	alone      = flag.Bool("alone", false, "require that 99 of 100 publishes of a bystander take at most 50 ms; only if nothing else runs on the machine")
)

// attacks are what clients do until ctx ends, in the order of the test.
var attacks = []struct {
	name string
	run  func(ctx context.Context, a *attackers)
}{
	{"subscriptions that nobody reads", deafSubscriptions},
	{"conflated subscriptions", conflatedSubscriptions},
	{"conflated subscriptions to events with large headers", wideSubscriptions},
	{"readers of a live end", liveReaders},
	{"members of groups that settle nothing", deafMembers},
	{"members with credit that settle nothing", creditedMembers},
	{"pulls that settle nothing", heavyPulls},
	{"event streams that nobody reads", deafStreams},
	{"batches", heavyBatches},
	{"batches of small elements", smallElements},
	{"dear validations", dearEvents},
	{"settlements", heavySettlements},
	{"schema look-ups", heavyLookUps},
	{"snapshots", manySnapshots},
	{"snapshots that nobody reads", deafSnapshots},
	{"states", manyStates},
	{"groups", manyOwnGroups},
	{"silent sockets", silentSockets},
	{"idle connections", idleConnections},
	{"documents", documents},
}

// TestAttacks plays each attack on one process, and then all of them at the same time.
func TestAttacks(t *testing.T) {
	s := startServe(t, serveOptions{})
	s.furnish()
	var names []string
	for _, one := range attacks {
		names = append(names, one.name)
		t.Run(one.name, func(t *testing.T) { s.as(t).under(one.name) })
	}
	t.Run("all at once", func(t *testing.T) { s.as(t).under(names...) })
	peak := s.peakRSS() // includes peaks between two measurements of under
	t.Logf("peak RSS %d MiB", peak>>20)
	if peak > mostRSS {
		t.Errorf("the process had %d MiB, want at most %d", peak>>20, mostRSS>>20)
	}
}

// as returns the process for a subtest.
func (s *serveProcess) as(t *testing.T) *serveProcess {
	sub := *s
	sub.T = t
	return &sub
}

// furnish makes the topics that are attacked: bulk has 96 MiB of events of 16 KiB, state has 48 MiB of them, and wide
// has 32 MiB of events with large headers. A bystander publishes to calm, and attackers to live.
func (s *serveProcess) furnish() {
	s.Helper()
	bus := s.open()
	for _, topic := range []string{"calm", "live", "bulk", "state", "wide"} {
		if _, err := bus.EnsureTopic(s.Context(), jetbus.TopicConfig{Name: topic, KeyInSubject: true}); err != nil {
			s.Fatal(err)
		}
	}
	schemas, err := registry.Open(s.Context(), s.connect(), registry.Config{})
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = schemas.Close(context.WithoutCancel(s.Context())) }() // it is only asked
	for name, of := range dear() {
		if _, err := bus.EnsureTopic(s.Context(), jetbus.TopicConfig{Name: "dear." + name}); err != nil {
			s.Fatal(err)
		}
		if _, err := schemas.Register(s.Context(), "dear."+name, of[0], registry.RegisterOptions{}); err != nil {
			s.Fatal(err)
		}
	}
	large := jetbus.Event{Payload: []byte(`"` + strings.Repeat("x", 16<<10-2) + `"`)}
	headers := jetbus.Event{Payload: []byte("1"), Headers: map[string]string{}}
	for i := range 32 {
		headers.Headers[fmt.Sprintf("h%d", i)] = strings.Repeat("x", 1<<10)
	}
	s.fill(bus, "bulk", 96<<10/16, large)
	s.fill(bus, "state", 48<<10/16, large)
	s.fill(bus, "wide", 32<<10/32, headers)
}

// fill publishes an event n times, each time with another key.
func (s *serveProcess) fill(bus *adapter.Bus, topic string, n int, e jetbus.Event) {
	s.Helper()
	e.Topic = topic
	for i := 0; i < n; {
		batch := make([]jetbus.Event, min(64, n-i))
		for k := range batch {
			e.Key = fmt.Sprint(i)
			batch[k] = e
			i++
		}
		if _, err := bus.PublishBatch(s.Context(), batch, jetbus.BatchOptions{}); err != nil {
			s.Fatal(err)
		}
	}
}

// under plays attacks. In the meantime it measures the memory of the process, a bystander's publishes, and the time
// that a client needs to connect.
func (s *serveProcess) under(names ...string) {
	s.Helper()
	isOne := len(names) == 1 // all at once, an attack may be too slow to complete a request
	p, err := child.Start[report](attackRole, attackConfig{Address: s.address, Names: names, Time: *attackTime, Probe: isOne})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { p.Clean(s) })
	ctx, cancel := context.WithTimeout(s.Context(), *attackTime)
	defer cancel()
	began, cpu, before := time.Now(), s.cpu(), s.rss()
	var work sync.WaitGroup
	most := 0
	work.Go(func() {
		for ctx.Err() == nil {
			most = max(most, s.rss())
			time.Sleep(20 * time.Millisecond)
		}
	})
	var publishes, connects []time.Duration
	work.Go(func() {
		c := newClient()
		defer c.CloseIdleConnections()
		for ctx.Err() == nil {
			began := time.Now()
			status, _, err := do(s.Context(), c, s.address, request{bystander, "POST", "/v1/topics/calm", `{"n":1}`, "application/json"})
			if err != nil || status != http.StatusCreated {
				s.Errorf("a bystander's publish: %d, %v", status, err)
			}
			publishes = append(publishes, time.Since(began))
			time.Sleep(10 * time.Millisecond)
		}
	})
	work.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			if err := authenticateWithin(s.Context(), s.address, mostConnect); err != nil {
				s.Errorf("a client with a valid token: %v", err)
			}
			connects = append(connects, time.Since(began))
			time.Sleep(200 * time.Millisecond)
		}
	})
	work.Wait()
	late, stop := context.WithTimeout(s.Context(), limit)
	defer stop()
	if err := p.Wait(late); err != nil {
		s.Errorf("the attackers: %v", err)
	}
	told, _ := p.Reports()
	var all int64
	for _, r := range told {
		all += r.Made + r.Refused
		s.Logf("%s: %d made, %d refused", r.What, r.Made, r.Refused)
		if r.Untold > 0 {
			s.Errorf("%s: %d refusals have no Retry-After", r.What, r.Untold)
		}
		if r.Rejected > 0 {
			s.Errorf("%s: the gateway rejected %d requests, the first with: %s", r.What, r.Rejected, r.Why)
		}
		if isOne && r.Made == 0 && r.Refused == 0 {
			s.Errorf("%s: no request was made or refused", r.What)
		}
	}
	if all == 0 {
		s.Error("no request was made or refused")
	}
	if len(told) < len(names) {
		s.Errorf("%d reports of %d attacks", len(told), len(names))
	}
	slices.Sort(publishes)
	slices.Sort(connects)
	if len(publishes) == 0 || len(connects) == 0 {
		s.Fatal("nothing was measured")
	}
	p99, slowest := publishes[len(publishes)*99/100], connects[len(connects)-1]
	s.Logf("RSS %d MiB (%d before), CPU %v in %v; publish p50 %v, p99 %v of %d; slowest of %d connects %v", most>>20, before>>20,
		s.cpu()-cpu, time.Since(began).Round(time.Millisecond), publishes[len(publishes)/2], p99, len(publishes), len(connects), slowest)
	if most > mostRSS {
		s.Errorf("the process has %d MiB, want at most %d", most>>20, mostRSS>>20)
	}
	if *alone && p99 > mostPublish {
		s.Errorf("a bystander's publish takes %v (p99), want at most %v", p99, mostPublish)
	}
}
