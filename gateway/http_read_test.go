package gateway_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
)

// sse is an event of a stream, or a block without one.
type sse struct {
	event, id, data, retry string
	comment                bool
}

// sseClient reads a stream.
type sseClient struct {
	r      *wsRig
	blocks chan sse // closed at the end
	header http.Header
	stop   context.CancelFunc
}

// events opens the stream of a topic.
func (r *wsRig) events(path string, header ...string) *sseClient {
	r.Helper()
	return r.eventsBy(r.client(), path, header...)
}

func (r *wsRig) eventsBy(client *http.Client, path string, header ...string) *sseClient {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	res, err := client.Do(r.request("GET", path, "", append(header, "Accept", "text/event-stream")...).WithContext(ctx))
	if err != nil {
		r.Fatal(err)
	}
	if res.StatusCode != 200 {
		r.Fatalf("status %d", res.StatusCode)
	}
	c := &sseClient{r: r, blocks: make(chan sse, 10_000), header: res.Header, stop: cancel}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer func() { _ = res.Body.Close() }()
		c.read(bufio.NewScanner(res.Body))
	})
	r.Cleanup(func() {
		cancel()
		reading.Wait()
	})
	return c
}

func (c *sseClient) read(lines *bufio.Scanner) {
	defer close(c.blocks)
	var b sse
	var data []string
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case lines.Text() == "":
			b.data = strings.Join(data, "\n")
			c.blocks <- b
			b, data = sse{}, nil
		case name == "":
			b.comment = true
		case name == "event":
			b.event = value
		case name == "id":
			b.id = value
		case name == "retry":
			b.retry = value
		case name == "data":
			data = append(data, value)
		}
	}
}

// block is the next block.
func (c *sseClient) block() sse {
	c.r.Helper()
	select {
	case b, ok := <-c.blocks:
		if !ok {
			c.r.Fatal("the stream is over")
		}
		return b
	case <-time.After(patience):
		c.r.Fatal("nothing came")
	}
	return sse{}
}

// next is the next block that is no heartbeat, which must be of that event.
func (c *sseClient) next(event string) sse {
	c.r.Helper()
	for {
		b := c.block()
		if b.comment || b.event == "" && b.retry == "" {
			continue
		}
		if b.event != event {
			c.r.Fatalf("%+v came, not %s", b, event)
		}
		return b
	}
}

func TestEventStream(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1", "{\n\"a\":\r\n 2,\r\"b\": 1.0}")
		c := r.events(ordersPath + "/events?from=earliest")
		if c.header.Get("Content-Type") != "text/event-stream" || c.header.Get("X-Accel-Buffering") != "no" {
			r.Errorf("%v", c.header)
		}
		if b := c.block(); b.retry != "2000" {
			r.Errorf("%+v", b)
		}
		one, two := c.next("event"), c.next("event")
		if got := object(r.T, one.data); got["offset"] != one.id || got["seq"] != 1.0 || got["event"].(map[string]any)["payload"] != 1.0 {
			r.Errorf("%v", got)
		}
		if got := object(r.T, two.data); fmt.Sprint(got["event"].(map[string]any)["payload"]) != "map[a:2 b:1]" {
			r.Errorf("%v", got)
		}
		if b := c.next("caught_up"); b.id != two.id || object(r.T, b.data)["seq"] != 2.0 {
			r.Errorf("%+v", b)
		}
		r.publish("orders", "3")
		three := c.next("event")
		if b := c.block(); !b.comment { // 15 seconds later
			r.Errorf("%+v is no heartbeat", b)
		}
		c.stop()
		r.publish("orders", "4")

		c = r.events(ordersPath+"/events?from=earliest&after="+one.id, "Last-Event-ID", three.id)
		c.block()
		if got := object(r.T, c.next("event").data); got["seq"] != 4.0 {
			r.Errorf("%v", got)
		}
		c.next("caught_up")

		c = r.events(ordersPath + "/events") // what comes from now on
		c.block()
		c.next("caught_up")
	})
}

// TestEventStreamFromFuture sends nothing that is stored before the time to start at, also to a
// client that connects again or polls.
func TestEventStreamFromFuture(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1")
		at := time.Now().Add(20 * time.Second)
		path := fmt.Sprintf("%s/events?from=ts&ts=%d", ordersPath, at.UnixMilli())
		c := r.events(path)
		c.block()
		start := c.next("caught_up")
		r.publish("orders", "2")
		again := r.events(path, "Last-Event-ID", start.id)
		again.block()
		again.next("caught_up")
		r.publish("orders", "3")
		polled := make(chan any, 1)
		go func() {
			res, err := r.client().Do(r.request("GET", path+"&wait=25s", ""))
			if err != nil {
				polled <- err
				return
			}
			defer func() { _ = res.Body.Close() }()
			text, err := io.ReadAll(res.Body)
			polled <- cmp.Or[any](err, string(text))
		}()
		time.Sleep(time.Until(at))
		r.publish("orders", "4")
		for _, c := range []*sseClient{c, again} {
			if got := object(r.T, c.next("event").data); got["seq"] != 4.0 {
				r.Errorf("%v is sent first", got)
			}
		}
		if got := fmt.Sprint(<-polled); !strings.Contains(got, `"seq":4`) || strings.Contains(got, `"seq":2`) || strings.Contains(got, `"seq":3`) {
			r.Errorf("a poll is answered with %s", got)
		}
	})
}

// TestEventStreamFilter: a client learns how far its filter was read.
func TestEventStreamFilter(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.events(ordersPath + "/events?key=k")
		c.block()
		start := c.next("caught_up")
		r.publish("orders", "1", "2")
		b := c.block()
		for b.comment {
			b = c.block()
		}
		if b.id == "" || b.id == start.id || b.event != "" || b.data != "" {
			r.Errorf("%+v", b)
		}
		if b := c.block(); !b.comment {
			r.Errorf("%+v", b)
		}
		if _, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "orders", Key: "k", Payload: []byte("3")}); err != nil {
			r.Fatal(err)
		}
		if got := object(r.T, c.next("event").data); got["seq"] != 3.0 {
			r.Errorf("%v", got)
		}
	})
}

// TestEventStreamGap: a client whose place is gone is told so.
func TestEventStreamGap(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "short", MaxEvents: 2})
		r.publish("short", "1")
		const path = "/v1/topics/short/events"
		c := r.events(path + "?from=earliest")
		c.block()
		first := c.next("event")
		c.stop()
		r.publish("short", "2", "3", "4")
		c = r.events(path, "Last-Event-ID", first.id)
		c.block()
		if b := c.next("gap"); b.data != `{"from":2,"to":2,"reason":"retention"}` || b.id != "" {
			r.Errorf("%+v", b)
		}
		if got := object(r.T, c.next("event").data); got["seq"] != 3.0 {
			r.Errorf("%v", got)
		}
		c.stop()
		if err := r.bus.DeleteTopic(r.Context(), "short"); err != nil {
			r.Fatal(err)
		}
		r.do("GET", path, "", "Last-Event-ID", first.id).refused(gateway.CodeUnknownTopic)
		time.Sleep(time.Second)
		r.ensure(jetbus.TopicConfig{Name: "short"})
		r.publish("short", "5")
		c = r.events(path, "Last-Event-ID", first.id)
		c.block()
		if got := object(r.T, c.next("gap").data); got["reason"] != "reset" {
			r.Errorf("%v", got)
		}
		if got := object(r.T, c.next("event").data); got["seq"] != 1.0 {
			r.Errorf("%v", got)
		}
	})
}

func TestEventStreamEnds(t *testing.T) {
	ends := func(c *sseClient) (last sse) {
		for b := range c.blocks {
			last = b
		}
		return last
	}
	inBubble(t, withTokens(), func(r *wsRig) {
		end := time.Now().Add(time.Minute).Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
		began := time.Now()
		ends(r.events(ordersPath+"/events", "Authorization", fmt.Sprintf("Bearer ann topic:read:>~%v", end)))
		if took := time.Since(began); took < 50*time.Second || took > 70*time.Second {
			r.Errorf("the stream of a token of a minute took %v", took)
		}
		c := r.events(ordersPath+"/events", "Authorization", "Bearer ann topic:read:>")
		c.block()
		c.next("caught_up")
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		if err := r.g.Drain(ctx); err != nil {
			r.Error(err)
		}
		if b := ends(c); b.retry == "" || b.retry == "2000" {
			r.Errorf("%+v", b)
		}
		r.do("GET", ordersPath+"/events", "", "Authorization", "Bearer ann topic:read:>").refused(gateway.CodeDraining)
	})
}

func TestPoll(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", `{"n": 1.0}`, "2", "3")
		var got struct {
			Events []struct {
				Event  jetbus.Event
				Offset string
				Seq    uint64
			}
			Next string
			Gap  *struct{ Reason string }
		}
		poll := func(query string) string {
			r.Helper()
			res := r.do("GET", ordersPath+"/events?"+query, "")
			res.is(200)
			got.Events = nil
			res.into(&got)
			if res.header.Get("X-Next") != got.Next {
				r.Errorf("%v", res.header)
			}
			var text strings.Builder
			for _, e := range got.Events {
				text.WriteString(string(e.Event.Payload) + " ")
			}
			return text.String()
		}
		if text := poll("from=earliest&limit=2"); text != `{"n": 1.0} 2 ` || got.Next != got.Events[1].Offset {
			r.Errorf("%s, next %s", text, got.Next)
		}
		if text := poll("after=" + got.Next + "&limit=2"); text != "3 " {
			r.Errorf("%s", text)
		}
		began := time.Now()
		if text := poll("after=" + got.Next + "&wait=20s"); text != "" || time.Since(began) != 20*time.Second {
			r.Errorf("%s after %v", text, time.Since(began))
		}
		if text := poll("wait=1000"); text != "" || time.Since(began) != 21*time.Second {
			r.Errorf("%s after %v", text, time.Since(began))
		}
		if poll("wait=10h"); time.Since(began) != 21*time.Second+time.Minute {
			r.Errorf("a wait of 10 hours took %v", time.Since(began))
		}
		time.AfterFunc(5*time.Second, func() { r.publish("orders", "4") })
		if text := poll("after=" + got.Next + "&wait=20s"); text != "4 " {
			r.Errorf("%s", text)
		}
		if text := poll("from=afterSeq&afterSeq=2&limit=10"); text != "3 4 " {
			r.Errorf("%s", text)
		}
		if text := poll("from=earliest&key=none&limit=10"); text != "" || got.Next == "" {
			r.Errorf("%s", text)
		}
		for query, want := range map[string]gateway.Code{
			"after=x&limit=1": gateway.CodeBadRequest, "limit=0": gateway.CodeBadRequest, "limit=x": gateway.CodeBadRequest, "wait=x": gateway.CodeBadRequest, "wait=-1s": gateway.CodeBadRequest,
			"from=middle&limit=1": gateway.CodeBadRequest, "from=ts&limit=1": gateway.CodeBadRequest, "from=ts&ts=x&limit=1": gateway.CodeBadRequest, "from=afterSeq&afterSeq=-1&limit=1": gateway.CodeBadRequest,
			"from=afterId&afterId=none&limit=1": gateway.CodeOffsetGone, "key=a&keyPrefix=b&limit=1": gateway.CodeBadRequest,
		} {
			if r.do("GET", ordersPath+"/events?"+query, "").refused(want) == nil {
				r.Errorf("%s", query)
			}
		}
		r.do("GET", "/v1/topics/none/events?limit=1", "").refused(gateway.CodeUnknownTopic)
		r.do("GET", "/v1/topics/none/events", "").refused(gateway.CodeUnknownTopic)
	})
}

// TestPollBounds: an answer has as many bytes as it may, and one event at least.
func TestPollBounds(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{QueueBytes: 4 << 10, PageEvents: 3, PerPrincipal: 1}}, func(r *wsRig) {
		big := `"` + strings.Repeat("x", 8<<10) + `"`
		r.publish("orders", big, big, "3", "4", "5", "6")
		n := func(query string) int {
			return len(r.do("GET", ordersPath+"/events?"+query, "").is(200)["events"].([]any))
		}
		if got := n("from=earliest&limit=100"); got != 1 {
			r.Errorf("%d events", got)
		}
		if got := n("from=afterSeq&afterSeq=2&limit=100"); got != 3 {
			r.Errorf("%d events", got)
		}
		c := r.events(ordersPath + "/events")
		c.block()
		r.do("GET", ordersPath+"/events?limit=1", "").refused(gateway.CodeRateLimited)
	})
}

// TestEventStreamOverHTTP2: a stream on which nothing comes for longer than a write may take
// goes on, over HTTP/2 too, where a deadline that has passed would end it.
func TestEventStreamOverHTTP2(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{WriteTimeout: time.Second}}, func(r *wsRig) {
		c := r.eventsBy(r.client2(), ordersPath+"/events?from=earliest")
		c.block() // when to connect again
		c.next("caught_up")
		if b := c.block(); !b.comment { // 15 seconds later
			r.Errorf("%+v is no heartbeat", b)
		}
		time.Sleep(5 * time.Second)
		r.publish("orders", "1")
		c.next("event")
		c.stop()
	})
}

func TestReadNeedsScope(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.do("GET", ordersPath+"/events", "").refused(gateway.CodeUnauthorized)
		r.do("GET", ordersPath+"/events", "", "Authorization", "Bearer ann topic:write:>").refused(gateway.CodeForbidden)
		r.do("GET", "/v1/topics/dlq.orders/events", "", "Authorization", "Bearer ann topic:read:>").refused(gateway.CodeForbidden)
		r.do("GET", "/v1/topics/>/events", "", "Authorization", "Bearer ann topic:read:>").refused(gateway.CodeBadRequest)
	})
}

// TestEventStreamStalls: a client that does not read is closed.
func TestEventStreamStalls(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{PerPrincipal: 1}}, func(r *wsRig) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		res, err := r.client().Do(r.request("GET", ordersPath+"/events", "", "Accept", "text/event-stream").WithContext(ctx))
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		r.do("GET", ordersPath+"/events?limit=1", "").refused(gateway.CodeRateLimited)
		for range 4 {
			r.publish("orders", `"`+strings.Repeat("x", 64<<10)+`"`)
		}
		time.Sleep(time.Minute)
		r.do("GET", ordersPath+"/events?limit=1", "").is(200)
	})
}

// TestAnswerStalls: a client that does not read its answer is closed, and neither others nor
// Drain wait for it.
func TestAnswerStalls(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{PerPrincipal: 1}}, func(r *wsRig) {
		r.publish("orders", `"`+strings.Repeat("x", 512<<10)+`"`)
		stall := func() {
			res, err := r.client().Do(r.request("GET", ordersPath+"/events?from=earliest&limit=1", ""))
			if err != nil {
				r.Fatal(err)
			}
			r.Cleanup(func() { _ = res.Body.Close() })
		}
		stall()
		r.do("GET", ordersPath+"/events?limit=1", "").refused(gateway.CodeRateLimited)
		time.Sleep(time.Minute)
		r.do("GET", ordersPath+"/events?from=earliest&limit=1", "").is(200)
		stall()
		ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if err := r.g.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			r.Errorf("Drain: %v", err)
		}
		if took := time.Since(began); took > 15*time.Second {
			r.Errorf("Drain took %v", took)
		}
	})
}

// pollPage is the answer to a poll.
type pollPage struct {
	Events []struct{ Seq uint64 }
	Next   string
	Gap    *struct {
		From, To uint64
		Reason   string
	}
}

// pollShort reads the topic "short" once.
func (r *wsRig) pollShort(query string) string {
	r.Helper()
	var p pollPage
	res := r.do("GET", "/v1/topics/short/events?limit=100&"+query, "")
	res.is(200)
	res.into(&p)
	out := "gap"
	if p.Gap != nil {
		out = fmt.Sprintf("gap %d-%d %s", p.Gap.From, p.Gap.To, p.Gap.Reason)
	}
	return fmt.Sprintf("%s, events %v, %s", out, p.Events, p.Next)
}

// hasty has a topic of four events: while the first of them is read, retention takes the others
// for five new ones.
func (r *wsRig) hasty(payloads ...string) {
	r.Helper()
	r.ensure(jetbus.TopicConfig{Name: "short", MaxEvents: 4})
	r.publish("short", payloads...)
	r.serveBus(&hastyBus{Backend: r.bus, took: func() { r.publish("short", "new", "new", "new", "new", "new") }}, gateway.Config{})
}

// TestRetentionTakesTheBacklogOfPolls: an answer tells what was gone when it was made, and the
// next one what is gone since. One that knows of two holes ends before the second.
func TestRetentionTakesTheBacklogOfPolls(t *testing.T) {
	for _, c := range []struct {
		stored      int
		query       string
		first, next string
	}{
		{4, "from=earliest", "gap 2-4 retention, events [{1}], ", "gap 5-5 retention, events [{6} {7} {8} {9}], "},
		{5, "from=afterSeq&afterSeq=0", "gap 1-1 retention, events [{2}], ", "gap 3-6 retention, events [{7} {8} {9} {10}], "},
		{5, "from=earliest&keyPrefix=no", "gap 3-5 retention, events [], ", "gap 6-6 retention, events [{7} {8} {9} {10}], "},
	} {
		inBubble(t, gateway.Config{}, func(r *wsRig) {
			r.hasty(strings.Split("12345"[:c.stored], "")...)
			got := r.pollShort(c.query)
			at := strings.LastIndexByte(got, ' ')
			if got[:at+1] != c.first {
				r.Errorf("%s: %s, want %s", c.query, got, c.first)
			}
			if got := r.pollShort("after=" + got[at+1:]); !strings.HasPrefix(got, c.next) {
				r.Errorf("%s: then %s, want %s", c.query, got, c.next)
			}
		})
	}
}

// TestRetentionTakesTheBacklogOfStreams: so does a stream.
func TestRetentionTakesTheBacklogOfStreams(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.hasty("1", "2", "3", "4")
		c := r.events("/v1/topics/short/events?from=earliest")
		c.block()
		c.next("event")
		if b := c.next("gap"); b.data != `{"from":2,"to":4,"reason":"retention"}` {
			r.Errorf("%+v", b)
		}
		if got := object(r.T, c.next("caught_up").data); got["seq"] != 4.0 {
			r.Errorf("%v", got)
		}
		if b := c.next("gap"); b.data != `{"from":5,"to":5,"reason":"retention"}` {
			r.Errorf("%+v", b)
		}
		if got := object(r.T, c.next("event").data); got["seq"] != 6.0 {
			r.Errorf("%v", got)
		}
	})
}

// TestPositionNotReachedOverHTTP: a position that the topic has not reached is none.
func TestPositionNotReachedOverHTTP(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1", "2")
		next := r.do("GET", ordersPath+"/events?from=afterSeq&afterSeq=2&limit=1", "").is(200)["next"].(string)
		raw, err := base64.RawURLEncoding.DecodeString(next)
		if err != nil {
			r.Fatal(err)
		}
		raw[16]++ // the sequence
		for _, query := range []string{"from=afterSeq&afterSeq=3", "after=" + base64.RawURLEncoding.EncodeToString(raw)} {
			r.do("GET", ordersPath+"/events?limit=1&"+query, "").refused(gateway.CodeOffsetGone)
			r.do("GET", ordersPath+"/events?"+query, "", "Accept", "text/event-stream").refused(gateway.CodeOffsetGone)
		}
	})
}
