package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
)

// resolve fails unless every reference of a document leads somewhere in it.
func resolve(t *testing.T, doc map[string]any, at any) {
	t.Helper()
	switch at := at.(type) {
	case map[string]any:
		for name, v := range at {
			if name != "$ref" {
				resolve(t, doc, v)
				continue
			}
			var target any = doc
			for part := range strings.SplitSeq(strings.TrimPrefix(v.(string), "#/"), "/") {
				m, _ := target.(map[string]any)
				target = m[part]
			}
			if target == nil {
				t.Errorf("%v leads nowhere", v)
			}
		}
	case []any:
		for _, v := range at {
			resolve(t, doc, v)
		}
	}
}

func schemaOf(_ context.Context, topic string, _ func(string) bool) (json.RawMessage, error) {
	if topic != "orders" {
		return nil, nil
	}
	return json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`), nil
}

func TestOpenAPI(t *testing.T) {
	inBubble(t, gateway.Config{SchemaOf: schemaOf, PartitionsOf: manyPartitions}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "bills.paid.v2"})
		doc := r.do("GET", "/openapi.json", "").is(200)
		resolve(r.T, doc, doc)
		paths := doc["paths"].(map[string]any)
		ids := map[string]bool{}
		for path, methods := range paths {
			for method, o := range methods.(map[string]any) {
				o := o.(map[string]any)
				id := o["operationId"].(string)
				if ids[id] || o["responses"] == nil {
					r.Errorf("%s %s: %v", method, path, o)
				}
				ids[id] = true
				declared := map[string]bool{}
				for _, p := range o["parameters"].([]any) {
					if p := p.(map[string]any); p["in"] == "path" {
						declared[p["name"].(string)] = true
					}
				}
				found := regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1)
				for _, m := range found {
					if !declared[m[1]] {
						r.Errorf("%s: %s is not declared", path, m[1])
					}
				}
				if len(found) != len(declared) {
					r.Errorf("%s: %v are declared", path, declared)
				}
				// Every path is served: whatever is wrong with a request, its path and method are not.
				served := strings.NewReplacer("{topic}", "a%20b", "{group}", "a%20b", "{key}", "%0A", "{seq}", "x").Replace(path)
				got := r.do(strings.ToUpper(method), served, "")
				if got.status == 405 || strings.Contains(got.text, "nothing at this path") {
					r.Errorf("%s %s: %s", method, path, got.text)
				}
			}
		}
		post := paths["/v1/topics/orders"].(map[string]any)["post"].(map[string]any)
		if body := fmt.Sprint(post["requestBody"]); !strings.Contains(body, "#/components/schemas/payload.orders") {
			r.Errorf("%s", body)
		}
		if doc["openapi"] != "3.1.0" || paths["/v1/topics/bills.paid.v2"] == nil || paths["/v1/schemas/subjects"] != nil || doc["security"] != nil {
			r.Errorf("%v", doc)
		}
	})
}

func TestAsyncAPI(t *testing.T) {
	inBubble(t, gateway.Config{SchemaOf: schemaOf}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "moves", KeyInSubject: true, Description: "what moved"})
		r.ensure(jetbus.TopicConfig{Name: "places", SnapshotOf: "moves"})
		doc := r.do("GET", "/asyncapi.json", "").is(200)
		resolve(r.T, doc, doc)
		channels, operations := doc["channels"].(map[string]any), doc["operations"].(map[string]any)
		if doc["asyncapi"] != "3.0.0" || len(channels) != 3 || len(operations) != 5 || operations["publish.places"] != nil {
			r.Errorf("%v", doc)
		}
		if got := channels["moves"].(map[string]any); got["address"] != "moves" || got["description"] != "what moved" {
			r.Errorf("%v", got)
		}
		message := doc["components"].(map[string]any)["messages"].(map[string]any)["orders"].(map[string]any)
		if fmt.Sprint(message["payload"]) != "map[properties:map[n:map[type:integer]] type:object]" {
			r.Errorf("%v", message)
		}
	})
}

// TestDocumentsNameWhatMayBeSeen: the rest is nobody's business.
func TestDocumentsNameWhatMayBeSeen(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "secret.plans"})
		for _, path := range []string{"/openapi.json", "/asyncapi.json"} {
			for _, token := range []string{"", reads, "Bearer ann topic:write:orders"} {
				var header []string
				if token != "" {
					header = []string{"Authorization", token}
				}
				got := r.do("GET", path, "", header...)
				if got.is(200); strings.Contains(got.text, "secret") || (token != "") != strings.Contains(got.text, "publish.orders") {
					r.Errorf("%s with %q: %s", path, token, got.text)
				}
			}
			r.do("GET", path, "", "Authorization", "Bearer bad").refused(gateway.CodeBadToken)
		}
	})
}

// TestDocumentsHideSchemas: who may not read a topic's schema gets none with the document, and
// what refers to others' is asked for with who may.
func TestDocumentsHideSchemas(t *testing.T) {
	config := withTokens()
	config.SchemaOf = func(_ context.Context, topic string, may func(string) bool) (json.RawMessage, error) {
		switch {
		case topic == "broken":
			return nil, errors.New("a version of a newer registry")
		case !may("secret"):
			return nil, nil
		}
		return json.RawMessage(`{"title":"of ` + topic + `"}`), nil
	}
	inBubble(t, config, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "broken"})
		for scopes, shown := range map[string]bool{
			"topic:read:> topic:write:>":                                            false,
			"topic:read:> schema:read:broken schema:read:secret":                    false,
			"topic:read:> schema:read:broken schema:read:orders":                    false,
			"topic:read:> schema:read:broken schema:read:orders schema:read:secret": true,
		} {
			got := r.do("GET", "/asyncapi.json", "", "Authorization", "Bearer ann "+scopes)
			if got.is(200); strings.Contains(got.text, `"of orders"`) != shown {
				r.Errorf("%s: %s", scopes, got.text)
			}
		}
	})
}
