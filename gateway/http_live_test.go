package gateway_test

import (
	"bufio"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
)

// liveLimits have room for two large events and their JSON, or for four whose JSON alone is in memory.
var liveLimits = gateway.Limits{BytesPerPrincipal: 1 << 20}

const liveClients = 6

var largePayload = `"` + strings.Repeat("x", 200<<10) + `"`

// openStream opens an event stream and reads it up to its live end.
func (r *wsRig) openStream(token string) (stream *bufio.Reader, id string) {
	r.Helper()
	stream = r.openStreamAt(token, "")
	id, found := readEvent(stream, "caught_up")
	if !found {
		r.Fatal("the stream ended before its live end")
	}
	return stream, id
}

// openStreamAt opens an event stream behind an id. An empty id is the newest.
func (r *wsRig) openStreamAt(token, id string) *bufio.Reader {
	r.Helper()
	res, err := r.client().Do(r.request("GET", ordersPath+"/events?from=latest", "",
		"Authorization", token, "Last-Event-ID", id, "Accept", "text/event-stream"))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = res.Body.Close() })
	return bufio.NewReader(res.Body)
}

// readEvent reads a stream up to the end of the first event with a name, or of the stream. It returns the last id.
func readEvent(stream *bufio.Reader, name string) (id string, found bool) {
	for {
		line, err := stream.ReadString('\n')
		if line == "event: "+name+"\n" {
			for err == nil && line != "\n" {
				line, err = stream.ReadString('\n')
			}
			return id, err == nil
		}
		if err != nil {
			return id, false
		}
		if next, ok := strings.CutPrefix(line, "id: "); ok {
			id = strings.TrimSpace(next)
		}
	}
}

// TestLiveStreamsAreBounded: clients of event streams that do not read hold the share of their subject at most. The
// others are closed, and get the event when they connect again.
func TestLiveStreamsAreBounded(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = liveLimits
		r.serve(c)
		streams, id := make([]*bufio.Reader, liveClients), ""
		for i := range streams {
			streams[i], id = r.openStream(ann)
		}
		synctest.Wait()
		r.publish("orders", largePayload)
		time.Sleep(5 * time.Second) // longer than a stream waits for room
		got := 0
		for _, s := range streams {
			if _, found := readEvent(s, "event"); found {
				got++
				continue
			}
			res := r.openStreamAt(bob, id)
			if _, found := readEvent(res, "event"); !found {
				r.Errorf("the event is lost behind %q", id)
			}
		}
		if got != 2 {
			r.Errorf("%d streams had the event in memory, there is room for 2", got)
		}
	})
}

// TestSlowEventStreamsKeepNobodyWaiting: a client that does not read the backlog of its event stream does not hold the
// turn of its subject to read the bus, and gets all events when it reads.
func TestSlowEventStreamsKeepNobodyWaiting(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = gateway.Limits{BytesPerPrincipal: 4 << 20} // one reads at a time
		r.serve(c)
		payloads := slices.Repeat([]string{largePayload}, 5)
		events := r.publish("orders", payloads...)
		res, err := r.client().Do(r.request("GET", ordersPath+"/events?from=earliest", "", "Authorization", ann, "Accept", "text/event-stream"))
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		synctest.Wait()
		began := time.Now()
		if a := r.do("GET", ordersPath+"/events?from=earliest&wait=0", "", "Authorization", ann); a.status != http.StatusOK {
			r.Fatalf("a poll: %d %s", a.status, a.text)
		}
		if took := time.Since(began); took > time.Second {
			r.Errorf("a poll of the same subject took %v", took)
		}
		stream := bufio.NewReader(res.Body)
		for _, want := range events {
			id, found := readEvent(stream, "event")
			if at := gateway.SeqOfToken(id); !found || at != want.Seq {
				r.Fatalf("event %d: got %d, found %v", want.Seq, at, found)
			}
		}
		if _, found := readEvent(stream, "caught_up"); !found {
			r.Error("the stream ended before its live end")
		}
	})
}

// TestSlowEventStreamCatchesUp: a client that reads the backlog of its event stream more slowly than the topic grows
// is told when it has read what there was when it began.
func TestSlowEventStreamCatchesUp(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		backlog := r.publish("orders", slices.Repeat([]string{largePayload}, 3)...)
		res, err := r.client().Do(r.request("GET", ordersPath+"/events?from=earliest", "", "Accept", "text/event-stream"))
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		stream, events := bufio.NewReader(res.Body), 0
		for {
			line, err := stream.ReadString('\n')
			if err != nil {
				r.Fatal(err)
			}
			if line == "event: caught_up\n" {
				break
			}
			if line == "event: event\n" {
				events++
				r.publish("orders", largePayload, largePayload)
				time.Sleep(time.Second)
			}
		}
		if events > len(backlog)+1 {
			r.Errorf("the client read %d events before it was told, want the %d of the backlog", events, len(backlog))
		}
	})
}

// unread has many clients make a request whose answer they do not read, and counts the answers by status.
func (r *wsRig) unread(path string, then func()) map[int]int {
	r.Helper()
	var mu sync.Mutex
	status := map[int]int{}
	var asking sync.WaitGroup
	for range liveClients {
		asking.Go(func() {
			res, err := r.client().Do(r.request("GET", path, "", "Authorization", ann))
			if err != nil {
				r.Error(err)
				return
			}
			r.Cleanup(func() { _ = res.Body.Close() })
			mu.Lock()
			defer mu.Unlock()
			status[res.StatusCode]++
		})
	}
	synctest.Wait()
	then()
	asking.Wait()
	return status
}

// TestLivePollsAreBounded: the same of polls, which are refused.
func TestLivePollsAreBounded(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = liveLimits
		r.serve(c)
		got := r.unread(ordersPath+"/events?from=latest&wait=30s", func() { r.publish("orders", largePayload) })
		if got[http.StatusOK] != 4 || got[http.StatusTooManyRequests] != liveClients-4 {
			r.Errorf("%v, there is room for 4", got)
		}
	})
}

// TestRefusedPollSkipsNothing: a poll whose event has no room is refused, though a smaller one arrives meanwhile.
func TestRefusedPollSkipsNothing(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = gateway.Limits{QueueBytes: 64 << 10, BytesPerPrincipal: 300 << 10}
		r.serve(c)
		r.publish("orders", largePayload)
		var asking sync.WaitGroup
		asking.Go(func() {
			r.do("GET", ordersPath+"/events?from=earliest&wait=30s", "", "Authorization", ann).refused(gateway.CodeRateLimited)
		})
		synctest.Wait()
		r.publish("orders", "1")
		asking.Wait()
	})
}

// TestSnapshotsOfKeyAreBounded: the same of the last event of a key.
func TestSnapshotsOfKeyAreBounded(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		r.set("state", "k="+largePayload)
		c := withTokens()
		c.Limits = liveLimits
		r.serve(c)
		got := r.unread(statePath+"/snapshot/k", func() {})
		if got[http.StatusOK] != 2 || got[http.StatusTooManyRequests] != liveClients-2 {
			r.Errorf("%v, there is room for 2", got)
		}
	})
}
