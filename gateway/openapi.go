package gateway

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// apiVersion is that of the HTTP surface and the frames.
const apiVersion = "1"

// object is a JSON object of a document.
type object = map[string]any

// operation is one method of a path, as the document describes it. Its texts say which
// parameters there are: those of the path by its braces, those of the query by names.
type operation struct {
	method, path, id, summary string
	query                     string // names, between spaces; of parameters
	body                      object // media type to schema; nil: none
	answers                   object // status to schema
}

var (
	anyJSON   = object{}
	eventRef  = ref("Event")
	pageRef   = ref("Events")
	jsonBody  = object{"application/json": anyJSON}
	publishAs = object{
		"application/json": anyJSON, cloudEventType: object{"type": "object"},
		cloudEventsType:        object{"type": "array", "items": object{"type": "object"}},
		"application/x-ndjson": object{"type": "string"}, "*/*": object{},
	}
	published1 = object{"200": ref("Results"), "201": ref("Published"), "204": nil, "207": ref("Results")}
)

// operations are all that there are but the WebSocket's, partitionOperation and schemaOperations.
var operations = []operation{
	{"POST", "/v1/topics/{topic}", "publish", "Publish an event, or a batch of them", "dry_run expectLastSeq ttlMs deliverAt", publishAs, published1},
	{"POST", "/publish/{topic}", "publishFirst", "Publish an event, as the first clients did; dry_run is refused", "", jsonBody, object{"200": ref("Published")}},
	{"GET", "/v1/topics", "listTopics", "The topics that the token may see", "prefix limit after", nil, object{"200": anyJSON}},
	{"GET", "/v1/topics/{topic}", "describeTopic", "A topic", "", nil, object{"200": anyJSON}},
	{"GET", "/v1/topics/{topic}/events", "readEvents", "Events as they come, or those behind an offset", "after from ts afterId afterSeq key keyPrefix wait limit", nil, object{"200": pageRef}},
	{"GET", "/v1/topics/{topic}/snapshot", "snapshot", "The last event of each key", "prefix limit cursor key tombstones", nil, object{"200": pageRef, "304": nil}},
	{"GET", "/v1/topics/{topic}/snapshot/{key}", "snapshotOfKey", "The last event of one key", "", nil, object{"200": eventRef, "304": nil}},
	{"GET", "/v1/topics/{topic}/state", "stateAt", "The last event of each key as of a time", "at prefix limit cursor", nil, object{"200": pageRef}},
	{"GET", "/v1/groups/{topic}", "listGroups", "The groups of a topic", "limit after", nil, object{"200": anyJSON}},
	{"GET", "/v1/groups/{topic}/{group}", "describeGroup", "A group, and its position", "", nil, object{"200": anyJSON}},
	{"DELETE", "/v1/groups/{topic}/{group}", "deleteGroup", "Delete a group of one's own (u.SUBJECT), or any with ops:admin", "", nil, object{"204": nil}},
	{"POST", "/v1/groups/{topic}/{group}:pull", "pull", "Take events of a group", "", jsonBody, object{"200": anyJSON}},
	{"POST", "/v1/groups/{topic}/{group}:ack", "ack", "Acknowledge events", "", object{"application/json": ref("Settle")}, object{"200": ref("Results")}},
	{"POST", "/v1/groups/{topic}/{group}:nack", "nack", "Refuse events", "", object{"application/json": ref("Settle")}, object{"200": ref("Results")}},
	{"POST", "/v1/groups/{topic}/{group}:modack", "modack", "Extend the leases of events", "", object{"application/json": ref("Settle")}, object{"200": ref("Results")}},
	{"POST", "/v1/groups/{topic}/{group}:extend", "extend", "Extend the leases of events", "", object{"application/json": ref("Settle")}, object{"200": ref("Results")}},
	{"GET", "/v1/dlq/{topic}", "listDeadLetters", "The dead letters of a topic", "group reason key id error since until upToSeq created open limit after", nil, object{"200": anyJSON}},
	{"GET", "/v1/dlq/{topic}/stats", "countDeadLetters", "The dead letters of a topic, counted", "", nil, object{"200": anyJSON}},
	{"GET", "/v1/dlq/{topic}/{seq}", "deadLetter", "A dead letter", "", nil, object{"200": anyJSON}},
	{"POST", "/v1/dlq/{topic}:replay", "replay", "Put dead letters before their groups again", "", jsonBody, object{"200": anyJSON}},
	{"GET", "/livez", "alive", "Whether the process answers", "", nil, object{"200": anyJSON}},
	{"GET", "/readyz", "ready", "Whether requests would be served", "", nil, object{"200": anyJSON, "503": anyJSON}},
	{"GET", "/openapi.json", "openapi", "This document", "", nil, object{"200": anyJSON}},
	{"GET", "/asyncapi.json", "asyncapi", "The topics, and the WebSocket that serves them", "", nil, object{"200": anyJSON}},
}

// documentCost is how many requests a document counts for, because the broker lists all topics for it.
const documentCost = 100

// documentTopics is how many topics have a path of their own in a document.
const documentTopics = 500

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// openAPI serves GET /openapi.json: OpenAPI 3.1, with the topics that the token may see.
func (g *Gateway) openAPI(w http.ResponseWriter, r *http.Request) {
	topics, release, err := g.documented(r)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	defer release()
	schemas := componentSchemas()
	paths := object{}
	add := func(o operation) {
		at, ok := paths[o.path].(object)
		if !ok {
			at = object{}
			paths[o.path] = at
		}
		at[strings.ToLower(o.method)] = o.document()
	}
	for _, o := range operations {
		add(o)
	}
	if g.c.PartitionsOf != nil {
		add(partitionOperation)
	}
	if g.c.Schemas != nil {
		for _, o := range schemaOperations {
			add(o)
		}
	}
	for _, t := range topics {
		if jetbus.IsDeadLetterTopic(t.name) || t.snapshot {
			continue
		}
		body := object{"application/json": anyJSON}
		if t.schema != nil {
			schemas["payload."+t.name] = embedded(t.schema, "#/components/schemas/payload."+t.name)
			body["application/json"] = ref("payload." + t.name)
		}
		add(operation{"POST", "/v1/topics/" + t.name, "publish." + t.name, "Publish an event to " + t.name, "dry_run expectLastSeq ttlMs deliverAt", body, published1})
	}
	doc := object{
		"openapi":    "3.1.0",
		"info":       object{"title": "JetBus gateway", "version": apiVersion, "description": "An event bus over HTTP. Errors are problem documents with a stable code."},
		"paths":      paths,
		"components": object{"schemas": schemas},
	}
	if g.c.Auth != nil {
		doc["components"].(object)["securitySchemes"] = object{"token": object{"type": "http", "scheme": "bearer"}}
		doc["security"] = []any{object{"token": []any{}}}
	}
	answer(w, http.StatusOK, doc)
}

var braces = regexp.MustCompile(`\{([a-z]+)\}`)

// document is the operation in the document.
func (o operation) document() object {
	params := []any{}
	for _, m := range braces.FindAllStringSubmatch(o.path, -1) {
		params = append(params, object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for name := range strings.FieldsSeq(o.query) {
		kind := "string"
		switch name {
		case "limit", "offset", "afterSeq", "upToSeq", "expectLastSeq", "ttlMs":
			kind = "integer"
		case "deleted", "deletedOnly", "latestOnly", "permanent", "verbose", "defaultToGlobal":
			kind = "boolean"
		}
		param := object{"name": name, "in": "query", "schema": object{"type": kind}}
		if name == "dry_run" {
			param["description"] = "1: run all checks of the publish and store nothing; unsupported for adopted topics"
		}
		params = append(params, param)
	}
	media, wrong := "application/json", object{"application/problem+json": object{"schema": ref("Problem")}}
	if strings.HasPrefix(o.path, schemasPath) {
		media = schemaType
		wrong[media] = object{"schema": object{"type": "object"}}
	}
	answers := object{"default": object{"description": "What went wrong", "content": wrong}}
	for status, schema := range o.answers {
		code, _ := strconv.Atoi(status)
		one := object{"description": http.StatusText(code)}
		if schema != nil {
			content := object{media: object{"schema": schema}}
			if o.id == "readEvents" {
				content["text/event-stream"] = object{"schema": object{"type": "string"}}
			}
			one["content"] = content
		}
		answers[status] = one
	}
	out := object{"operationId": o.id, "summary": o.summary, "parameters": params, "responses": answers}
	if o.body != nil {
		content := object{}
		for kind, schema := range o.body {
			content[kind] = object{"schema": schema}
		}
		out["requestBody"] = object{"content": content}
	}
	return out
}

// componentSchemas are the schemas that operations share.
func componentSchemas() object {
	str, num, yes := object{"type": "string"}, object{"type": "integer"}, object{"type": "boolean"}
	list := func(of object) object { return object{"type": "array", "items": of} }
	props := func(p object, required ...any) object {
		out := object{"type": "object", "properties": p}
		if len(required) > 0 {
			out["required"] = required
		}
		return out
	}
	event := object{
		"id": str, "topic": str, "sid": str, "ts": num, "key": str, "partition": num, "seq": num, "payload": object{}, "payload_base64": str, "payload_space": list(str),
		"headers": object{"type": "object", "additionalProperties": str}, "caused_by": list(str), "tags": list(str),
	}
	result := object{
		"id": str, "seq": num, "ts": num, "sid": str, "partition": num, "duplicate": yes, "scheduled": yes, "dry_run": yes, "stored": str,
		"ack_id": str, "applied": yes, "reason": str, "deadline_ms": num, "code": str, "msg": str, "retryable": yes,
	}
	partition := object{
		"partition": str, "generation": num, "number": num, "pending": num, "held": num, "ackedSeq": num, "retries": num, "lagEvents": num, "lagSeconds": object{"type": "number"},
		"owned": yes, "member": str, "state": str, "meta": object{"type": "object", "additionalProperties": str}, "epoch": num, "orphaned": yes,
	}
	return object{
		"Event":      props(event, "id", "topic"),
		"Events":     props(object{"events": list(object{"type": "object"}), "next": str, "offset": str, "as_of": num, "exact": yes, "ts": num, "gap": object{"type": "object"}}, "events"),
		"Partitions": props(object{"partitions": list(props(partition, "partition", "generation", "number", "lagEvents", "lagSeconds", "owned")), "next": str}, "partitions"),
		"Published":  props(result, "id"),
		"Results":    props(object{"results": list(props(result))}, "results"),
		"Settle":     props(object{"ack_ids": list(str), "delay_ms": num, "extend_ms": num, "reason": str, "dead": yes, "dead_reason": str, "stack": str, "snooze": yes, "give_back": yes}, "ack_ids"),
		"Problem": props(object{
			"type": str, "title": str, "status": num, "detail": str, "code": str, "retryable": yes, "retry_after_ms": num, "details": object{}, "error": str,
		}, "status", "code", "retryable"),
	}
}

// documentTopic is a topic in a document.
type documentTopic struct {
	name, about string
	snapshot    bool
	schema      json.RawMessage // of payloads; nil: not known
}

// Limits of document requests without a token, for each address.
const (
	strangerRate  = 10 // per second
	strangerBurst = 50
)

// documented returns the topics that the token may read or write, for a document. Without a token
// there are none. The caller calls release after the response.
func (g *Gateway) documented(r *http.Request) (topics []documentTopic, release func(), err error) {
	who, err := g.authenticate(r.Context(), r, bearer(r))
	if err != nil {
		if codeOf(err) == CodeInternal || bearer(r) != "" {
			return nil, nil, err
		}
		host, _, _ := net.SplitHostPort(r.RemoteAddr) // clients without an address share one limit
		if ok, wait := g.gate.strangers.take(host, strangerRate, strangerBurst, 1); !ok {
			return nil, nil, tooOften(wait)
		}
		return nil, func() {}, nil
	}
	if err := g.charge(who, documentCost); err != nil {
		return nil, nil, err
	}
	a := g.account(who)
	if err = acquire(r.Context(), a, budget.Scans, 1); err == nil {
		topics, err = g.documentTopics(r, who)
	}
	if err != nil {
		a.Close()
		return nil, nil, err
	}
	return topics, a.Close, nil
}

// documentTopics returns the topics of the bus that who may read or write, up to documentTopics many.
func (g *Gateway) documentTopics(r *http.Request, who Principal) ([]documentTopic, error) {
	list, err := g.b.ListTopics(r.Context())
	if err != nil {
		return nil, err
	}
	var out []documentTopic
	for _, info := range list {
		name := info.Config.Name
		if len(out) == documentTopics {
			break
		}
		if !who.Scopes.Allow(TopicRead, name) && !who.Scopes.Allow(TopicWrite, name) {
			continue
		}
		t := documentTopic{name: name, about: info.Config.Description, snapshot: info.Config.SnapshotOf != ""}
		if t.schema, err = g.schemaOf(r, who, name); err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// schemaOf returns the schema of a topic that the client may read, nil where there is none.
func (g *Gateway) schemaOf(r *http.Request, who Principal, topic string) (json.RawMessage, error) {
	may := func(topic string) bool { return who.Scopes.Allow(SchemaRead, topic) }
	if g.c.SchemaOf == nil || !may(topic) {
		return nil, nil
	}
	text, err := g.c.SchemaOf(r.Context(), topic, may)
	if errors.Is(err, jetbus.ErrUnavailable) || r.Context().Err() != nil {
		return nil, err
	}
	if err == nil && len(text) > 0 && !json.Valid(text) {
		err = errors.New("it is no JSON")
	}
	if err != nil { // one of a newer registry, or broken: no reason to say nothing about all the others
		g.c.Log.LogAttrs(r.Context(), slog.LevelWarn, "schema left out of the documents", slog.String("topic", topic), slog.Any("err", err))
		return nil, nil
	}
	return text, nil
}
