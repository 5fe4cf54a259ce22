//go:build linux

package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// attackRole is the process of the attackers. Its priority is the lowest one, as attackers elsewhere would not
// take the processors of the server.
const attackRole = "attackers"

type attackConfig struct {
	Address string
	Names   []string
	Time    time.Duration
}

// report is what became of one kind of attack.
type report struct {
	What              string
	Answered, Refused int64
	Untold            int64 // refusals that did not say when to try again
}

// attackers are clients of a gateway with few permissions or none.
type attackers struct {
	address string
	tell    func(report)
}

func TestMain(m *testing.M) {
	child.Main(map[string]child.Role{attackRole: playAttacks})
	m.Run()
}

func playAttacks(ctx context.Context, text []byte, p *child.Parent) error {
	var c attackConfig
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Time)
	defer cancel()
	a := &attackers{c.Address, func(r report) { p.Tell(r) }}
	var work sync.WaitGroup
	for _, one := range attacks {
		if slices.Contains(c.Names, one.name) {
			work.Go(func() { one.run(ctx, a) })
		}
	}
	work.Wait()
	return nil
}

// newClient returns an HTTP client with connections of its own.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}, Timeout: time.Minute}
}

// crowd runs n clients at once until each has returned.
func crowd(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// deaf opens 50 connections of mallory with 64 subscriptions each, and reads nothing.
func (a *attackers) deaf(ctx context.Context, what string, frameOf func(connection, n int) []byte) {
	var made atomic.Int64
	defer func() { a.tell(report{What: what, Answered: made.Load()}) }()
	crowd(50, func(connection int) {
		for ctx.Err() == nil {
			ws, err := a.dial(ctx, mallory)
			if err != nil {
				pause(ctx, 100*time.Millisecond)
				continue
			}
			for n := range 64 {
				if ws.Write(ctx, websocket.MessageText, frameOf(connection, n)) != nil {
					break
				}
				made.Add(1)
			}
			pause(ctx, time.Minute)
			_ = ws.CloseNow()
		}
	})
}

func deafSubscriptions(ctx context.Context, a *attackers) {
	a.deaf(ctx, "subscriptions", func(_, n int) []byte {
		return fmt.Appendf(nil, `{"op":"SUBSCRIBE","topic":"bulk","sub":"%d","opts":{"from":"earliest"}}`, n)
	})
}

// conflatedSubscriptions keep the last event of each key until it can be written.
func conflatedSubscriptions(ctx context.Context, a *attackers) {
	a.deaf(ctx, "conflated subscriptions", func(_, n int) []byte {
		return fmt.Appendf(nil, `{"op":"SUBSCRIBE","topic":"bulk","sub":"%d","opts":{"from":"earliest","slow":"conflate"}}`, n)
	})
}

// wideSubscriptions are the same, of events that have more bytes in their headers than in their payload.
func wideSubscriptions(ctx context.Context, a *attackers) {
	a.deaf(ctx, "conflated subscriptions to large headers", func(_, n int) []byte {
		return fmt.Appendf(nil, `{"op":"SUBSCRIBE","topic":"wide","sub":"%d","opts":{"from":"earliest","slow":"conflate"}}`, n)
	})
}

// liveReaders are 200 event streams and 3,200 subscriptions that wait for the next event and read nothing, and a
// client that publishes large ones.
func liveReaders(ctx context.Context, a *attackers) {
	var all sync.WaitGroup
	all.Go(func() { a.deafRequests(ctx, 200, "/v1/topics/live/events?from=latest", "text/event-stream") })
	all.Go(func() {
		a.deaf(ctx, "subscriptions to a live end", func(_, n int) []byte {
			return fmt.Appendf(nil, `{"op":"SUBSCRIBE","topic":"live","sub":"%d","opts":{"from":"latest"}}`, n)
		})
	})
	all.Go(func() {
		body := `"` + strings.Repeat("x", 400<<10) + `"`
		a.flood(ctx, 1, func(int) request {
			return request{writer, "POST", "/v1/topics/live", body, "application/json"}
		})
	})
	all.Wait()
}

// deafMembers have 50 groups of their own, with 64 members each.
func deafMembers(ctx context.Context, a *attackers) {
	a.deaf(ctx, "members", func(connection, n int) []byte {
		return fmt.Appendf(nil, `{"op":"SUBSCRIBE","topic":"bulk","group":"u.mallory.%d","sub":"%d","opts":{"from":"earliest","maxInFlight":1000}}`, (connection+n)%50, n)
	})
}

// creditedMembers are the same, with credit for all events.
func creditedMembers(ctx context.Context, a *attackers) {
	a.deaf(ctx, "members with credit", func(connection, n int) []byte {
		return fmt.Appendf(nil, `{"op":"SUBSCRIBE","topic":"bulk","group":"u.mallory.%d","sub":"%d","opts":{"from":"earliest","maxInFlight":1000,"flow":"credit","credit":1000}}`, (connection+n)%50, n)
	})
}

// heavyPulls are 200 clients that take as many events as they can, and settle none.
func heavyPulls(ctx context.Context, a *attackers) {
	a.flood(ctx, 200, func(i int) request {
		return request{mallory, "POST", fmt.Sprintf("/v1/groups/bulk/u.mallory.%d:pull", i%50), `{"from":"earliest","wait":"1s","max":256}`, "application/json"}
	})
}

// deafStreams are 200 event streams that nobody reads.
func deafStreams(ctx context.Context, a *attackers) {
	a.deafRequests(ctx, 200, "/v1/topics/bulk/events?from=earliest", "text/event-stream")
}

// deafSnapshots are 40 clients that ask for the first page of a snapshot of events with large headers, and read nothing.
func deafSnapshots(ctx context.Context, a *attackers) {
	a.deafRequests(ctx, 40, "/v1/topics/wide/snapshot", "application/json")
}

// deafRequests makes n requests at once and reads no answer.
func (a *attackers) deafRequests(ctx context.Context, n int, path, accept string) {
	var made atomic.Int64
	defer func() { a.tell(report{What: "GET " + path, Answered: made.Load()}) }()
	crowd(n, func(int) {
		nc, err := smallBuffer(ctx, "tcp", a.address)
		if err != nil {
			return
		}
		defer func() { _ = nc.Close() }()
		if _, err = fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nAccept: %s\r\n\r\n", path, a.address, mallory, accept); err == nil {
			made.Add(1)
		}
		pause(ctx, time.Minute)
	})
}

// heavyBatches are 200 batches of 8 MiB at once.
func heavyBatches(ctx context.Context, a *attackers) {
	body := strings.Repeat(`{"payload":"`+strings.Repeat("x", 64<<10)+`"}`+"\n", 120)
	a.flood(ctx, 200, func(int) request {
		return request{writer, "POST", "/v1/topics/bulk?dry_run=1", body, "application/x-ndjson"}
	})
}

// smallElements are batches of 8 MiB whose elements are one byte long.
func smallElements(ctx context.Context, a *attackers) {
	body := "[" + strings.Repeat("1,", 4<<20-2) + "1]"
	a.flood(ctx, 24, func(int) request {
		return request{writer, "POST", "/v1/topics/bulk?dry_run=1", body, "application/cloudevents-batch+json"}
	})
}

// dearEvents are 24 events at once that are dear to validate.
func dearEvents(ctx context.Context, a *attackers) {
	var requests []request
	for name, of := range dear() {
		requests = append(requests, request{writer, "POST", "/v1/topics/dear." + name, of[1], "application/json"})
	}
	a.flood(ctx, 24, func(i int) request { return requests[i%len(requests)] })
}

// heavySettlements are 200 acknowledgements of a mebibyte each that acknowledge nothing.
func heavySettlements(ctx context.Context, a *attackers) {
	body := `{"ack_ids":[` + strings.Repeat(`"",`, 250_000) + `""]}`
	a.flood(ctx, 200, func(int) request {
		return request{mallory, "POST", "/v1/groups/bulk/u.mallory:ack", body, "application/json"}
	})
}

// heavyLookUps look for 200 schemas of a mebibyte each.
func heavyLookUps(ctx context.Context, a *attackers) {
	body := `{"schema":"` + strings.Repeat(`[{},{}],`, 125_000) + `"}`
	a.flood(ctx, 200, func(int) request {
		return request{prober, "POST", "/v1/schemas/subjects/bulk", body, "application/json"}
	})
}

// manySnapshots are 40 clients that ask for snapshots of all that is stored.
func manySnapshots(ctx context.Context, a *attackers) {
	a.flood(ctx, 40, func(int) request {
		return request{prober, "GET", "/v1/topics/bulk/snapshot?prefix=none", "", ""}
	})
}

// manyStates are 20 clients that ask for states.
func manyStates(ctx context.Context, a *attackers) {
	a.flood(ctx, 20, func(int) request {
		return request{mallory, "GET", "/v1/topics/state/state?at=2100-01-01T00:00:00Z&limit=1", "", ""}
	})
}

// manyOwnGroups make groups, each of another name.
func manyOwnGroups(ctx context.Context, a *attackers) {
	var made atomic.Int64
	a.flood(ctx, 8, func(int) request {
		return request{prober, "POST", fmt.Sprintf("/v1/groups/bulk/u.prober.%d:pull", made.Add(1)), `{"wait":"0","max":1}`, "application/json"}
	})
}

// documents are 100 clients that ask for the OpenAPI document.
func documents(ctx context.Context, a *attackers) {
	a.flood(ctx, 100, func(int) request { return request{prober, "GET", "/openapi.json", "", ""} })
}

// flood has n clients make requests, one after the other. Refusals have to say when to try again.
func (a *attackers) flood(ctx context.Context, n int, next func(i int) request) {
	var refused, answered, untold atomic.Int64
	crowd(n, func(i int) {
		c := newClient()
		defer c.CloseIdleConnections()
		for ; ctx.Err() == nil; i++ {
			r := next(i)
			status, header, err := do(ctx, c, a.address, r)
			switch {
			case err != nil: // the end, or a connection that was closed while the body was sent
			case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
				refused.Add(1)
				if header.Get("Retry-After") == "" {
					untold.Add(1)
				}
				pause(ctx, 100*time.Millisecond) // it does not wait as long as it is told
			default:
				answered.Add(1)
			}
		}
	})
	r := next(0)
	a.tell(report{r.method + " " + r.path, answered.Load(), refused.Load(), untold.Load()})
}

// silentSockets open WebSockets that send nothing.
func silentSockets(ctx context.Context, a *attackers) {
	var made atomic.Int64
	crowd(4, func(int) { makeSilent(ctx, a.address, &made) })
	a.tell(report{What: "silent sockets", Answered: made.Load()})
}

// idleConnections are 5,000 connections that ask for nothing, or as many as this process may have.
func idleConnections(ctx context.Context, a *attackers) {
	n := 5_000
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < 8_000 {
		n = int(files.Cur / 4) //nolint:gosec // it is small
	}
	defer a.tell(report{What: "idle connections", Answered: int64(n)})
	crowd(n/100, func(int) {
		var d net.Dialer
		for range 100 {
			if nc, err := d.DialContext(ctx, "tcp", a.address); err == nil {
				defer func() { _ = nc.Close() }()
			}
		}
		pause(ctx, time.Minute)
	})
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// dial connects a WebSocket that reads little ahead.
func (a *attackers) dial(ctx context.Context, as string) (*websocket.Conn, error) {
	ws, _, err := websocket.Dial(ctx, "ws://"+a.address+"/ws", &websocket.DialOptions{ //nolint:bodyclose // an answer that became a WebSocket has no body to close
		Subprotocols: []string{frame.Subprotocol}, HTTPHeader: http.Header{"Authorization": {"Bearer " + as}},
		HTTPClient: &http.Client{Transport: &http.Transport{DialContext: smallBuffer}},
	})
	return ws, err
}
