package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/loopback"
	"github.com/seed-63e9a637/jetbus/metrics"
)

const (
	metricsPath = "/metrics"       // where metrics are served
	scrapeTime  = 30 * time.Second // how long a scrape may take, so that one that hangs takes no place from others
)

// meter counts for Prometheus what this process does, asks its broker about topics and
// groups, and serves that. A nil one counts nothing.
type meter struct {
	metrics *metrics.Metrics
	nc      *nats.Conn
	bus     *adapter.Bus // by which it asks
	web     *web
}

// startMeter serves metrics of the broker at an address. It returns nil if the address is empty, or
// with an error.
func startMeter(ctx context.Context, b *embedded.Broker, prefix, listen string, t *tls.Config, log *slog.Logger) (m *meter, err error) {
	if listen == "" {
		return nil, nil
	}
	m = &meter{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("metrics: %w", err), m.close(context.WithoutCancel(ctx)))
			m = nil
		}
	}()
	if m.metrics, err = metrics.New(metrics.Config{}); err != nil {
		return m, err
	}
	if m.nc, err = b.Connect(nats.Name("jetbus metrics")); err != nil {
		return m, err
	}
	if m.bus, err = adapter.Open(ctx, m.nc, adapter.Config{Prefix: prefix, Logger: log}); err != nil {
		return m, err
	}
	if err = m.metrics.WatchTopics(m.bus, metrics.TopicOptions{}); err != nil {
		return m, err
	}
	if !loopback.Address(listen) {
		log.LogAttrs(ctx, slog.LevelWarn, "any client that can reach the metrics can read the names of topics and groups: no token is required")
	}
	page, pages := m.metrics.Handler(), http.NewServeMux()
	pages.HandleFunc("GET "+metricsPath, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(scrapeTime)) // the server has no write timeout
		page.ServeHTTP(w, r)
	})
	var h http.Handler = pages
	if loopback.Address(listen) {
		h = loopback.Handler(h) // otherwise proxies, and pages of other sites with DNS rebinding, could read them
	}
	m.web, err = listenWeb(ctx, "--metrics", listen, withoutBodies(h), maxActiveConns, t, log)
	return m, err
}

// withoutBodies refuses requests with a body. Otherwise net/http would wait for the body without a timeout
// before it responds.
func withoutBodies(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			h.ServeHTTP(w, r)
			return
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		w.Header().Set("Connection", "close")
		http.Error(w, "requests must not have a body", http.StatusRequestEntityTooLarge)
	})
}

// url returns the address of the metrics.
func (m *meter) url() string { return m.web.url + metricsPath }

// server is what listens, nil for a nil meter.
func (m *meter) server() *web {
	if m == nil {
		return nil
	}
	return m.web
}

// observer is told what a bus does.
func (m *meter) observer() jetbus.Observer {
	if m == nil {
		return nil
	}
	return m.metrics.Observe
}

// watchGateway counts what clients of a gateway hold.
func (m *meter) watchGateway(g *gateway.Gateway) {
	if m == nil {
		return
	}
	m.metrics.WatchGateway(func() []metrics.Inflight {
		held := g.Inflight()
		out := make([]metrics.Inflight, len(held))
		for i, h := range held {
			out[i] = metrics.Inflight(h)
		}
		return out
	})
}

// watchProjection reads a projection at each scrape.
func (m *meter) watchProjection(name string, p metrics.Projection) {
	if m != nil {
		m.metrics.WatchProjection(name, p)
	}
}

// watchFeed reads a change feed at each scrape.
func (m *meter) watchFeed(name string, f *changefeed.Feed) {
	if m == nil || f == nil {
		return
	}
	m.metrics.WatchFeed(name, func() metrics.Feed {
		s := f.Status()
		return metrics.Feed{State: string(s.State), Lag: s.Lag, Stats: metrics.FeedStats(f.Stats())}
	})
}

// close ends it. It may be called on one that did not start, or nil.
func (m *meter) close(ctx context.Context) (err error) {
	if m == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout-edgeDrainTimeout)
	defer cancel()
	err = m.web.close(ctx)
	if m.bus != nil {
		err = errors.Join(err, m.bus.Close(ctx))
	}
	if m.nc != nil {
		m.nc.Close()
	}
	return err
}
