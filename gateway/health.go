package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

const (
	healthKept = time.Second // anybody may ask: the broker is not asked each time
	healthTime = 2 * time.Second
	// healthTopic is a topic that is looked up; whether it exists does not matter.
	healthTopic = "jetbus.ready"
)

// health is what was found out last.
type health struct {
	mu    sync.Mutex
	until time.Time
	at    map[string]error
}

// alive serves GET /livez: the process answers.
func (g *Gateway) alive(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]string{"status": "ok"})
}

// ready serves GET /readyz: whether requests would be served now. What it is that is missing
// it tells those with OpsRead.
func (g *Gateway) ready(w http.ResponseWriter, r *http.Request) {
	checks := g.checks(r.Context())
	status, code := "ok", http.StatusOK
	names := map[string]string{}
	for name, err := range checks {
		names[name] = "ok"
		if err != nil {
			names[name] = "failed"
			status, code = "not ready", http.StatusServiceUnavailable
		}
	}
	body := map[string]any{"status": status, "checks": names}
	if who, err := g.authenticate(r.Context(), r, bearer(r)); err == nil && who.Scopes.Allow(OpsRead, "") {
		errs := map[string]string{}
		for name, err := range checks {
			if err != nil {
				errs[name] = err.Error()
			}
		}
		if len(errs) > 0 {
			body["errors"] = errs
		}
	}
	if code != http.StatusOK {
		w.Header().Set("Retry-After", "1")
	}
	answer(w, code, body)
}

// checks are what must work, by name; nil where it does.
func (g *Gateway) checks(ctx context.Context) map[string]error {
	var draining error
	if g.isDraining() {
		draining = errDraining
	}
	g.health.mu.Lock()
	defer g.health.mu.Unlock()
	if g.health.at == nil || !time.Now().Before(g.health.until) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTime) // others wait for the answer, too
		defer cancel()
		_, broker := g.b.TopicInfo(ctx, healthTopic)
		if errors.Is(broker, jetbus.ErrNoTopic) {
			broker = nil // it answers
		}
		var auth error
		if g.c.Auth != nil {
			auth = authReady(ctx, g.c.Auth)
		}
		g.health.at = map[string]error{"broker": broker, "auth": auth}
		g.health.until = time.Now().Add(healthKept)
	}
	return map[string]error{"broker": g.health.at["broker"], "auth": g.health.at["auth"], "draining": draining}
}
