package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// schemaRoutes passes authenticated requests below /v1/schemas to Config.Schemas, without that
// prefix. Config.Schemas calls [Authorize] to check their permissions.
func (g *Gateway) schemaRoutes(mux *http.ServeMux) {
	if g.c.Schemas == nil {
		return
	}
	inner := http.StripPrefix(schemasPath, g.c.Schemas)
	serve := func(w http.ResponseWriter, r *http.Request) {
		who, ok := g.admit(w, r, "", "")
		if !ok {
			return
		}
		a := g.account(who)
		defer a.Close()
		body, err := readBody(w, r, a, g.c.Limits.FrameBytes, jsonCost) // slots are for requests that are complete
		kind := budget.Calls
		if len(body) > 0 { // parsing and comparing a schema costs as much as a scan
			kind = budget.Scans
		}
		if err == nil {
			err = acquire(r.Context(), a, kind, 1)
		}
		if err == nil && len(body) > smallBytes {
			err = acquire(r.Context(), a, budget.Work, 1)
		}
		if err != nil {
			g.problem(w, r, err)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), principalKey{}, who))
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		inner.ServeHTTP(w, r)
	}
	mux.HandleFunc(schemasPath, serve)
	mux.HandleFunc(schemasPath+"/", serve)
}

// schemasPath is below what Config.Schemas serves, and schemaType what that answers.
const (
	schemasPath = "/v1/schemas"
	schemaType  = "application/vnd.schemaregistry.v1+json"
)

var (
	schemaBody = object{schemaType: object{"type": "object"}, "application/json": object{"type": "object"}}
	anyAnswer  = object{"200": anyJSON}
)

// schemaOperations are those of package registry/rest, which is what Config.Schemas is.
var schemaOperations = []operation{
	{"GET", schemasPath + "/subjects", "listSubjects", "The topics that have schemas", "subjectPrefix deleted deletedOnly offset limit", nil, anyAnswer},
	{"POST", schemasPath + "/subjects/{subject}", "lookUpSchema", "The version that a schema is", "deleted", schemaBody, anyAnswer},
	{"DELETE", schemasPath + "/subjects/{subject}", "deleteSchemas", "Delete all versions", "permanent", nil, anyAnswer},
	{"GET", schemasPath + "/subjects/{subject}/versions", "listSchemaVersions", "The numbers of the versions", "deleted deletedOnly offset limit", nil, anyAnswer},
	{"POST", schemasPath + "/subjects/{subject}/versions", "registerSchema", "Register a schema", "", schemaBody, anyAnswer},
	{"GET", schemasPath + "/subjects/{subject}/versions/{version}", "schemaVersion", "A version, by its number or as latest", "deleted", nil, anyAnswer},
	{"DELETE", schemasPath + "/subjects/{subject}/versions/{version}", "deleteSchemaVersion", "Delete a version", "permanent", nil, anyAnswer},
	{"GET", schemasPath + "/subjects/{subject}/versions/{version}/schema", "schemaText", "The text of a version", "deleted", nil, anyAnswer},
	{"GET", schemasPath + "/subjects/{subject}/versions/{version}/referencedby", "schemaReferrers", "The schemas that refer to a version", "", nil, anyAnswer},
	{"GET", schemasPath + "/schemas", "listSchemas", "Schemas of all topics", "subjectPrefix deleted latestOnly offset limit", nil, anyAnswer},
	{"GET", schemasPath + "/schemas/types", "schemaTypes", "The kinds of schemas", "", nil, anyAnswer},
	{"GET", schemasPath + "/schemas/ids/{id}", "schemaByID", "A schema by its id", "", nil, anyAnswer},
	{"GET", schemasPath + "/schemas/ids/{id}/schema", "schemaTextByID", "The text of a schema by its id", "", nil, anyAnswer},
	{"GET", schemasPath + "/schemas/ids/{id}/subjects", "schemaSubjectsByID", "The topics that have a schema", "deleted", nil, anyAnswer},
	{"GET", schemasPath + "/schemas/ids/{id}/versions", "schemaVersionsByID", "The versions that a schema is", "deleted", nil, anyAnswer},
	{"GET", schemasPath + "/contexts", "schemaContexts", "The one context there is", "", nil, anyAnswer},
	{"POST", schemasPath + "/compatibility/subjects/{subject}/versions", "checkSchema", "Whether a schema would be registered", "verbose", schemaBody, anyAnswer},
	{"POST", schemasPath + "/compatibility/subjects/{subject}/versions/{version}", "checkSchemaVersion", "Whether a schema is compatible with a version", "verbose", schemaBody, anyAnswer},
	{"GET", schemasPath + "/config", "schemaConfig", "The level of all topics", "", nil, anyAnswer},
	{"PUT", schemasPath + "/config", "setSchemaConfig", "Set the level of all topics", "", schemaBody, anyAnswer},
	{"DELETE", schemasPath + "/config", "unsetSchemaConfig", "Set the level of all topics back", "", nil, anyAnswer},
	{"GET", schemasPath + "/config/{subject}", "schemaConfigOf", "The level of a topic", "defaultToGlobal", nil, anyAnswer},
	{"PUT", schemasPath + "/config/{subject}", "setSchemaConfigOf", "Set the level of a topic", "", schemaBody, anyAnswer},
	{"DELETE", schemasPath + "/config/{subject}", "unsetSchemaConfigOf", "Set the level of a topic back", "", nil, anyAnswer},
	{"GET", schemasPath + "/mode", "schemaMode", "Whether schemas may be registered", "", nil, anyAnswer},
	{"PUT", schemasPath + "/mode", "setSchemaMode", "Set whether schemas may be registered", "", schemaBody, anyAnswer},
	{"DELETE", schemasPath + "/mode", "unsetSchemaMode", "Set that back", "", nil, anyAnswer},
	{"GET", schemasPath + "/mode/{subject}", "schemaModeOf", "Whether schemas of a topic may be registered", "", nil, anyAnswer},
	{"PUT", schemasPath + "/mode/{subject}", "setSchemaModeOf", "Set whether schemas of a topic may be registered", "", schemaBody, anyAnswer},
	{"DELETE", schemasPath + "/mode/{subject}", "unsetSchemaModeOf", "Set that back", "", nil, anyAnswer},
}

// principalKey is where the context of a request has the principal.
type principalKey struct{}

// Authorize returns nil where the one whom a request of Config.Schemas acts for may do p upon
// the name, and an error to tell it otherwise. The context is that of the request.
func Authorize(ctx context.Context, p Permission, name string) error {
	if who, ok := ctx.Value(principalKey{}).(Principal); ok && who.Scopes.Allow(p, name) {
		return nil
	}
	return forbidden(p, name)
}

// Subject returns the subject of the one whom a request of Config.Schemas acts for, empty for
// another context.
func Subject(ctx context.Context) string {
	who, _ := ctx.Value(principalKey{}).(Principal)
	return who.Subject
}

// embedded is a schema as it stands at a place of a document, "#/components/schemas/a": what
// refers to its own parts refers to them there. It is an object: AsyncAPI knows no true or
// false here. Nil where it cannot be read.
func embedded(schema json.RawMessage, at string) any {
	d := json.NewDecoder(bytes.NewReader(schema))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil
	}
	if all, ok := v.(bool); ok {
		v = object{}
		if !all {
			v = object{"not": object{}}
		}
	}
	repoint(v, at)
	return v
}

// repoint walks through a schema, but for what is data in it.
func repoint(v any, at string) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			repoint(x, at)
		}
	case map[string]any:
		for k, x := range v {
			switch text, ok := x.(string); {
			case ok && k == "$ref" && strings.HasPrefix(text, "#"):
				v[k] = at + strings.TrimPrefix(text, "#")
			case k == "properties" || k == "patternProperties" || k == "$defs" || k == "definitions" || k == "dependentSchemas":
				if named, ok := x.(map[string]any); ok {
					for _, one := range named {
						repoint(one, at)
					}
				}
			case k != "enum" && k != "const" && k != "default" && k != "examples":
				repoint(x, at)
			}
		}
	}
}
