package edge

import (
	"bytes"
	_ "embed"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/santhosh-tekuri/jsonschema/v5"

	"github.com/seed-63e9a637/jetbus"
)

// asyncAPISchema is the JSON Schema of AsyncAPI 3.0; see testdata/README.md.
//
//go:embed testdata/asyncapi-3.0.0.json
var asyncAPISchema string

// kinds of schemas that topics have: with parts of their own, parts of other topics, anchors,
// and drafts of all ages.
var kinds = map[string]string{
	"plain":     `{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}`,
	"parts":     `{"type":"object","$defs":{"id":{"type":"integer"}},"properties":{"id":{"$ref":"#/$defs/id"},"next":{"$ref":"#"}},"required":["id"]}`,
	"anchors":   `{"$id":"https://e.example/s","type":"object","$defs":{"a":{"$anchor":"id","type":"integer"}},"properties":{"id":{"$ref":"#id"}},"required":["id"]}`,
	"referring": `{"type":"object","properties":{"id":{"$ref":"schema://parts/1#/$defs/id"},"other":{"$ref":"schema://parts/1"}},"required":["id"]}`,
	"draft7":    `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","definitions":{"id":{"type":"integer"}},"properties":{"id":{"$ref":"#/definitions/id"}},"required":["id"]}`,
	"newest":    `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"id":{"type":"integer","exclusiveMinimum":0},"pair":{"prefixItems":[{"type":"string"},{"type":"number"}],"items":false}},"required":["id"],"unevaluatedProperties":{"type":["string","null"]}}`,
	"values":    `{"type":"object","properties":{"id":{"type":"integer","default":1,"examples":[1,12345678901234567890]}},"required":["id"]}`,
	"anything":  `true`,
}

// documented is a gateway with topics of all kinds.
func documented(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	for _, c := range []jetbus.TopicConfig{
		{Name: "bare"},
		{Name: "bare.described-v2", Description: "what \"nobody\"\nknows <&> ☕"},
		{Name: "moves", KeyInSubject: true},
		{Name: "places", SnapshotOf: "moves"},
		{Name: "state", Compact: true},
		{Name: "later", Delays: true},
	} {
		r.ensure(c)
	}
	r.ensure(jetbus.TopicConfig{Name: "parts"})
	r.register("parts", kinds["parts"]) // others refer to it
	for name, schema := range kinds {
		if name != "parts" {
			r.ensure(jetbus.TopicConfig{Name: name})
			r.register(name, schema)
		}
	}
	return r
}

// TestOpenAPI has the document validated by a validator that knows OpenAPI 3.1, and requests
// and answers by the document.
func TestOpenAPI(t *testing.T) {
	r := documented(t)
	text := r.do("GET", "/openapi.json", "", "")
	if bytes.Contains(text, []byte("schema://")) {
		t.Errorf("the document refers to the registry: %s", text)
	}
	doc, err := libopenapi.NewDocument(text)
	if err != nil {
		t.Fatal(err)
	}
	if v := doc.GetVersion(); !strings.HasPrefix(v, "3.1") {
		t.Fatalf("OpenAPI %s", v)
	}
	model, err := doc.BuildV3Model()
	if err != nil {
		t.Fatalf("the model: %v", err)
	}
	if n := model.Model.Paths.PathItems.Len(); n < 20+len(kinds) {
		t.Errorf("%d paths", n)
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if n := servedSchemaPaths(t, r, text); n < 30 {
		t.Errorf("%d operations of schemas", n)
	}
	if ok, problems := v.ValidateDocument(); !ok {
		for _, p := range problems {
			t.Errorf("%s: %s %v", p.Message, p.Reason, p.SchemaValidationErrors)
		}
	}
	for topic := range kinds {
		for body, want := range map[string]bool{`{"id":1}`: true, `{"id":"x"}`: topic == "anything"} {
			ask := func() *http.Request {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/topics/"+topic, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Authorization", "Bearer "+token)
				return req
			}
			if ok, problems := v.ValidateHttpRequestSync(ask()); ok != want {
				t.Errorf("%s to %s: valid %v: %v", body, topic, ok, problems)
			}
			res, err := http.DefaultClient.Do(ask())
			if err != nil {
				t.Fatal(err)
			}
			if (res.StatusCode == http.StatusCreated) != want {
				t.Errorf("%s to %s: %s", body, topic, res.Status)
			}
			if ok, problems := v.ValidateHttpResponse(ask(), res); !ok {
				t.Errorf("the answer to %s to %s: %v", body, topic, problems)
			}
			if err := res.Body.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// servedSchemaPaths asks for what the document says of schemas: the registry has all of it. It
// returns how much that is.
func servedSchemaPaths(t *testing.T, r *rig, text []byte) (n int) {
	t.Helper()
	doc := parsed[struct {
		Paths map[string]map[string]any
	}](t, text)
	for path, methods := range doc.Paths {
		if !strings.HasPrefix(path, "/v1/schemas") {
			continue
		}
		for method := range methods {
			n++
			at := r.url + strings.NewReplacer("{subject}", "no.body", "{version}", "1", "{id}", "1").Replace(path)
			req, err := http.NewRequestWithContext(t.Context(), strings.ToUpper(method), at, strings.NewReader("?"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			var answer bytes.Buffer
			if _, err := answer.ReadFrom(res.Body); err != nil {
				t.Error(err)
			}
			if err := res.Body.Close(); err != nil {
				t.Error(err)
			}
			if res.StatusCode == http.StatusMethodNotAllowed || strings.Contains(answer.String(), "nothing at this path") {
				t.Errorf("%s %s: %s %s", method, path, res.Status, answer.String())
			}
		}
	}
	return n
}

// TestAsyncAPI has the document validated by the schema of AsyncAPI 3.0, with topics that have
// schemas and topics that have none, and its references followed.
func TestAsyncAPI(t *testing.T) {
	compiler := jsonschema.NewCompiler()
	compiler.Draft = jsonschema.Draft7
	if err := compiler.AddResource("http://asyncapi.com/definitions/3.0.0/asyncapi.json", strings.NewReader(asyncAPISchema)); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("http://asyncapi.com/definitions/3.0.0/asyncapi.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{`{"asyncapi":"3.0.0"}`, `{"asyncapi":"3.0.0","info":{"title":"a","version":"1"},"channels":{"a":{"address":5}}}`} {
		if schema.Validate(parsed[any](t, []byte(wrong))) == nil {
			t.Errorf("the schema takes %s", wrong)
		}
	}
	check := func(r *rig) map[string]any {
		t.Helper()
		text := r.do("GET", "/asyncapi.json", "", "")
		doc := parsed[map[string]any](t, text)
		if err := schema.Validate(any(doc)); err != nil {
			t.Errorf("%#v", err)
		}
		if bytes.Contains(text, []byte("schema://")) {
			t.Errorf("the document refers to the registry: %s", text)
		}
		follow(t, doc, doc, "#")
		return doc
	}
	check(newRig(t)) // without a topic
	doc := check(documented(t))
	channels, _ := doc["channels"].(map[string]any)
	if len(channels) != 6+len(kinds) {
		t.Errorf("%d channels", len(channels))
	}
}

// follow fails where a reference of a document leads nowhere.
func follow(t *testing.T, doc map[string]any, v any, at string) {
	t.Helper()
	switch v := v.(type) {
	case []any:
		for i, x := range v {
			follow(t, doc, x, fmt.Sprint(at, "/", i))
		}
	case map[string]any:
		for k, x := range v {
			to, ok := x.(string)
			if k != "$ref" || !ok {
				follow(t, doc, x, at+"/"+k)
				continue
			}
			var target any = doc
			for part := range strings.SplitSeq(strings.TrimPrefix(to, "#/"), "/") {
				m, _ := target.(map[string]any)
				target = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
			}
			if target == nil {
				t.Errorf("%s: %s leads nowhere", at, to)
			}
		}
	}
}
