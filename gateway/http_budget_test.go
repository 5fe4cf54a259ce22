package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// gatedBus is a bus that does nothing that costs much until it may.
type gatedBus struct {
	jetbus.Backend
	asked chan string   // what it was asked for; has room for all
	may   chan struct{} // closed when it may go on
	keys  []int         // of each LatestByKey
}

func newGatedBus(b jetbus.Backend) *gatedBus {
	return &gatedBus{Backend: b, asked: make(chan string, 100), may: make(chan struct{})}
}

func (b *gatedBus) wait(ctx context.Context, what string) {
	b.asked <- what
	select {
	case <-b.may:
	case <-ctx.Done():
	}
}

// PublishBatch implements jetbus.Batcher.
func (b *gatedBus) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	b.wait(ctx, "batch")
	return b.Backend.PublishBatch(ctx, events, o)
}

// ScanLatest implements jetbus.StateStore.
func (b *gatedBus) ScanLatest(ctx context.Context, topic string, q jetbus.LatestQuery, each func(jetbus.Event) error) (uint64, error) {
	b.wait(ctx, "snapshot")
	return b.Backend.ScanLatest(ctx, topic, q, each)
}

// StateAt implements jetbus.StateStore.
func (b *gatedBus) StateAt(ctx context.Context, topic string, at time.Time) (jetbus.State, error) {
	b.wait(ctx, "state")
	return b.Backend.StateAt(ctx, topic, at)
}

// ListTopics implements jetbus.Topics.
func (b *gatedBus) ListTopics(ctx context.Context) ([]jetbus.TopicInfo, error) {
	b.wait(ctx, "topics")
	return b.Backend.ListTopics(ctx)
}

// LatestByKey implements jetbus.StateStore.
func (b *gatedBus) LatestByKey(ctx context.Context, topic string, keys ...string) (map[string]jetbus.Event, error) {
	b.keys = append(b.keys, len(keys))
	return b.Backend.LatestByKey(ctx, topic, keys...)
}

// Cursor implements jetbus.Cursors.
func (b *gatedBus) Cursor(ctx context.Context, topic, group string) (jetbus.Cursor, error) {
	b.wait(ctx, "cursor")
	return b.Backend.Cursor(ctx, topic, group)
}

// refusedOver fails unless the answer is that refusal, and says when to come back.
func (p reply) refusedOver(code gateway.Code) {
	p.r.Helper()
	p.refused(code)
	if p.header.Get("Retry-After") != "1" {
		p.r.Errorf("Retry-After is %q", p.header.Get("Retry-After"))
	}
}

const (
	ann = "Bearer ann topic:read:> topic:write:> group:join:> schema:read:> schema:write:>"
	bob = "Bearer bob topic:read:> topic:write:> group:join:> schema:read:> schema:write:>"
	eve = "Bearer eve topic:read:> topic:write:> group:join:> schema:read:> schema:write:>"
)

// A crowd is requests that are under way at a gated bus.
type crowd struct {
	r     *wsRig
	bus   *gatedBus
	under sync.WaitGroup
}

// add makes a request that gets stuck at the bus.
func (c *crowd) add(method, path, body string, header ...string) {
	c.r.Helper()
	c.under.Go(func() { c.r.do(method, path, body, header...).is(200) })
	select {
	case <-c.bus.asked:
	case <-time.After(patience):
		c.r.Fatalf("%s %s is not let in", method, path)
	}
}

// end lets all of them end.
func (c *crowd) end() {
	close(c.bus.may)
	c.under.Wait()
}

// TestBodiesAreBounded: of batches that are under way a subject and the process hold so many bytes, and
// a small event goes through all the same.
func TestBodiesAreBounded(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = gateway.Limits{Bytes: 1 << 20, BytesPerPrincipal: 512 << 10}
		bus := newGatedBus(r.bus)
		r.serveBus(bus, c)
		crowd := &crowd{r: r, bus: bus}
		line := `{"payload":"` + strings.Repeat("x", 200<<10) + `"}` // counts for twice as much
		ndjson := []string{"Content-Type", "application/x-ndjson", "Authorization"}
		crowd.add("POST", ordersPath, line, append(ndjson, ann)...)
		began := time.Now()
		r.do("POST", ordersPath, line, append(ndjson, ann)...).refusedOver(gateway.CodeRateLimited)
		if waited := time.Since(began); waited < time.Second || waited > 10*time.Second {
			r.Errorf("it waited in line for %v", waited)
		}
		crowd.add("POST", ordersPath, line, append(ndjson, bob)...)
		r.do("POST", ordersPath, line, append(ndjson, eve)...).refusedOver(gateway.CodeOverloaded)
		r.do("POST", ordersPath, `1`, "Authorization", eve).is(201)
		r.do("POST", ordersPath, `2`, "Authorization", ann).is(201)
		crowd.end()
		for range 5 {
			r.do("POST", ordersPath, line, append(ndjson, ann)...).is(200)
		}
	})
}

// TestBodiesCountAsTheyArrive: a body counts for what has arrived of it, whether or not its length is known.
func TestBodiesCountAsTheyArrive(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = gateway.Limits{BytesPerPrincipal: 512 << 10, FrameBytes: 200 << 10}
		r.serve(c)
		big := `"` + strings.Repeat("x", 100<<10) + `"` // counts for twice as much
		for _, length := range [][]string{{"Content-Length", strconv.Itoa(len(big))}, {"Transfer-Encoding", "chunked"}} {
			raw := r.unfinished("POST", ordersPath, "", append(length, "Authorization", ann, "Content-Type", "application/json")...)
			send := func(text string) {
				if length[1] == "chunked" {
					text = fmt.Sprintf("%x\r\n%s\r\n", len(text), text)
				}
				if _, err := raw.Write([]byte(text)); err != nil {
					r.Fatal(err)
				}
				synctest.Wait()
			}
			r.do("POST", ordersPath, `"`+strings.Repeat("x", 180<<10)+`"`, "Authorization", ann).is(201)
			send(big[:90<<10])
			r.do("POST", ordersPath, `"`+strings.Repeat("x", 180<<10)+`"`, "Authorization", ann).refusedOver(gateway.CodeRateLimited)
			r.do("POST", ordersPath, `1`, "Authorization", ann).is(201)
			send(big[90<<10:])
			if length[1] == "chunked" {
				send("")
			}
			if status, _, _ := r.answered(raw); status != 201 {
				r.Errorf("%v: status %d", length, status)
			}
			r.do("POST", ordersPath, big, "Authorization", ann).is(201)
		}
	})
}

// TestScansAreBounded: whatever goes through a topic has a few places, for a subject and in all.
func TestScansAreBounded(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		r.set("state", "a=1")
		c := withTokens()
		c.Limits = gateway.Limits{ScansPerPrincipal: 1, Scans: 2}
		bus := newGatedBus(r.bus)
		r.serveBus(bus, c)
		crowd := &crowd{r: r, bus: bus}
		crowd.add("GET", statePath+"/snapshot", "", "Authorization", ann)
		paths := []string{statePath + "/snapshot", statePath + "/snapshot?key=a", statePath + "/state?at=2100-01-01T00:00:00Z", "/openapi.json", "/asyncapi.json"}
		for _, path := range paths {
			r.do("GET", path, "", "Authorization", ann).refusedOver(gateway.CodeRateLimited)
		}
		crowd.add("GET", statePath+"/state?at=2100-01-01T00:00:00Z", "", "Authorization", bob)
		for _, path := range paths {
			r.do("GET", path, "", "Authorization", eve).refusedOver(gateway.CodeOverloaded)
		}
		r.do("POST", ordersPath, `1`, "Authorization", ann).is(201)
		crowd.end()
		for _, path := range paths {
			r.do("GET", path, "", "Authorization", ann).is(200)
		}
	})
}

// TestExpensiveRequestsAreRated: a document counts for 100 requests of the rate, and a state for one more for each 64 KiB of its topic.
func TestExpensiveRequestsAreRated(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{Rate: 10, Burst: 250}
	inBubble(t, c, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		for i := range 20 {
			r.set("state", fmt.Sprintf(`%d="%s"`, i, strings.Repeat("x", 1000<<10)))
		}
		state := statePath + "/state?limit=1&at=2100-01-01T00:00:00Z" // of 20 MB: 312 more
		for _, one := range []struct {
			path   string
			served int
		}{
			{"/openapi.json", 2},
			{"/asyncapi.json", 2},
			{state, 1},
		} {
			time.Sleep(time.Minute) // the bucket is full again
			for i := range 5 {
				a := r.do("GET", one.path, "", "Authorization", ann)
				if i < one.served {
					a.is(200)
				} else if a.is(429); a.header.Get("Retry-After") == "" {
					r.Errorf("%s has no Retry-After", one.path)
				}
			}
		}
	})
}

// TestCallsAreBounded: acknowledgements, look-ups of schemas and what else asks the broker have places,
// and an answer that comes frees one.
func TestCallsAreBounded(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = gateway.Limits{CallsPerPrincipal: 1, Calls: 2}
		bus := newGatedBus(r.bus)
		c.Schemas = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { bus.wait(req.Context(), "schema") })
		r.serveBus(bus, c)
		crowd := &crowd{r: r, bus: bus}
		crowd.add("GET", "/v1/schemas/subjects", "", "Authorization", ann)
		calls := [][2]string{
			{"POST", "/v1/groups/orders/g:ack"},
			{"GET", "/v1/schemas/subjects"},
			{"GET", "/v1/topics"},
			{"GET", "/v1/topics/orders"},
			{"GET", "/v1/groups/orders"},
			{"GET", "/v1/groups/orders/g"},
			{"GET", ordersPath + "/snapshot/k"},
		}
		for _, call := range calls {
			r.do(call[0], call[1], "", "Authorization", ann).refusedOver(gateway.CodeRateLimited)
		}
		crowd.add("GET", "/v1/topics", "", "Authorization", bob)
		for _, call := range calls {
			r.do(call[0], call[1], "", "Authorization", eve).refusedOver(gateway.CodeOverloaded)
		}
		crowd.end()
		r.do("POST", "/v1/groups/orders/g:ack", `{"ack_ids":["x"]}`, "Authorization", ann).is(200)
	})
}

// TestCursorsAreCalls: a CURSOR frame draws on the requests of its subject.
func TestCursorsAreCalls(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = gateway.Limits{CallsPerPrincipal: 1}
		bus := newGatedBus(r.bus)
		r.serveBus(bus, c)
		ws := r.dial("Authorization", ann)
		ws.next(frame.Hello)
		for range 2 {
			ws.send(`{"op":"CURSOR","topic":"orders","group":"g"}`)
		}
		if m := ws.next(frame.Err); m.Code != string(gateway.CodeRateLimited) || m.RetryAfterMs != 1000 {
			r.Errorf("%+v", m)
		}
		r.do("GET", "/v1/topics/orders", "", "Authorization", ann).refusedOver(gateway.CodeRateLimited)
		r.do("GET", "/v1/topics/orders", "", "Authorization", bob).is(200)
		close(bus.may)
		if m := ws.next(frame.Err); m.Code != string(gateway.CodeUnknownGroup) {
			r.Errorf("%+v", m)
		}
		r.do("GET", "/v1/topics/orders", "", "Authorization", ann).is(200)
	})
}

// TestLargestBatch: with the default limits the largest batch is accepted, also if its length is not known.
func TestLargestBatch(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		body := strings.Repeat(`{"payload":"`+strings.Repeat("x", 64<<10)+"\"}\n", 120)
		for _, length := range []int64{int64(len(body)), -1} {
			req := r.request("POST", ordersPath+"?dry_run=1", body, "Authorization", ann, "Content-Type", "application/x-ndjson")
			req.ContentLength = length
			res, err := r.client().Do(req)
			if err != nil {
				r.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				r.Errorf("length %d: %s", length, res.Status)
			}
		}
	})
}

// TestSubscribesAreCalls: a SUBSCRIBE frame draws on the requests of its subject while the subscription begins.
func TestSubscribesAreCalls(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = gateway.Limits{CallsPerPrincipal: 1}
		bus := newGatedBus(r.bus)
		r.serveBus(bus, c)
		busy, ws, other := r.dial("Authorization", ann), r.dial("Authorization", ann), r.dial("Authorization", bob)
		for _, c := range []*wsClient{busy, ws, other} {
			c.next(frame.Hello)
		}
		busy.send(`{"op":"CURSOR","topic":"orders","group":"g"}`)
		<-bus.asked
		const subscribe = `{"op":"SUBSCRIBE","topic":"orders","sub":"s"}`
		if m := ws.ask(subscribe, frame.Err); m.Code != string(gateway.CodeRateLimited) || m.RetryAfterMs != 1000 {
			r.Errorf("%+v", m)
		}
		other.ask(subscribe, frame.OK)
		close(bus.may)
		busy.next(frame.Err)
		ws.ask(subscribe, frame.OK)
		r.do("GET", "/v1/topics/orders", "", "Authorization", ann).is(200)
	})
}

// TestStateOfLargeTopic: a state is made in memory, so that a topic that is larger than that has none.
func TestStateOfLargeTopic(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{Bytes: 1 << 20, QueueBytes: 64 << 10}}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		big := `"` + strings.Repeat("x", 100<<10) + `"` // four times as much counts
		r.set("state", "a="+big, "b="+big)
		r.do("GET", statePath+"/state?at=2100-01-01T00:00:00Z&limit=1", "").is(200)
		r.set("state", "c="+big, "d="+big)
		r.do("GET", statePath+"/state?at=2100-01-01T00:00:00Z", "").refused(gateway.CodeTooLarge)
		if got := r.do("GET", statePath+"/snapshot?prefix=a", "").is(200); len(got["events"].([]any)) != 1 {
			r.Errorf("%v", got)
		}
	})
}

// TestKeysAreReadInSteps: of large events few are read before the answer is refused.
func TestKeysAreReadInSteps(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{QueueBytes: 64 << 10}}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		big := `"` + strings.Repeat("x", 40<<10) + `"`
		query := url.Values{"key": strings.Fields("a b c d e f g h i j")}
		for _, key := range query["key"] {
			r.set("state", key+"="+big)
		}
		bus := newGatedBus(r.bus)
		r.serveBus(bus, gateway.Config{Limits: gateway.Limits{QueueBytes: 64 << 10}})
		r.do("GET", statePath+"/snapshot?"+query.Encode(), "").refused(gateway.CodeTooLarge)
		if len(bus.keys) != 2 || bus.keys[0] != 1 || bus.keys[1] != 2 {
			r.Errorf("keys were read by %v", bus.keys)
		}
	})
}

// TestDocumentsWithoutTokenAreRare: they have a rate, by the client's address.
func TestDocumentsWithoutTokenAreRare(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		var last reply
		for range 60 {
			if last = r.do("GET", "/openapi.json", ""); last.status != 200 {
				break
			}
		}
		last.refusedOver(gateway.CodeRateLimited)
		r.do("GET", "/openapi.json", "", "Authorization", ann).is(200)
		time.Sleep(time.Second)
		r.do("GET", "/asyncapi.json", "").is(200)
	})
}

// TestListsAreCharged: a list is charged before it is built, until it is written.
func TestListsAreCharged(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = gateway.Limits{BytesPerPrincipal: 2 << 20} // one page
		bus := newGatedBus(r.bus)
		r.serveBus(bus, c)
		crowd := &crowd{r: r, bus: bus}
		crowd.add("GET", "/v1/topics", "", "Authorization", ann)
		r.do("GET", "/v1/groups/orders", "", "Authorization", ann).refusedOver(gateway.CodeRateLimited)
		r.do("GET", "/v1/groups/orders", "", "Authorization", bob).is(200)
		crowd.end()
		r.do("GET", "/v1/topics", "", "Authorization", ann).is(200)
	})
}
