package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/exactjson"
	"github.com/seed-63e9a637/jetbus/registry"
)

// Config says who may do what. The zero value lets everyone do everything.
type Config struct {
	// Allow returns nil where a request may read, or write, the schemas and settings of
	// a topic, and what to tell it otherwise. An empty topic stands for the settings of
	// all topics. What may not be read is left out of lists, and no schema that is sent may
	// refer to it. Nil: everything is allowed.
	Allow func(r *http.Request, topic string, write bool) error
	// By names who registers a version, which keeps it; see registry.RegisterOptions.
	// Nil: nobody is named.
	By func(r *http.Request) string
	// Log gets errors that are not the client's. Nil: it is not told.
	Log *slog.Logger
}

// contentType is that of all answers.
const contentType = "application/vnd.schemaregistry.v1+json"

// maxBody is more than a schema may have, with room for escapes.
const maxBody = 1 << 20

type handler struct {
	reg *registry.Registry
	c   Config
	mux *http.ServeMux
}

// New returns a handler for the registry, at the root of its paths: use http.StripPrefix to
// mount it below another. It is safe for concurrent use; the registry stays its owner's.
func New(reg *registry.Registry, c Config) http.Handler {
	h := &handler{reg: reg, c: c, mux: http.NewServeMux()}
	h.subjectRoutes()
	h.schemaRoutes()
	h.settingRoutes()
	h.handle("GET /{$}", func(*http.Request) (any, error) { return struct{}{}, nil })
	h.handle("/", func(*http.Request) (any, error) { return nil, &problem{404, 404, "there is nothing at this path"} })
	return h
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "" { // below a prefix that was stripped
		r = r.Clone(r.Context())
		r.URL.Path = "/"
	}
	h.mux.ServeHTTP(w, r)
}

// rawText is an answer that is JSON already.
type rawText string

// handle adds a route. What f returns is the answer.
func (h *handler) handle(pattern string, f func(r *http.Request) (any, error)) {
	h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		v, err := f(r)
		status := http.StatusOK
		if err != nil {
			p := h.explain(r, err)
			v, status = p, p.status
		}
		if list, ok := v.([]version); ok && err == nil {
			writeVersions(w, list)
			return
		}
		text, raw := v.(rawText)
		body := []byte(text)
		if !raw {
			body, err = json.Marshal(v)
		}
		if !raw && err != nil {
			body, status = []byte(`{"error_code":500,"message":"the answer is no JSON"}`), 500
		}
		writeHeader(w, status)
		_, _ = w.Write(body) // a client that went away is none of the registry's errors
	})
}

func writeHeader(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
}

// writeVersions writes a list of versions one by one: the JSON of all of them may be large.
func writeVersions(w http.ResponseWriter, list []version) {
	writeHeader(w, http.StatusOK)
	next := []byte("[")
	for i, v := range list {
		if i > 0 {
			next = []byte(",")
		}
		one, _ := json.Marshal(v) // a version never fails
		if _, err := w.Write(append(next, one...)); err != nil {
			return // the client went away
		}
		next = nil
	}
	_, _ = w.Write(append(next, ']'))
}

// allow asks Config.Allow.
func (h *handler) allow(r *http.Request, topic string, write bool) error {
	if h.c.Allow == nil {
		return nil
	}
	if err := h.c.Allow(r, topic, write); err != nil {
		return &problem{http.StatusForbidden, 40301, err.Error()}
	}
	return nil
}

// subject returns the topic of the path, if the request may use it.
func (h *handler) subject(r *http.Request, write bool) (string, error) {
	topic := r.PathValue("subject")
	if err := jetbus.ValidTopic(topic); err != nil {
		return "", err
	}
	return topic, h.allow(r, topic, write)
}

// decode decodes the body of a request. Member names must match exactly.
func decode(r *http.Request, v any) error {
	text, err := io.ReadAll(r.Body) // ServeHTTP limits its size
	if err == nil {
		err = exactjson.Unmarshal(text, v, exactjson.RefuseVariants)
	}
	if err == nil {
		return nil
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &problem{http.StatusRequestEntityTooLarge, 413, fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit)}
	}
	return &problem{http.StatusBadRequest, 400, "the body is not the JSON object that is expected: " + err.Error()}
}

// flag reads a query parameter that is true or not.
func flag(r *http.Request, name string) bool {
	v, err := strconv.ParseBool(r.URL.Query().Get(name))
	return err == nil && v
}

// problem is an error as clients get it.
type problem struct {
	status  int
	Code    int    `json:"error_code"`
	Message string `json:"message"`
}

// Error returns the message.
func (p *problem) Error() string { return p.Message }

// conditions are what errors of the registry mean to clients.
var conditions = []struct {
	err          error
	status, code int
}{
	{registry.ErrInvalidReference, 422, 42201}, // which wraps that there is no such version
	{registry.ErrNoSchema, 404, 40401},
	{registry.ErrNoVersion, 404, 40402},
	{registry.ErrErased, 404, 40402},
	{registry.ErrNotDeleted, 404, 40407},
	{registry.ErrIncompatible, 409, 409},
	{registry.ErrInvalidLevel, 422, 42203},
	{registry.ErrInvalidModel, 422, 42203},
	{registry.ErrInvalidMode, 422, 42204},
	{registry.ErrReadOnly, 422, 42205},
	{registry.ErrReferenced, 422, 42206},
	{jetbus.ErrInvalidTopic, 422, 42208},
	{registry.ErrTooLarge, 422, 42209},
	{jetbus.ErrInvalidOption, 422, 42205},
	{registry.ErrContended, 500, 50001},
}

// explain makes the answer of an error. What the client did not cause is logged, and not told.
func (h *handler) explain(r *http.Request, err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	for _, c := range conditions {
		if errors.Is(err, c.err) {
			return &problem{c.status, c.code, err.Error()}
		}
	}
	p := &problem{500, 50001, "the registry cannot do it at the moment"}
	if errors.Is(err, context.DeadlineExceeded) {
		p = &problem{500, 50002, "the registry did not answer in time"}
	}
	if h.c.Log != nil && r.Context().Err() == nil {
		h.c.Log.LogAttrs(r.Context(), slog.LevelWarn, "request to the registry failed", slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Any("err", err))
	}
	return p
}

// invalidSchema makes the error of a text that is no schema of one that has no other reason: of
// what reads a schema, all else is a condition of the registry or the bus.
func invalidSchema(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, known := range []error{jetbus.ErrUnavailable, jetbus.ErrClosed, jetbus.ErrDenied, registry.ErrUnreadable} {
		if errors.Is(err, known) {
			return err
		}
	}
	for _, c := range conditions {
		if errors.Is(err, c.err) {
			return err
		}
	}
	return &problem{422, 42201, err.Error()}
}

// numberOf reads the number of a version: 1 or more, or 0 for latest.
func numberOf(s string) (int, error) {
	if s == "latest" || s == "-1" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || strings.HasPrefix(s, "+") {
		return 0, &problem{422, 42202, fmt.Sprintf("the version %.40q is neither a number from 1 on nor latest", s)}
	}
	return n, nil
}
