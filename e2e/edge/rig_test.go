package edge

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/partition"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/rest"
)

// limit bounds every wait.
const limit = 2 * time.Minute

// token may do everything.
const token = "0123456789abcdef0123456789abcdef"

// rig is a gateway over a broker, with a registry, as jetbus serve has them.
type rig struct {
	*testing.T
	bus     *adapter.Bus
	schemas *registry.Registry
	url     string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	broker, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t}
	r.later("broker", broker.Stop)
	nc, err := broker.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if r.bus, err = adapter.Open(t.Context(), nc, adapter.Config{}); err != nil {
		t.Fatal(err)
	}
	r.later("bus", r.bus.Close)
	if r.schemas, err = registry.Open(t.Context(), nc, registry.Config{}); err != nil {
		t.Fatal(err)
	}
	r.later("registry", r.schemas.Close)
	auth, err := gateway.StaticTokens(gateway.Token{Token: token, Subject: "tool", Scopes: []string{"topic:read:>", "topic:write:>", "group:join:>", "schema:read:>", "schema:write:>", "ops:admin"}})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(registry.Validated(r.bus, r.schemas, registry.ValidatedOptions{}), gateway.Config{
		Auth: auth, Schemas: rest.New(r.schemas, rest.Config{Allow: allow}), SchemaOf: r.schemas.Document,
		PartitionsOf: func(ctx context.Context, topic, group string) ([]jetbus.PartitionStatus, error) {
			return partition.Status(ctx, r.bus, "", topic, group)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	r.later("gateway", g.Drain)
	r.url = server.URL
	return r
}

// allow asks for the scopes that a request needs.
func allow(r *http.Request, topic string, write bool) error {
	switch {
	case topic == "" && write:
		return gateway.Authorize(r.Context(), gateway.OpsAdmin, "")
	case topic == "":
		return nil
	case write:
		return gateway.Authorize(r.Context(), gateway.SchemaWrite, topic)
	}
	return gateway.Authorize(r.Context(), gateway.SchemaRead, topic)
}

// later ends something when the test does.
func (r *rig) later(what string, end func(context.Context) error) {
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := end(ctx); err != nil {
			r.Errorf("end of the %s: %v", what, err)
		}
	})
}

func (r *rig) ensure(c jetbus.TopicConfig) {
	r.Helper()
	if _, err := r.bus.EnsureTopic(r.Context(), c); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) register(topic, schema string) {
	r.Helper()
	if _, err := r.schemas.Register(r.Context(), topic, schema, registry.RegisterOptions{}); err != nil {
		r.Fatal(err)
	}
}

// stored are the events of a topic.
func (r *rig) stored(topic string) []jetbus.Event {
	r.Helper()
	var out []jetbus.Event
	for e, err := range r.bus.Scan(r.Context(), topic, jetbus.ScanQuery{}) {
		if err != nil {
			r.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// do makes a request by hand, and returns the body of its answer.
func (r *rig) do(method, path, body, contentType string) []byte {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil || res.StatusCode/100 != 2 {
		r.Fatalf("%s %s: %s %s, %v", method, path, res.Status, text, err)
	}
	return text
}

// parsed reads JSON.
func parsed[T any](t *testing.T, text []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}
