package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/partition"
)

// fetch makes a request to a gateway, and returns status and body.
func fetch(t *testing.T, c *http.Client, method, url, token, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// write makes a file of the test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestServeGateway(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	env := map[string]string{"JETBUS_JWT_SECRET": devSecret}
	tokens := write(t, "tokens.json", `[{"token":"ann-0123456789abcdef","subject":"ann","scopes":["schema:read:>"]}]`)
	settings := write(t, "gateway.json", `{"origins":["https://app.example.com"],"limits":{"inFlight":10,"leaseMaxMs":60000,"rate":100}}`)
	r, line := serving(t, env, "--dir", t.TempDir(), "--tls-cert", cert, "--tls-key", key,
		"--gateway", "127.0.0.1:0", "--gateway-config", settings, "--tokens", tokens)
	_, base, _ := strings.Cut(line, " ")
	if !strings.HasPrefix(base, "https://127.0.0.1:") {
		t.Fatalf("ready on %q", line)
	}
	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	defer client.CloseIdleConnections()

	minted := commandEnv(t, env, "", strings.Fields("token mint --subject bob --scope schema:write:orders")...)
	bob := strings.TrimSpace(minted.out)
	schema := `{"schema":"{\"type\":\"object\"}","schemaType":"JSON"}`
	for _, c := range []struct {
		method, path, token, body string
		status                    int
		want                      string
	}{
		{"GET", "/v1/schemas/subjects", "", "", 401, `"code":"unauthorized"`},
		{"GET", "/v1/schemas/subjects", "ann-0123456789abcdeF", "", 401, `"code":"bad_token"`},
		{"GET", "/v1/schemas/subjects", bob[:len(bob)-3], "", 401, `"code":"bad_token"`},
		{"POST", "/v1/schemas/subjects/orders/versions", "ann-0123456789abcdef", schema, 403, "schema:write"},
		{"POST", "/v1/schemas/subjects/other/versions", bob, schema, 403, "schema:write"},
		{"POST", "/v1/schemas/subjects/orders/versions", bob, schema, 200, `"version":1`},
		{"GET", "/v1/schemas/subjects", "ann-0123456789abcdef", "", 200, `["orders"]`},
		{"GET", "/v1/schemas/subjects", bob, "", 200, `[]`},
		{"PUT", "/v1/schemas/config", bob, `{"compatibility":"NONE"}`, 403, "ops:admin"},
		{"GET", "/v1/schemas", bob, "", 200, "{}"},
	} {
		if status, got := fetch(t, client, c.method, base+c.path, c.token, c.body); status != c.status || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, status, got, c.status, c.want)
		}
	}
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
	if log := r.err.String(); strings.Contains(log, devSecret) || strings.Contains(log, "0123456789abcdef") || strings.Contains(log, bob) {
		t.Errorf("the log holds a secret:\n%s", log)
	}
}

func TestServeGatewayWithoutTokens(t *testing.T) {
	t.Parallel()
	_, line := serving(t, nil, "--dir", t.TempDir(), "--gateway", "0")
	_, base, _ := strings.Cut(line, " ")
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	if status, got := fetch(t, client, "GET", base+"/v1/schemas/subjects", "", ""); status != 200 || got != "[]" {
		t.Errorf("%d %s", status, got)
	}
	if status, got := fetch(t, client, "PUT", base+"/v1/schemas/config", "", `{"compatibility":"FULL"}`); status != 200 {
		t.Errorf("%d %s", status, got)
	}
	nats, _, _ := strings.Cut(line, " ")
	if got := command(t, "", "topics", "create", "orders", "--server", nats); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	schema := `{"schema":"{\"$defs\":{\"a\":{\"minimum\":77}},\"items\":{\"$ref\":\"#/$defs/a\"}}","schemaType":"JSON"}`
	if status, got := fetch(t, client, "POST", base+"/v1/schemas/subjects/orders/versions", "", schema); status != 200 {
		t.Errorf("%d %s", status, got)
	}
	for path, want := range map[string]string{"/openapi.json": `"#/components/schemas/payload.orders/$defs/a"`, "/asyncapi.json": `"#/components/messages/orders/payload/$defs/a"`} {
		if status, got := fetch(t, client, "GET", base+path, "", ""); status != 200 || !strings.Contains(got, want) || !strings.Contains(got, `{"minimum":77}`) {
			t.Errorf("%s: %d %s", path, status, got)
		}
	}
	if got := command(t, "", "serve", "--listen", "0", "--dir", t.TempDir(), "--gateway", strings.TrimPrefix(base, "http://")); got.code != exitFailure || !strings.Contains(got.errOut, "gateway: ") || !strings.Contains(got.errOut, "in use") {
		t.Errorf("a second one on the same address: %+v", got)
	}
}

func TestServeGatewayRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := write(t, "tokens.json", `[{"token":"short-one","subject":"ann"}]`)
	short := write(t, "secret", "short-one\n")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"open to others":           {[]string{"--gateway", "0.0.0.0:0"}, "--tokens"},
		"all addresses":            {[]string{"--gateway", ":8080"}, "--tokens"},
		"no gateway":               {[]string{"--tokens", bad}, "--gateway"},
		"issuer for no one":        {[]string{"--jwt-issuer", "a"}, "--gateway"},
		"no audience":              {[]string{"--jwt-audience", "a"}, "--gateway"},
		"the secret before":        {[]string{"--jwt-previous-secret-file", short}, "--gateway"},
		"short token":              {[]string{"--gateway", "0", "--tokens", bad}, "bytes"},
		"no file":                  {[]string{"--gateway", "0", "--tokens", bad + ".none"}, "there is no file"},
		"short secret":             {[]string{"--gateway", "0", "--jwt-secret-file", short}, "32 or more"},
		"keys of nobody":           {[]string{"--gateway", "0", "--jwks", "https://id.example.com/keys"}, "--jwt-issuer"},
		"keys over http":           {[]string{"--gateway", "0", "--jwks", "http://id.example.com/keys", "--jwt-issuer", "a", "--jwt-audience", "b"}, "https"},
		"issuer alone":             {[]string{"--gateway", "0", "--jwt-issuer", "a"}, "--jwks"},
		"keys that are none":       {[]string{"--gateway", "0", "--jwt-keys", short, "--jwt-issuer", "a", "--jwt-audience", "b"}, "PEM"},
		"unknown setting":          {[]string{"--gateway", "0", "--gateway-config", write(t, "a.json", `{"listne":"1"}`)}, "listne"},
		"unknown limit":            {[]string{"--gateway", "0", "--gateway-config", write(t, "b.json", `{"limits":{"inflight":1}}`)}, "inflight"},
		"more than settings":       {[]string{"--gateway", "0", "--gateway-config", write(t, "c.json", `{}{}`)}, "after top-level value"},
		"setting in other letters": {[]string{"--gateway", "0", "--gateway-config", write(t, "d.json", `{"Tokens":"a"}`)}, "Tokens"},
		"setting twice":            {[]string{"--gateway", "0", "--gateway-config", write(t, "e.json", `{"tokens":"a","tokens":""}`)}, "tokens"},
		"origin":                   {[]string{"--gateway", "0", "--gateway-origin", "*"}, "origin"},
		"header":                   {[]string{"--gateway", "0", "--gateway-header", "Nats-Rollup"}, "Headers"},
	} {
		got := command(t, "", append([]string{"serve", "--listen", "0", "--dir", dir}, c.args...)...)
		if got.code != exitUsage || !strings.Contains(got.errOut, c.want) || strings.Contains(got.errOut, "short-one") || got.out != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestGatewaySettingsOrder(t *testing.T) {
	t.Parallel()
	file := write(t, "gateway.json", `{"listen":"127.0.0.1:1","tokens":"file.json","jwt":{"issuer":"file","jwks":"file"},"limits":{"inFlight":10,"leaseMaxMs":60000,"frameBytes":2048,"rate":-1,"bytes":2097152,"scansPerPrincipal":1}}`)
	env := map[string]string{"JETBUS_JWT_ISSUER": "env", "JETBUS_TOKENS": "env.json", "JETBUS_GATEWAY_CONFIG": file}
	s := gatewaySettings{Tokens: "flag.json"}
	if err := s.load(&app{getenv: func(name string) string { return env[name] }}); err != nil {
		t.Fatal(err)
	}
	if s.Tokens != "flag.json" || s.JWT.Issuer != "env" || s.JWT.JWKS != "file" || s.Listen != "127.0.0.1:1" {
		t.Errorf("%+v", s)
	}
	if want := (gateway.Limits{InFlight: 10, LeaseMax: 60e9, FrameBytes: 2048, Rate: -1, Bytes: 2 << 20, ScansPerPrincipal: 1}); s.limits != want {
		t.Errorf("%+v", s.limits)
	}
}

// The gateway of jetbus serve returns the same partitions of a group as jetbus groups partitions.
func TestServeGatewayShowsPartitions(t *testing.T) {
	t.Parallel()
	r, line := serving(t, nil, "--dir", t.TempDir(), "--gateway", "127.0.0.1:0")
	url, base, _ := strings.Cut(line, " ")
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	bus, err := adapter.Open(t.Context(), nc, adapter.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders", Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	sub, err := partition.Subscribe(t.Context(), bus, "orders", "billing", func(context.Context, *jetbus.Delivery) error { return nil },
		partition.SubscribeOptions{Member: "billing-0", Meta: map[string]string{"zone": "eu"}, JoinDelay: -1})
	if err != nil {
		t.Fatal(err)
	}
	awaitSettled(t, bus, "orders", "billing")
	status, text := fetch(t, http.DefaultClient, http.MethodGet, base+"/v1/groups/orders/billing/partitions", "", "")
	list := command(t, "", "--server", url, "groups", "partitions", "orders", "billing", "-o", "json")
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(list.out)); err != nil {
		t.Fatal(err)
	}
	if want := `{"partitions":` + compact.String() + "}\n"; status != http.StatusOK || text != want || strings.Count(text, `"member":"billing-0"`) != 2 {
		t.Errorf("status %d: %s\nwant %s", status, text, want)
	}
	if err := sub.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := bus.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
}
