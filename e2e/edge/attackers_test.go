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
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// attackRole is the process of the attackers. It has the lowest priority, since attackers on other machines would
// not use the processors of the server.
const attackRole = "attackers"

type attackConfig struct {
	Address string
	Names   []string
	Time    time.Duration
	Probe   bool // each attack reads the answer to at least one request
}

// report counts what one kind of attack did.
type report struct {
	What     string
	Made     int64  // requests that the gateway accepted, or that were sent if the attack reads no answers
	Refused  int64  // requests that the gateway refused because of its limits: status 429 or 503
	Rejected int64  // requests that failed for another reason, although the attack does not expect that
	Why      string // the reason for the first of these
	Untold   int64  // refusals without Retry-After
}

// tally is a report that several clients write.
type tally struct {
	sync.Mutex
	report
}

// answered counts an answer. The status expected is no rejection; 0: all statuses of 400 and more are, except for
// those of limits.
func (t *tally) answered(status int, header http.Header, expected int) {
	t.Lock()
	defer t.Unlock()
	switch {
	case isRefusal(status):
		t.Refused++
		if header.Get("Retry-After") == "" {
			t.Untold++
		}
	case status < 400 || status == expected:
		t.Made++
	default:
		t.reject(fmt.Sprintf("status %d", status))
	}
}

func (t *tally) reject(why string) {
	if t.Rejected++; t.Rejected == 1 {
		t.Why = why
	}
}

// sent counts a request whose answer is not read.
func (t *tally) sent() {
	t.Lock()
	defer t.Unlock()
	t.Made++
}

// isRefusal reports whether a status is the answer to a request that exceeds a limit.
func isRefusal(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// attackers are clients of a gateway with few permissions or none.
type attackers struct {
	address string
	probes  bool
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
	a := &attackers{c.Address, c.Probe, func(r report) { p.Tell(r) }}
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
	t := &tally{report: report{What: what}}
	defer func() { a.tell(t.report) }()
	a.probe(ctx, t, func(ctx context.Context) (int, string, error) { return a.subscribe(ctx, frameOf(0, 0)) })
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
				t.sent()
			}
			pause(ctx, time.Minute)
			_ = ws.CloseNow()
		}
	})
}

// probe makes a request of an attack that reads no answers, and reads the answer. If the gateway refuses the request
// because of its limits or closes the connection, it tries again, up to ten times.
func (a *attackers) probe(ctx context.Context, t *tally, try func(ctx context.Context) (status int, why string, err error)) {
	if !a.probes {
		return
	}
	for range 10 {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		status, why, err := try(short)
		cancel()
		t.Lock()
		switch {
		case err != nil:
		case isRefusal(status):
			t.Refused++
		case status != http.StatusOK:
			t.reject(why)
		}
		t.Unlock()
		if err == nil && !isRefusal(status) {
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// subscribe sends a frame on a new connection and reads until the gateway answers it. A code that closes the
// connection for good counts as an answer.
func (a *attackers) subscribe(ctx context.Context, text []byte) (status int, why string, err error) {
	ws, err := a.dial(ctx, mallory)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(1 << 20)
	if err := ws.Write(ctx, websocket.MessageText, text); err != nil {
		return 0, "", err
	}
	for {
		_, answer, err := ws.Read(ctx)
		if code := int(websocket.CloseStatus(err)); frame.Terminal(code) && code != frame.CloseConnections {
			return http.StatusBadRequest, err.Error(), nil
		}
		if err != nil {
			return 0, "", err
		}
		m, err := frame.ParseMessage(answer)
		switch {
		case err != nil:
			return 0, "", err
		case m.Op == frame.OK:
			return http.StatusOK, "", nil
		case m.Op == frame.Err:
			return gateway.Code(m.Code).Status(), string(answer), nil
		}
	}
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

// wideSubscriptions are conflated subscriptions to events whose headers are larger than their payload.
func wideSubscriptions(ctx context.Context, a *attackers) {
	a.deaf(ctx, "conflated subscriptions to large headers", func(_, n int) []byte {
		return fmt.Appendf(nil, `{"op":"SUBSCRIBE","topic":"wide","sub":"%d","opts":{"from":"earliest","slow":"conflate"}}`, n)
	})
}

// liveReaders are 200 event streams and 3,200 subscriptions that wait for the next event and read nothing, and a
// client that publishes large events.
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

// creditedMembers are such members with credit for all events.
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

// deafStreams are 500 event streams that nobody reads.
func deafStreams(ctx context.Context, a *attackers) {
	a.deafRequests(ctx, 500, "/v1/topics/bulk/events?from=earliest", "text/event-stream")
}

// deafSnapshots are 40 clients that ask for the first page of a snapshot of events with large headers, and read nothing.
func deafSnapshots(ctx context.Context, a *attackers) {
	a.deafRequests(ctx, 40, "/v1/topics/wide/snapshot", "application/json")
}

// deafRequests makes n requests at the same time and reads no answer.
func (a *attackers) deafRequests(ctx context.Context, n int, path, accept string) {
	t := &tally{report: report{What: "GET " + path}}
	defer func() { a.tell(t.report) }()
	a.probe(ctx, t, func(ctx context.Context) (int, string, error) { return a.statusOf(ctx, path, accept) })
	crowd(n, func(int) {
		nc, err := smallBuffer(ctx, "tcp", a.address)
		if err != nil {
			return
		}
		defer func() { _ = nc.Close() }()
		if _, err = fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nAccept: %s\r\n\r\n", path, a.address, mallory, accept); err == nil {
			t.sent()
		}
		pause(ctx, time.Minute)
	})
}

// statusOf makes a request of mallory and returns the status of the answer, whose body it does not read.
func (a *attackers) statusOf(ctx context.Context, path, accept string) (status int, why string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.address+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+mallory)
	req.Header.Set("Accept", accept)
	c := newClient()
	defer c.CloseIdleConnections()
	answer, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	return answer.StatusCode, answer.Status, answer.Body.Close()
}

// heavyBatches are 200 clients that publish batches of 8 MiB.
func heavyBatches(ctx context.Context, a *attackers) {
	body := strings.Repeat(`{"payload":"`+strings.Repeat("x", 64<<10)+`"}`+"\n", 120)
	a.flood(ctx, 200, func(int) request {
		return request{writer, "POST", "/v1/topics/bulk?dry_run=1", body, "application/x-ndjson"}
	})
}

// smallElements are 24 clients that publish batches of 8 MiB whose elements are one byte long.
func smallElements(ctx context.Context, a *attackers) {
	body := "[" + strings.Repeat("1,", 4<<20-2) + "1]"
	a.floodExpecting(ctx, http.StatusRequestEntityTooLarge, 24, func(int) request { // too many events
		return request{writer, "POST", "/v1/topics/bulk?dry_run=1", body, "application/cloudevents-batch+json"}
	})
}

// dearEvents are 24 clients that publish events whose validation is expensive.
func dearEvents(ctx context.Context, a *attackers) {
	var requests []request
	for name, of := range dear() {
		requests = append(requests, request{writer, "POST", "/v1/topics/dear." + name, of[1], "application/json"})
	}
	// Most of the events do not match their schema.
	a.floodExpecting(ctx, http.StatusUnprocessableEntity, 24, func(i int) request { return requests[i%len(requests)] })
}

// heavySettlements sends 200 acknowledgements of 0.7 MiB at a time, with far more IDs than allowed.
func heavySettlements(ctx context.Context, a *attackers) {
	body := `{"ack_ids":[` + strings.Repeat(`"",`, 250_000) + `""]}`
	a.floodExpecting(ctx, http.StatusRequestEntityTooLarge, 200, func(int) request {
		return request{mallory, "POST", "/v1/groups/bulk/u.mallory:ack", body, "application/json"}
	})
}

// heavyLookUps are 200 clients that look up a schema of a mebibyte, more than a schema may have.
func heavyLookUps(ctx context.Context, a *attackers) {
	body := `{"schema":"` + strings.Repeat(`[{},{}],`, 125_000) + `"}`
	a.floodExpecting(ctx, http.StatusUnprocessableEntity, 200, func(int) request {
		return request{prober, "POST", "/v1/schemas/subjects/bulk", body, "application/json"}
	})
}

// manySnapshots are 40 clients that request a snapshot with a prefix that no key has, so that the gateway reads the
// whole topic.
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

// manyOwnGroups are 8 clients that make groups, each with another name.
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

// flood runs n clients that make one request after the other. The gateway must not reject them.
func (a *attackers) flood(ctx context.Context, n int, next func(i int) request) {
	a.floodExpecting(ctx, 0, n, next)
}

// floodExpecting is flood for requests that may also fail with one status of 400 or more.
func (a *attackers) floodExpecting(ctx context.Context, status, n int, next func(i int) request) {
	r := next(0)
	t := &tally{report: report{What: r.method + " " + r.path}}
	crowd(n, func(i int) {
		c := newClient()
		defer c.CloseIdleConnections()
		for ; ctx.Err() == nil; i++ {
			got, header, err := do(ctx, c, a.address, next(i))
			if err != nil { // ctx ended, or the gateway closed the connection while the body was sent
				continue
			}
			if t.answered(got, header, status); isRefusal(got) {
				pause(ctx, 100*time.Millisecond) // shorter than Retry-After
			}
		}
	})
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	c := newClient()
	defer c.CloseIdleConnections()
	for tries := 0; a.probes && tries < 10 && t.Made+t.Rejected == 0; tries++ { // during the attack all were refused or too slow
		if got, header, err := do(late, c, a.address, r); err == nil {
			t.answered(got, header, status)
		}
	}
	a.tell(t.report)
}

// silentSockets open WebSockets that send nothing.
func silentSockets(ctx context.Context, a *attackers) {
	var made atomic.Int64
	crowd(4, func(int) { makeSilent(ctx, a.address, &made) })
	a.tell(report{What: "silent sockets", Made: made.Load()})
}

// idleConnections are 5,000 connections without a request, or fewer if the limit of open files is low.
func idleConnections(ctx context.Context, a *attackers) {
	n := 5_000
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < 8_000 {
		n = int(files.Cur / 4) //nolint:gosec // it is small
	}
	t := &tally{report: report{What: "idle connections"}}
	defer func() { a.tell(t.report) }()
	crowd(n/100, func(int) {
		var d net.Dialer
		for range 100 {
			if nc, err := d.DialContext(ctx, "tcp", a.address); err == nil {
				defer func() { _ = nc.Close() }()
				t.sent()
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

// dial connects a WebSocket whose system buffers little that is not read.
func (a *attackers) dial(ctx context.Context, as string) (*websocket.Conn, error) {
	ws, _, err := websocket.Dial(ctx, "ws://"+a.address+"/ws", &websocket.DialOptions{ //nolint:bodyclose // an answer that became a WebSocket has no body to close
		Subprotocols: []string{frame.Subprotocol}, HTTPHeader: http.Header{"Authorization": {"Bearer " + as}},
		HTTPClient: &http.Client{Transport: &http.Transport{DialContext: smallBuffer}},
	})
	return ws, err
}
