package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/partition"
)

const partitionsPath = "/v1/groups/spread/billing/partitions"

// withPartitions serves the bus with tokens and the partitions of groups, and declares a topic that has some.
func (r *wsRig) withPartitions() {
	r.Helper()
	r.ensure(jetbus.TopicConfig{Name: "spread", Partitions: 4})
	c := withTokens()
	c.PartitionsOf = func(ctx context.Context, topic, group string) ([]jetbus.PartitionStatus, error) {
		return partition.Status(ctx, r.bus, "", topic, group)
	}
	r.serve(c)
}

// partitionMember joins the group billing of the topic spread.
func (r *wsRig) partitionMember(id string) *partition.Subscription {
	r.Helper()
	s, err := partition.Subscribe(r.Context(), r.bus, "spread", "billing", func(context.Context, *jetbus.Delivery) error { return nil },
		partition.SubscribeOptions{Member: id, Meta: map[string]string{"host": "host of " + id}})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			r.Error(err)
		}
	})
	return s
}

// TestPartitionsOverHTTP: the path returns the owner of each partition while members join and leave, and after the topic grows.
func TestPartitionsOverHTTP(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.withPartitions()
		agree := func(when string, newest, each int, members ...*partition.Subscription) {
			t.Helper()
			time.Sleep(20 * time.Second)
			var body struct {
				Partitions []jetbus.PartitionStatus
				Next       string
			}
			get := r.do("GET", partitionsPath, "", "Authorization", ops)
			get.is(200)
			get.into(&body)
			has := map[string][]jetbus.Partition{}
			for _, p := range body.Partitions {
				if p.Generation == newest && (!p.Owned || p.Epoch == 0 || p.Meta["host"] != "host of "+p.Member || p.LagEvents != 0) || p.Owned && p.Generation != newest {
					t.Errorf("%s: %s in %s", when, p.Name, get.text)
				}
				if p.Owned {
					has[p.Member] = append(has[p.Member], p.Partition)
				}
			}
			if body.Next != "" || len(has) != len(members) {
				t.Errorf("%s: %d members: %s", when, len(members), get.text)
			}
			for _, m := range members {
				if got := has[m.Member()]; len(got) != each || !slices.Equal(got, m.Owned()) {
					t.Errorf("%s: %s has %v and not %v, %d of them", when, m.Member(), m.Owned(), got, each)
				}
			}
		}
		a := r.partitionMember("a")
		agree("a is alone", 1, 4, a)
		b := r.partitionMember("b")
		agree("b came", 1, 2, a, b)
		if err := a.Stop(r.Context()); err != nil {
			t.Error(err)
		}
		agree("a left", 1, 4, b)
		if _, err := r.bus.Repartition(r.Context(), "spread", 6); err != nil {
			t.Fatal(err)
		}
		agree("the topic grew", 2, 6, b)

		first := r.do("GET", partitionsPath+"?limit=7", "", "Authorization", "Bearer root ops:admin").is(200)
		if list := first["partitions"].([]any); len(list) != 7 || first["next"] != "P2.2" {
			t.Errorf("%v", first)
		}
		second := r.do("GET", partitionsPath+"?limit=7&after=P2.2", "", "Authorization", ops).is(200)
		if list := second["partitions"].([]any); len(list) != 3 || list[0].(map[string]any)["partition"] != "P2.3" || second["next"] != nil {
			t.Errorf("%v", second)
		}
	})
}

// TestPartitionsHaveLag: a group without members has the lag of its unsettled events.
func TestPartitionsHaveLag(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.withPartitions()
		if err := r.bus.JoinPartitions(r.Context(), "spread", "billing", jetbus.SubscribeOptions{Order: jetbus.PerKey}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "spread", Key: "k", Payload: []byte("1")}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		behind := 0
		for _, p := range r.do("GET", partitionsPath, "", "Authorization", ops).is(200)["partitions"].([]any) {
			p := p.(map[string]any)
			if p["owned"] != false || p["member"] != nil || p["epoch"] != nil {
				t.Errorf("%v", p)
			}
			if p["lagEvents"] == 3.0 && p["lagSeconds"] == 60.0 && p["pending"] == 3.0 && p["held"] == 0.0 {
				behind++
			} else if p["lagEvents"] != 0.0 || p["lagSeconds"] != 0.0 {
				t.Errorf("%v", p)
			}
		}
		if behind != 1 {
			t.Errorf("%d partitions have a lag of 3 events", behind)
		}
	})
}

func TestPartitionsAreRefused(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.do("GET", partitionsPath, "", "Authorization", ops).refused(gateway.CodeNotFound) // a gateway without PartitionsOf
		if strings.Contains(r.do("GET", "/openapi.json", "").text, "/partitions") {
			t.Error("it is in the document")
		}
		r.withPartitions()
		if !strings.Contains(r.do("GET", "/openapi.json", "").text, `"/v1/groups/{topic}/{group}/partitions"`) {
			t.Error("it is not in the document")
		}
		r.do("GET", partitionsPath, "").refused(gateway.CodeUnauthorized)
		r.do("GET", partitionsPath, "", "Authorization", "Bearer ann topic:read:> group:join:>").refused(gateway.CodeForbidden)
		r.do("POST", partitionsPath, "", "Authorization", ops).refused(gateway.CodeBadMethod)
		for path, code := range map[string]gateway.Code{
			"/v1/groups/none/billing/partitions":   gateway.CodeUnknownTopic,
			"/v1/groups/spread/none/partitions":    gateway.CodeUnknownGroup,
			"/v1/groups/orders/billing/partitions": gateway.CodeUnsupported,
			"/v1/groups/a%20b/billing/partitions":  gateway.CodeBadRequest,
			"/v1/groups/spread/a%20b/partitions":   gateway.CodeBadRequest,
			partitionsPath + "?limit=0":            gateway.CodeBadRequest,
			partitionsPath + "?after=P1":           gateway.CodeBadRequest,
			partitionsPath + "?after=P1.2.3":       gateway.CodeBadRequest,
			partitionsPath + "?after=P1.%2B2":      gateway.CodeBadRequest,
		} {
			r.do("GET", path, "", "Authorization", ops).refused(code)
		}
	})
}

// manyPartitions returns the maximum number of partitions, each with a member of its own and the largest metadata.
func manyPartitions(context.Context, string, string) ([]jetbus.PartitionStatus, error) {
	meta := map[string]string{"host": strings.Repeat("h", partition.MaxMetaBytes-len(`{"host":""}`))}
	var out []jetbus.PartitionStatus
	for n := range jetbus.MaxPartitions {
		p := jetbus.Partition{Generation: 1 + n/1000, Number: n % 1000}
		out = append(out, jetbus.PartitionStatus{Name: p.String(), PartitionInfo: jetbus.PartitionInfo{Partition: p}, Owned: true, Member: fmt.Sprint(n), Meta: meta, Epoch: 1})
	}
	return out, nil
}

// TestPartitionsPagesAreBounded: a page has at most so many bytes, and all pages have each partition once.
func TestPartitionsPagesAreBounded(t *testing.T) {
	const most = 64 << 10
	inBubble(t, gateway.Config{PartitionsOf: manyPartitions, Limits: gateway.Limits{QueueBytes: most}}, func(r *wsRig) {
		n, pages, after := 0, 0, ""
		for {
			got := r.do("GET", partitionsPath+"?after="+after, "")
			body := got.is(200)
			if pages++; len(got.text) > most+100 || pages > jetbus.MaxPartitions {
				t.Fatalf("page %d has %d bytes", pages, len(got.text))
			}
			for _, p := range body["partitions"].([]any) {
				if p := p.(map[string]any); p["member"] != fmt.Sprint(n) {
					t.Fatalf("%v where %d should be", p, n)
				}
				n++
			}
			if body["next"] == nil {
				break
			}
			after = body["next"].(string)
		}
		if n != jetbus.MaxPartitions || pages < 60 || pages > 100 {
			t.Errorf("%d partitions in %d pages", n, pages)
		}
	})
}

// TestPartitionsDrawOnTheBudget: a request counts as one of the subject's calls, and is charged for a page.
func TestPartitionsDrawOnTheBudget(t *testing.T) {
	const root, all = "Bearer root ops:read", "Bearer all ops:read"
	for what, limits := range map[string]gateway.Limits{
		"calls": {CallsPerPrincipal: 1, Calls: 2},
		"bytes": {BytesPerPrincipal: 2 << 20, Bytes: 4 << 20}, // a page each, and two in all
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, withTokens(), func(r *wsRig) {
				c := withTokens()
				c.Limits = limits
				bus := newGatedBus(r.bus)
				c.PartitionsOf = func(ctx context.Context, _, _ string) ([]jetbus.PartitionStatus, error) {
					ctx, cancel := context.WithTimeout(ctx, patience) // also of a request that is not refused
					defer cancel()
					bus.wait(ctx, "partitions")
					return nil, nil
				}
				r.serveBus(bus, c)
				crowd := &crowd{r: r, bus: bus}
				crowd.add("GET", partitionsPath, "", "Authorization", ops)
				r.do("GET", partitionsPath, "", "Authorization", ops).refusedOver(gateway.CodeRateLimited)
				crowd.add("GET", partitionsPath, "", "Authorization", root)
				r.do("GET", partitionsPath, "", "Authorization", all).refusedOver(gateway.CodeOverloaded)
				crowd.end()
				last := r.do("GET", partitionsPath, "", "Authorization", ops)
				if last.is(200); last.text != "{\"partitions\":[]}\n" {
					r.Errorf("%s", last.text)
				}
			})
		})
	}
}

// TestPartitionsEndWithTheirClient: the context of PartitionsOf ends when the client cancels its request.
func TestPartitionsEndWithTheirClient(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		asked, ended := make(chan struct{}), make(chan error, 1)
		r.serve(gateway.Config{PartitionsOf: func(ctx context.Context, _, _ string) ([]jetbus.PartitionStatus, error) {
			close(asked)
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		}})
		ctx, cancel := context.WithCancel(r.Context())
		gone := make(chan error, 1)
		go func() {
			res, err := r.client().Do(r.request(http.MethodGet, partitionsPath, "").WithContext(ctx))
			if err == nil {
				_ = res.Body.Close()
			}
			gone <- err
		}()
		<-asked
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the context of PartitionsOf has not ended")
		}
	})
}
