package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/rest"
)

const (
	one = `{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}`
	two = `{"type":"object","properties":{"id":{"type":"integer"},"note":{"type":"string"}},"required":["id"],"additionalProperties":false}`
)

// rig is a registry over HTTP.
type rig struct {
	*testing.T
	reg *registry.Registry
	h   http.Handler
}

func newRig(t *testing.T, c rest.Config) *rig {
	t.Helper()
	nc := bustest.Connect(t, bustest.Start(t, embedded.Config{}))
	reg, err := registry.Open(t.Context(), nc, registry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := reg.Close(ctx); err != nil {
			t.Errorf("close the registry: %v", err)
		}
	})
	return &rig{T: t, reg: reg, h: rest.New(reg, c)}
}

// body is the request that carries a schema.
func body(schema string) string {
	text, _ := json.Marshal(map[string]string{"schema": schema, "schemaType": "JSON"})
	return string(text)
}

// ask makes a request, "GET /subjects", and returns status and body.
func (r *rig) ask(request, body string) (int, string) {
	r.Helper()
	method, path, _ := strings.Cut(request, " ")
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	if got := w.Header().Get("Content-Type"); got != "application/vnd.schemaregistry.v1+json" {
		r.Errorf("%s: Content-Type %q", request, got)
	}
	if !json.Valid(w.Body.Bytes()) {
		r.Errorf("%s: %q is no JSON", request, w.Body)
	}
	return w.Code, w.Body.String()
}

// step is a request with the answer that it gets: all of it, or for an error its number.
type step struct {
	request, body string
	status        int
	want          string // "~" before a part of it
}

func (r *rig) play(steps []step) {
	r.Helper()
	for _, s := range steps {
		status, got := r.ask(s.request, s.body)
		want, part := strings.CutPrefix(s.want, "~")
		if s.status >= 400 {
			want, part = fmt.Sprintf(`{"error_code":%s,"message":"`, s.want), true
		}
		if status != s.status || part && !strings.Contains(got, want) || !part && got != want {
			r.Fatalf("%s %.200s: %d %s, want %d %s", s.request, s.body, status, got, s.status, s.want)
		}
	}
}

func TestSubjects(t *testing.T) {
	r := newRig(t, rest.Config{By: func(*http.Request) string { return "ann" }})
	r.play([]step{
		{"GET /", "", 200, `{}`},
		{"GET /subjects", "", 200, `[]`},
		{"GET /subjects/orders/versions", "", 404, "40401"},
		{"GET /subjects/orders/versions/latest", "", 404, "40401"},
		{"POST /subjects/orders", body(one), 404, "40401"},
		{"POST /subjects/orders/versions", body(one), 200, `~"version":1,"id":1,`},
		{"POST /subjects/orders/versions", body(" " + one), 200, `~"version":1,"id":1,`}, // the same schema
		{"POST /subjects/orders/versions", body(two), 409, "409"},
		{"POST /subjects/orders", body(two), 404, "40403"},
		{"POST /compatibility/subjects/orders/versions/latest", body(two), 200, `{"is_compatible":false}`},
		{"POST /compatibility/subjects/orders/versions?verbose=true", body(two), 200, `~{"is_compatible":false,"messages":["orders: the schema is incompatible`},
		{"POST /compatibility/subjects/orders/versions/1", body(one), 200, `{"is_compatible":true}`},
		{"POST /compatibility/subjects/orders/versions/9", body(one), 404, "40402"},
		{"POST /compatibility/subjects/new/versions", body(one), 200, `{"is_compatible":true}`},
		{"POST /compatibility/subjects/new/versions/latest", body(one), 404, "40401"},
		{"PUT /config/orders", `{"compatibility":"NONE"}`, 200, `~"compatibility":"NONE"`},
		{"POST /compatibility/subjects/orders/versions/1", body(two), 200, `{"is_compatible":true}`},
		{"POST /subjects/orders/versions", body(two), 200, `~"version":2,"id":2,`},
		{"POST /subjects/other.topic/versions", body(one), 200, `~"version":1,"id":1,`},
		{"GET /subjects", "", 200, `["orders","other.topic"]`},
		{"GET /subjects?subjectPrefix=ot", "", 200, `["other.topic"]`},
		{"GET /subjects?offset=1&limit=5", "", 200, `["other.topic"]`},
		{"GET /subjects?limit=0", "", 200, `[]`},
		{"GET /subjects/orders/versions", "", 200, `[1,2]`},
		{"GET /subjects/orders/versions/1", "", 200, `~"schemaType":"JSON"`},
		{"GET /subjects/orders/versions/latest/schema", "", 200, two},
		{"GET /subjects/orders/versions/-1/schema", "", 200, two},
		{"GET /subjects/orders/versions/3", "", 404, "40402"},
		{"GET /schemas?limit=1", "", 200, `~[{"subject":"orders","version":1,`},
		{"GET /schemas?latestOnly=true", "", 200, `~[{"subject":"orders","version":2,`},
		{"GET /schemas?subjectPrefix=ot", "", 200, `~[{"subject":"other.topic","version":1,`},
		{"GET /schemas/types", "", 200, `["JSON"]`},
		{"GET /schemas/ids/1", "", 200, `~"schemaType":"JSON"`},
		{"GET /schemas/ids/1/schema", "", 200, one},
		{"GET /schemas/ids/1/subjects", "", 200, `["orders","other.topic"]`},
		{"GET /schemas/ids/1/versions", "", 200, `[{"subject":"orders","version":1},{"subject":"other.topic","version":1}]`},
		{"GET /schemas/ids/99", "", 404, "40403"},
		{"GET /schemas/ids/x", "", 404, "40403"},
	})
	if v, err := r.reg.Version(t.Context(), "orders", 1); err != nil || v.By != "ann" || v.Text != one {
		t.Errorf("stored %+v, %v", v, err)
	}
}

func TestDelete(t *testing.T) {
	r := newRig(t, rest.Config{})
	r.play([]step{
		{"DELETE /subjects/orders", "", 404, "40401"},
		{"POST /subjects/orders/versions", body(one), 200, `~"version":1`},
		{"PUT /config/orders", `{"compatibility":"NONE"}`, 200, `~NONE`},
		{"POST /subjects/orders/versions", body(two), 200, `~"version":2`},
		{"DELETE /subjects/orders/versions/1?permanent=true", "", 404, "40407"},
		{"DELETE /subjects/orders/versions/1", "", 200, `1`},
		{"DELETE /subjects/orders/versions/1", "", 404, "40406"},
		{"POST /subjects/orders", body(one), 404, "40403"},
		{"POST /subjects/orders?deleted=true", body(one), 200, `~"version":1`},
		{"POST /subjects/orders?deleted=true", body(two), 200, `~"version":2`},
		{"GET /subjects/orders/versions", "", 200, `[2]`},
		{"GET /subjects/orders/versions?deleted=true", "", 200, `[1,2]`},
		{"GET /subjects/orders/versions?deletedOnly=true", "", 200, `[1]`},
		{"GET /subjects/orders/versions/1", "", 404, "40402"},
		{"GET /subjects/orders/versions/1?deleted=true", "", 200, `~"deleted":true`},
		{"GET /schemas/ids/1/schema", "", 200, one}, // events of the past can be read
		{"GET /schemas/ids/1/versions", "", 404, "40403"},
		{"GET /schemas/ids/1/versions?deleted=true", "", 200, `[{"subject":"orders","version":1}]`},
		{"DELETE /subjects/orders/versions/1?permanent=true", "", 200, `1`},
		{"GET /subjects/orders/versions/1?deleted=true", "", 404, "40402"},
		{"GET /schemas/ids/1", "", 404, "40403"},
		{"DELETE /subjects/orders?permanent=true", "", 404, "40405"},
		{"DELETE /subjects/orders/versions/latest", "", 200, `2`},
		{"DELETE /subjects/orders", "", 404, "40404"},
		{"GET /subjects", "", 200, `[]`},
		{"GET /subjects?deleted=true", "", 200, `["orders"]`},
		{"GET /subjects?deletedOnly=true", "", 200, `["orders"]`},
		{"POST /subjects/orders?deleted=true", body(one), 404, "40403"}, // which is erased
		{"POST /subjects/orders", body(two), 404, "40401"},
		{"POST /subjects/orders?deleted=true", body(two), 200, `~"version":2`},
		{"GET /schemas", "", 200, `[]`},
		{"GET /schemas?deleted=true", "", 200, `~[{"subject":"orders","version":2,`},
		{"DELETE /subjects/orders?permanent=true", "", 200, `[2]`},
		{"POST /subjects/orders?deleted=true", body(two), 404, "40401"},
		{"GET /subjects?deleted=true", "", 200, `[]`}, // all of it is erased
		{"GET /subjects?deletedOnly=true", "", 200, `[]`},
		{"POST /subjects/orders/versions", body(one), 200, `~"version":3`},
		{"DELETE /subjects/orders", "", 200, `[3]`},
	})
}

func TestReferences(t *testing.T) {
	r := newRig(t, rest.Config{})
	refers := `{"type":"object","properties":{"order":{"$ref":"schema://orders/1"}}}`
	named := func(name string) string {
		text, _ := json.Marshal(map[string]any{"schema": refers, "references": []any{map[string]any{"name": name, "subject": "orders", "version": 1}}})
		return string(text)
	}
	r.play([]step{
		{"POST /subjects/carts/versions", body(refers), 422, "42201"},
		{"POST /subjects/orders/versions", body(one), 200, `~"version":1`},
		{"POST /subjects/carts/versions", named("order.json"), 422, "42201"},
		{"POST /subjects/carts/versions", named("schema://orders/1"), 200, `~"references":[{"name":"schema://orders/1","subject":"orders","version":1}]`},
		{"GET /subjects/orders/versions/1/referencedby", "", 200, `[2]`},
		{"GET /subjects/carts/versions/1/referencedby", "", 200, `[]`},
		{"DELETE /subjects/orders/versions/1", "", 422, "42206"},
		{"DELETE /subjects/orders", "", 422, "42206"},
		{"DELETE /subjects/carts", "", 200, `[1]`},
		{"GET /subjects/orders/versions/1/referencedby", "", 200, `[]`},
		{"DELETE /subjects/orders", "", 200, `[1]`},
	})
}

func TestSettings(t *testing.T) {
	r := newRig(t, rest.Config{})
	level := func(name, model string) string {
		return fmt.Sprintf(`{"compatibilityLevel":%q,"compatibility":%q,"model":%q}`, name, name, model)
	}
	r.play([]step{
		{"GET /config", "", 200, level("BACKWARD", "strict")},
		{"GET /config/orders", "", 404, "40408"},
		{"GET /config/orders?defaultToGlobal=true", "", 200, level("BACKWARD", "strict")},
		{"PUT /config", `{"compatibility":"FULL_TRANSITIVE"}`, 200, level("FULL_TRANSITIVE", "strict")},
		{"PUT /config/orders", `{"compatibility":"forward"}`, 200, level("FORWARD", "strict")},
		{"GET /config/orders", "", 200, level("FORWARD", "strict")},
		{"GET /config", "", 200, level("FULL_TRANSITIVE", "strict")},
		{"PUT /config/orders", `{"model":"declared"}`, 200, level("FORWARD", "declared")},
		{"DELETE /config/orders", "", 200, level("FORWARD", "declared")},
		{"GET /config/orders?defaultToGlobal=true", "", 200, level("FULL_TRANSITIVE", "strict")},
		{"PUT /config", `{"compatibility":"SIDEWAYS"}`, 422, "42203"},
		{"PUT /config", `{"model":"lenient"}`, 422, "42203"},
		{"PUT /config", `{}`, 422, "42203"},
		{"DELETE /config", "", 200, level("FULL_TRANSITIVE", "strict")},
		{"GET /config", "", 200, level("BACKWARD", "strict")},

		{"GET /mode", "", 200, `{"mode":"READWRITE"}`},
		{"GET /mode/orders", "", 404, "40409"},
		{"GET /mode/orders?defaultToGlobal=true", "", 200, `{"mode":"READWRITE"}`},
		{"PUT /mode/orders", `{"mode":"READONLY"}`, 200, `{"mode":"READONLY"}`},
		{"POST /subjects/orders/versions", body(one), 422, "42205"},
		{"PUT /mode/orders", `{"mode":"IMPORT"}`, 422, "42204"},
		{"PUT /mode/orders", `{}`, 422, "42204"},
		{"DELETE /mode/orders", "", 200, `{"mode":"READONLY"}`},
		{"POST /subjects/orders/versions", body(one), 200, `~"version":1`},
	})
}

func TestRefused(t *testing.T) {
	r := newRig(t, rest.Config{})
	r.play([]step{
		{"GET /nothing", "", 404, "404"},
		{"GET /subjects/A%20B/versions", "", 422, "42208"},
		{"POST /subjects/orders%2Fa/versions", body(one), 422, "42208"},
		{"GET /subjects/orders/versions/0", "", 422, "42202"},
		{"GET /subjects/orders/versions/+1", "", 422, "42202"},
		{"GET /subjects/orders/versions/1e3", "", 422, "42202"},
		{"DELETE /subjects/orders/versions/x", "", 422, "42202"},
		{"POST /subjects/orders/versions", ``, 400, "400"},
		{"POST /subjects/orders/versions", `[]`, 400, "400"},
		{"POST /subjects/orders/versions", body(one) + `x`, 400, "400"},
		{"POST /subjects/orders/versions", `{"schema":1}`, 400, "400"},
		{"POST /subjects/orders/versions", `{}`, 422, "42201"},
		{"POST /subjects/orders/versions", body(`{"type":`), 422, "42201"},
		{"POST /subjects/orders/versions", body(`{"type":"record"}`), 422, "42201"},
		{"POST /subjects/orders", body(`{"type":"record"}`), 422, "42201"},
		{"POST /compatibility/subjects/orders/versions", body(`{"type":"record"}`), 422, "42201"},
		{"POST /subjects/orders/versions", body(`{"$ref":"file:///etc/passwd"}`), 422, "42201"},
		{"POST /subjects/orders/versions", `{"schema":"{}","schemaType":"AVRO"}`, 422, "42201"},
		{"POST /subjects/orders/versions", `{"schema":"{}","ruleSet":{}}`, 422, "42201"},
		{"POST /subjects/orders/versions", `{"schema":"{}","id":7}`, 422, "42205"},
		{"POST /subjects/orders/versions", `{"schema":"` + strings.Repeat("a", 2<<20) + `"}`, 413, "413"},
		{"GET /subjects", "", 200, `[]`},
	})
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, httptest.NewRequest(http.MethodPatch, "/subjects/orders", nil))
	if w.Code/100 != 4 {
		t.Errorf("PATCH: %d", w.Code)
	}
}

func TestAllow(t *testing.T) {
	r := newRig(t, rest.Config{Allow: func(_ *http.Request, topic string, write bool) error {
		if topic == "orders" || topic == "" && !write || topic == "seen" && !write {
			return nil
		}
		return errors.New("the token does not allow it")
	}})
	for _, topic := range []string{"orders", "seen", "hidden"} {
		if _, err := r.reg.Register(t.Context(), topic, one, registry.RegisterOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.play([]step{
		{"GET /subjects", "", 200, `["orders","seen"]`},
		{"GET /schemas/ids/1/subjects", "", 200, `["orders","seen"]`},
		{"GET /schemas/ids/1/versions", "", 200, `[{"subject":"orders","version":1},{"subject":"seen","version":1}]`},
		{"GET /subjects/seen/versions", "", 200, `[1]`},
		{"GET /config", "", 200, `~BACKWARD`},
	})
	for _, request := range []string{
		"GET /subjects/hidden/versions", "GET /subjects/hidden/versions/1", "GET /subjects/hidden/versions/1/schema", "GET /subjects/hidden/versions/1/referencedby",
		"POST /subjects/hidden", "POST /compatibility/subjects/hidden/versions", "GET /config/hidden", "GET /mode/hidden",
		"POST /subjects/seen/versions", "DELETE /subjects/seen", "DELETE /subjects/seen/versions/1", "PUT /config/seen", "DELETE /config/seen", "PUT /mode/seen", "DELETE /mode/seen",
		"PUT /config", "DELETE /config", "PUT /mode", "DELETE /mode",
	} {
		r.play([]step{{request, body(one), 403, "40301"}})
	}
	// An id of which only what is hidden has a version is one that nobody has.
	if _, err := r.reg.Register(t.Context(), "hidden2", `{"type":"string"}`, registry.RegisterOptions{}); err != nil {
		t.Fatal(err)
	}
	r.play([]step{{"GET /schemas/ids/2", "", 404, "40403"}})
}

func TestRegistryClosed(t *testing.T) {
	r := newRig(t, rest.Config{})
	if err := r.reg.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.play([]step{
		{"GET /subjects", "", 500, "50001"},
		{"POST /subjects/orders/versions", body(one), 500, "50001"},
	})
}

// TestReferencesAreReadBySomebody refers to schemas of others: neither whether they exist nor
// what is in them is told.
func TestReferencesAreReadBySomebody(t *testing.T) {
	secret := ""
	r := newRig(t, rest.Config{Allow: func(_ *http.Request, topic string, _ bool) error {
		if topic != "" && topic == secret {
			return errors.New("no")
		}
		return nil
	}})
	to := func(topic string) string {
		return body(`{"type":"object","properties":{"a":{"$ref":"schema://` + topic + `/1"}}}`)
	}
	r.play([]step{
		{"POST /subjects/secret/versions", body(one), 200, `~"id":1`},
		{"POST /subjects/public/versions", body(two), 200, `~"id":2`},
		{"POST /subjects/secret/versions", to("public"), 409, "409"},
		{"POST /subjects/secret.too/versions", to("public"), 200, `~"id":3`},
		{"GET /subjects/public/versions/1/referencedby", "", 200, `[3]`},
	})
	secret = "secret"
	for _, request := range []string{"POST /subjects/mine/versions", "POST /subjects/mine", "POST /compatibility/subjects/mine/versions"} {
		r.play([]step{{request, to("secret"), 403, "40301"}})
	}
	r.play([]step{{"POST /subjects/mine/versions", to("public"), 200, `~"id":3`}})
	secret = "none"
	r.play([]step{{"POST /compatibility/subjects/mine/versions", to("none"), 403, "40301"}})
	secret = "secret.too"
	r.play([]step{{"GET /subjects/public/versions/1/referencedby", "", 200, `[3]`}}) // the one of mine
	secret = "mine"
	r.play([]step{{"POST /subjects/mine", to("public"), 403, "40301"}})
}

// largestWrite is a response that keeps the length of its largest write.
type largestWrite struct {
	*httptest.ResponseRecorder
	bytes int
}

// Write implements http.ResponseWriter.
func (w *largestWrite) Write(p []byte) (int, error) {
	w.bytes = max(w.bytes, len(p))
	return w.ResponseRecorder.Write(p)
}

// TestListOfLargeSchemas: a list of schemas is never in memory as a whole, and a page has what it asks for.
func TestListOfLargeSchemas(t *testing.T) {
	r := newRig(t, rest.Config{})
	const schemas, size = 20, 20 << 10
	for i := range schemas {
		text := fmt.Sprintf(`{"type":"integer","description":"%s"}`, strings.Repeat("x", size+i))
		if _, err := r.reg.Register(t.Context(), fmt.Sprintf("t%02d", i/2), text, registry.RegisterOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, page := range []struct{ query, want string }{
		{"", "t00/1 t00/2 t01/1 t01/2 t02/1 t02/2 t03/1 t03/2 t04/1 t04/2 t05/1 t05/2 t06/1 t06/2 t07/1 t07/2 t08/1 t08/2 t09/1 t09/2"},
		{"?offset=3&limit=4", "t01/2 t02/1 t02/2 t03/1"},
		{"?offset=19&limit=4", "t09/2"},
		{"?offset=20", ""},
		{"?limit=0", ""},
	} {
		w := &largestWrite{ResponseRecorder: httptest.NewRecorder()}
		r.h.ServeHTTP(w, httptest.NewRequest("GET", "/schemas"+page.query, nil))
		var list []struct {
			Subject string
			Version int
		}
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || list == nil {
			t.Fatalf("%s: %v", page.query, err)
		}
		var got []string
		for _, v := range list {
			got = append(got, fmt.Sprintf("%s/%d", v.Subject, v.Version))
		}
		if strings.Join(got, " ") != page.want {
			t.Errorf("%s: %q, want %q", page.query, got, page.want)
		}
		if w.bytes > 2*size {
			t.Errorf("%s: %d bytes are written at once", page.query, w.bytes)
		}
	}
}
