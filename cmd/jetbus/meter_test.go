package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/client"
)

// scraper reads a page of metrics.
type scraper struct {
	*http.Client
	url string
}

func newScraper(t *testing.T, url string) *scraper {
	s := &scraper{&http.Client{Transport: &http.Transport{}}, url}
	t.Cleanup(s.CloseIdleConnections)
	return s
}

// read returns the values on the page by what stands before them.
func (s *scraper) read(t *testing.T) map[string]float64 {
	t.Helper()
	status, text := fetch(t, s.Client, http.MethodGet, s.url, "", "")
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", s.url, status, text)
	}
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(strings.TrimSpace(line), " ")
		v, err := strconv.ParseFloat(value, 64)
		if found && err == nil && name != "#" {
			out[name] = v
		}
	}
	return out
}

// await scrapes until each of the metrics has at least its value.
func (s *scraper) await(t *testing.T, want map[string]float64) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		got, missing := s.read(t), ""
		for name, least := range want {
			if v, is := got[name]; !is || v < least {
				missing = name
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come to %v:\n%v", missing, want[missing], got)
		}
	}
}

// TestServeMetrics: what the broker knows, and what the gateway does and its clients hold.
func TestServeMetrics(t *testing.T) {
	r, line := serving(t, map[string]string{"JETBUS_METRICS": "0"}, "--dir", t.TempDir(), "--gateway", "0")
	urls := strings.Fields(line)
	if len(urls) != 3 || !strings.HasPrefix(urls[2], "http://127.0.0.1:") || !strings.HasSuffix(urls[2], "/metrics") {
		t.Fatalf("ready on %q", line)
	}
	page := newScraper(t, urls[2])
	if got := command(t, "", "topics", "create", "orders", "--server", urls[0]); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	schema := `{"schema":"{\"type\":\"object\"}","schemaType":"JSON"}`
	if status, got := fetch(t, page.Client, "POST", urls[1]+"/v1/schemas/subjects/orders/versions", "", schema); status != http.StatusOK {
		t.Fatalf("%d %s", status, got)
	}
	if status, got := fetch(t, page.Client, "POST", urls[1]+"/v1/topics/orders", "", "7"); status/100 != 4 {
		t.Errorf("what breaks the schema: %d %s", status, got)
	}
	c, err := client.Dial(t.Context(), client.Config{URL: urls[1], HTTPClient: &http.Client{Transport: page.Transport}})
	if err != nil {
		t.Fatal(err)
	}
	began, free := make(chan struct{}, 1), make(chan struct{})
	sub, err := c.Subscribe(t.Context(), "orders", "billing", func(context.Context, *jetbus.Delivery) error {
		select {
		case began <- struct{}{}:
		default: // it came again
		}
		<-free
		return nil
	}, jetbus.SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(t.Context(), jetbus.Event{Topic: "orders", Payload: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	<-began
	const group, handled = `{group="billing",topic="orders"}`, `{group="billing",topic="orders",version="1"}`
	page.await(t, map[string]float64{
		`events_published_total{topic="orders",version="1"}`: 1, `events_publish_failed_total{reason="schema",topic="orders"}`: 1,
		"ws_inflight" + group: 1, "events_delivered_total" + handled: 1, `topic_events{topic="orders"}`: 1, "group_lag_events" + group: 1,
	})
	close(free)
	page.await(t, map[string]float64{"events_acked_total" + handled: 1})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := sub.Stop(ctx); err != nil {
		t.Error(err)
	}
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
	if _, err := page.Get(urls[2]); err == nil { //nolint:bodyclose // there is none
		t.Error("metrics are served after the end")
	}
}

// viaProxy adds the header that proxies add.
type viaProxy struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (p viaProxy) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Forwarded-For", "192.0.2.1")
	return p.RoundTripper.RoundTrip(r)
}

// TestServeMetricsAlone: without a gateway, beside one who has the address, and with TLS.
func TestServeMetricsAlone(t *testing.T) {
	_, line := serving(t, nil, "--dir", t.TempDir(), "--metrics", "127.0.0.1:0")
	urls := strings.Fields(line)
	page := newScraper(t, urls[1])
	if got := command(t, "", "topics", "create", "orders", "--server", urls[0]); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	page.await(t, map[string]float64{`topic_events{topic="orders"}`: 0})
	if status, got := fetch(t, page.Client, http.MethodPost, urls[1], "", ""); status != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d %s", status, got)
	}
	if status, got := fetch(t, page.Client, http.MethodGet, strings.TrimSuffix(urls[1], metricsPath), "", ""); status != http.StatusNotFound {
		t.Errorf("another path: %d %s", status, got)
	}
	proxied := &http.Client{Transport: viaProxy{page.Transport}}
	if status, got := fetch(t, proxied, http.MethodGet, urls[1], "", ""); status != http.StatusForbidden {
		t.Errorf("through a proxy: %d %s", status, got)
	}
	address := strings.TrimSuffix(strings.TrimPrefix(urls[1], "http://"), metricsPath)
	raw, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	if err := raw.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Write([]byte("POST /nowhere HTTP/1.1\r\nHost: " + address + "\r\nContent-Length: 1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(raw); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 413 ") {
		t.Errorf("a body that does not come: %q, %v", text, err)
	}
	got := command(t, "", "serve", "--listen", "0", "--dir", t.TempDir(), "--gateway", "0", "--metrics", address)
	if got.code != exitFailure || !strings.Contains(got.errOut, "metrics: ") || !strings.Contains(got.errOut, "in use") || got.out != "" {
		t.Errorf("a second one on the same address: %+v", got)
	}
	got = command(t, "", "dev", "--listen", "0", "--dir", t.TempDir(), "--gateway", "0", "--metrics", address)
	if got.code != exitFailure || !strings.Contains(got.errOut, "metrics: ") || !strings.Contains(got.errOut, "in use") {
		t.Errorf("dev on the same address: %+v", got)
	}
	cert, key := certificate(t)
	_, line = serving(t, nil, "--dir", t.TempDir(), "--metrics", "0", "--tls-cert", cert, "--tls-key", key)
	if urls := strings.Fields(line); len(urls) != 2 || !strings.HasPrefix(urls[1], "https://127.0.0.1:") {
		t.Errorf("ready on %q", line)
	}
}

// TestDevMetrics: what runs in dev is on the page.
func TestDevMetrics(t *testing.T) {
	t.Parallel()
	r := begin(t, nil, "dev", "--gateway", "0", "--metrics", "0", "--dir", t.TempDir(), "--listen", "0", "--plain", "--interval", "1s")
	out := r.wait(t, "busiest")
	page := newScraper(t, strings.TrimSpace(strings.TrimPrefix(lineWith(t, out, "metrics "), "metrics ")))
	page.await(t, map[string]float64{
		`events_published_total{topic="heartbeat.received",version="1"}`: 1, `events_acked_total{group="process-projector",topic="heartbeat.received",version="1"}`: 1,
		`topic_events{topic="process.state"}`: 1, `projector_applied_total{projection="processes"}`: 1, `projector_lag_events{projection="processes"}`: 0,
		`changefeed_published_total{feed="processes"}`: 1, `changefeed_state{feed="processes",state="streaming"}`: 1,
	})
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
}
