package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-63e9a637/jetbus/registry"
)

// schemaType is the only one.
const schemaType = "JSON"

// schemaBody is the schema of a request.
type schemaBody struct {
	Schema     *string     `json:"schema"`
	SchemaType string      `json:"schemaType"`
	References []reference `json:"references"`
	Metadata   *metadata   `json:"metadata"`
	RuleSet    any         `json:"ruleSet"`
	ID         int         `json:"id"`
	Version    int         `json:"version"`
}

type reference struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

type metadata struct {
	Properties map[string]string `json:"properties,omitempty"`
}

// version is a version in an answer.
type version struct {
	Subject    string      `json:"subject,omitempty"`
	Version    int         `json:"version,omitempty"`
	ID         int         `json:"id,omitempty"`
	GUID       string      `json:"guid,omitempty"` // the fingerprint
	SchemaType string      `json:"schemaType"`
	References []reference `json:"references,omitempty"`
	Metadata   *metadata   `json:"metadata,omitempty"`
	Schema     string      `json:"schema"`
	TS         int64       `json:"ts,omitempty"`
	Deleted    bool        `json:"deleted,omitempty"`
}

func answer(v registry.Version) version {
	out := version{
		Subject: v.Topic, Version: v.Number, ID: v.ID, GUID: v.Fingerprint, SchemaType: schemaType, Schema: v.Text,
		TS: v.Created.UnixMilli(), Deleted: !v.Live(),
	}
	for _, to := range v.References {
		out.References = append(out.References, reference{Name: to.String(), Subject: to.Topic, Version: to.Version})
	}
	if len(v.Metadata) > 0 {
		out.Metadata = &metadata{Properties: v.Metadata}
	}
	return out
}

func (h *handler) subjectRoutes() {
	h.handle("GET /subjects", h.subjects)
	h.handle("POST /subjects/{subject}", h.lookUp)
	h.handle("DELETE /subjects/{subject}", h.deleteSubject)
	h.handle("GET /subjects/{subject}/versions", h.versions)
	h.handle("POST /subjects/{subject}/versions", h.register)
	h.handle("GET /subjects/{subject}/versions/{version}", func(r *http.Request) (any, error) {
		v, err := h.version(r)
		if err != nil {
			return nil, err
		}
		return answer(v), nil
	})
	h.handle("GET /subjects/{subject}/versions/{version}/schema", func(r *http.Request) (any, error) {
		v, err := h.version(r)
		return rawText(v.Text), err
	})
	h.handle("GET /subjects/{subject}/versions/{version}/referencedby", h.referencedBy)
	h.handle("DELETE /subjects/{subject}/versions/{version}", h.deleteVersion)
	h.handle("POST /compatibility/subjects/{subject}/versions", h.check)
	h.handle("POST /compatibility/subjects/{subject}/versions/{version}", h.check)
}

// subjects lists topics.
func (h *handler) subjects(r *http.Request) (any, error) {
	q := r.URL.Query()
	live, err := h.reg.Topics(r.Context(), false)
	if err != nil {
		return nil, err
	}
	list := live
	if only := flag(r, "deletedOnly"); only || flag(r, "deleted") {
		if list, err = h.reg.Topics(r.Context(), true); err != nil {
			return nil, err
		}
		if only {
			list = slices.DeleteFunc(slices.Clone(list), func(t string) bool { return slices.Contains(live, t) })
		}
	}
	out := []string{}
	for _, topic := range list {
		if !strings.HasPrefix(topic, q.Get("subjectPrefix")) || h.allow(r, topic, false) != nil {
			continue
		}
		if !slices.Contains(live, topic) {
			versions, err := h.known(r.Context(), topic, true)
			if err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(versions, func(v registry.Version) bool { return !v.Erased }) {
				continue
			}
		}
		out = append(out, topic)
	}
	return page(r, out), nil
}

// pageOf returns how many items of a list a request skips and how many it gets at most, -1 for all.
func pageOf(r *http.Request) (skip, most int) {
	q := r.URL.Query()
	if n, err := strconv.Atoi(q.Get("offset")); err == nil && n > 0 {
		skip = n
	}
	if n, err := strconv.Atoi(q.Get("limit")); err == nil && n >= 0 {
		return skip, n
	}
	return skip, -1
}

// page returns the part of a list that a request gets.
func page[T any](r *http.Request, list []T) []T {
	skip, most := pageOf(r)
	list = list[min(skip, len(list)):]
	if most >= 0 {
		list = list[:min(most, len(list))]
	}
	return list
}

// text reads the schema of a request.
func text(r *http.Request) (string, *schemaBody, error) {
	var b schemaBody
	if err := decode(r, &b); err != nil {
		return "", nil, err
	}
	switch {
	case b.Schema == nil || *b.Schema == "":
		return "", nil, &problem{422, 42201, "there is no schema"}
	case b.SchemaType != "" && b.SchemaType != schemaType:
		return "", nil, &problem{422, 42201, fmt.Sprintf("the schemaType is %.40q, use JSON", b.SchemaType)}
	case b.RuleSet != nil:
		return "", nil, &problem{422, 42201, "this registry has no rule sets"}
	}
	for _, ref := range b.References {
		to := registry.Reference{Topic: ref.Subject, Version: ref.Version}
		if named, err := registry.ParseReference(ref.Name); err != nil || named != to {
			return "", nil, &problem{422, 42201, fmt.Sprintf("the reference %.200q: refer to version %d of %.200q as %s, in $ref and as the name", ref.Name, ref.Version, ref.Subject, to)}
		}
	}
	return *b.Schema, &b, nil
}

// schemaOf reads the schema of a request, which may refer to what the request may read: else an
// answer would tell of the rest.
func (h *handler) schemaOf(r *http.Request, topic string) (string, *schemaBody, error) {
	text, b, err := text(r)
	if err != nil {
		return "", nil, err
	}
	refs, err := registry.References(text)
	if err != nil {
		return text, b, nil //nolint:nilerr // no schema refers to nothing; the registry says what is wrong with it
	}
	for _, to := range refs {
		if to.Topic == topic {
			continue
		}
		if err := h.allow(r, to.Topic, false); err != nil {
			return "", nil, err
		}
	}
	return text, b, nil
}

// register stores a schema as a version.
func (h *handler) register(r *http.Request) (any, error) {
	topic, err := h.subject(r, true)
	if err != nil {
		return nil, err
	}
	schema, b, err := h.schemaOf(r, topic)
	if err != nil {
		return nil, err
	}
	if b.ID > 0 || b.Version > 0 {
		return nil, &problem{422, 42205, "the registry gives ids and numbers itself: leave id and version out"}
	}
	o := registry.RegisterOptions{}
	if b.Metadata != nil {
		o.Metadata = b.Metadata.Properties
	}
	if h.c.By != nil {
		o.By = h.c.By(r)
	}
	v, err := h.reg.Register(r.Context(), topic, schema, o)
	if err != nil {
		return nil, invalidSchema(err)
	}
	return answer(v), nil
}

// lookUp finds the version of a schema.
func (h *handler) lookUp(r *http.Request) (any, error) {
	topic, err := h.subject(r, false)
	if err != nil {
		return nil, err
	}
	schema, _, err := h.schemaOf(r, topic)
	if err != nil {
		return nil, err
	}
	find := h.reg.Find
	if flag(r, "deleted") {
		find = h.reg.FindDeleted
	}
	v, err := find(r.Context(), topic, schema)
	switch {
	case errors.Is(err, registry.ErrNoVersion) && !errors.Is(err, registry.ErrInvalidReference):
		return nil, &problem{404, 40403, err.Error()}
	case err != nil:
		return nil, invalidSchema(err)
	}
	return answer(v), nil
}

// versions lists the numbers of a topic's versions.
func (h *handler) versions(r *http.Request) (any, error) {
	topic, err := h.subject(r, false)
	if err != nil {
		return nil, err
	}
	deleted, only := flag(r, "deleted"), flag(r, "deletedOnly")
	list, err := h.known(r.Context(), topic, deleted || only)
	if err != nil {
		return nil, err
	}
	out := []int{}
	for _, v := range list {
		if !v.Erased && (!only || !v.Live()) {
			out = append(out, v.Number)
		}
	}
	if len(out) == 0 && !only {
		return nil, fmt.Errorf("%s: %w", topic, registry.ErrNoSchema)
	}
	return page(r, out), nil
}

func (h *handler) known(ctx context.Context, topic string, deleted bool) ([]registry.Version, error) {
	list, err := h.reg.Versions(ctx, topic, deleted)
	if err != nil && !errors.Is(err, registry.ErrNoSchema) {
		return nil, err
	}
	return list, nil
}

// version returns the version of the path, a deleted one where the request says so.
func (h *handler) version(r *http.Request) (registry.Version, error) {
	topic, err := h.subject(r, false)
	if err != nil {
		return registry.Version{}, err
	}
	n, err := numberOf(r.PathValue("version"))
	if err != nil {
		return registry.Version{}, err
	}
	return h.find(r.Context(), topic, n, flag(r, "deleted"))
}

// find returns a version; 0 is the latest one.
func (h *handler) find(ctx context.Context, topic string, n int, deleted bool) (registry.Version, error) {
	if n == 0 {
		return h.reg.Latest(ctx, topic)
	}
	v, err := h.reg.Version(ctx, topic, n)
	if err == nil && (v.Erased || !v.Live() && !deleted) {
		return registry.Version{}, fmt.Errorf("version %d of %s is deleted: %w", n, topic, registry.ErrNoVersion)
	}
	return v, err
}

// referencedBy lists the ids of those that refer to a version, where the request may see them.
func (h *handler) referencedBy(r *http.Request) (any, error) {
	v, err := h.version(r)
	if err != nil {
		return nil, err
	}
	list, err := h.reg.ReferencedBy(r.Context(), v.Topic, v.Number)
	if err != nil {
		return nil, err
	}
	out := []int{}
	for _, by := range list {
		if h.allow(r, by.Topic, false) != nil {
			continue
		}
		referrer, err := h.reg.Version(r.Context(), by.Topic, by.Version)
		if err != nil {
			return nil, err
		}
		if referrer.Live() && !slices.Contains(out, referrer.ID) {
			out = append(out, referrer.ID)
		}
	}
	return out, nil
}

// deleteVersion deletes a version, or erases it.
func (h *handler) deleteVersion(r *http.Request) (any, error) {
	topic, err := h.subject(r, true)
	if err != nil {
		return nil, err
	}
	n, err := numberOf(r.PathValue("version"))
	if err != nil {
		return nil, err
	}
	if n == 0 {
		v, err := h.reg.Latest(r.Context(), topic)
		if err != nil {
			return nil, err
		}
		n = v.Number
	}
	permanent := flag(r, "permanent")
	if !permanent {
		if old, err := h.reg.Version(r.Context(), topic, n); err == nil && !old.Live() && !old.Erased {
			return nil, &problem{404, 40406, fmt.Sprintf("version %d of %s is deleted already; ?permanent=true erases it", n, topic)}
		}
	}
	v, err := h.reg.Delete(r.Context(), topic, n, registry.DeleteOptions{Permanent: permanent})
	if err != nil {
		return nil, err
	}
	return v.Number, nil
}

// deleteSubject deletes all versions of a topic, or erases them.
func (h *handler) deleteSubject(r *http.Request) (any, error) {
	topic, err := h.subject(r, true)
	if err != nil {
		return nil, err
	}
	permanent := flag(r, "permanent")
	done, err := h.reg.DeleteTopic(r.Context(), topic, registry.DeleteOptions{Permanent: permanent})
	switch {
	case errors.Is(err, registry.ErrNotDeleted):
		return nil, &problem{404, 40405, err.Error()}
	case err != nil:
		return nil, err
	case len(done) > 0:
		slices.Sort(done)
		return done, nil
	}
	gone, err := h.known(r.Context(), topic, true)
	if err != nil {
		return nil, err
	}
	if len(gone) > 0 && !permanent {
		return nil, &problem{404, 40404, topic + " is deleted already; ?permanent=true erases it"}
	}
	return nil, fmt.Errorf("%s: %w", topic, registry.ErrNoSchema)
}

// check says whether a schema would be registered.
func (h *handler) check(r *http.Request) (any, error) {
	topic, err := h.subject(r, false)
	if err != nil {
		return nil, err
	}
	schema, _, err := h.schemaOf(r, topic)
	if err != nil {
		return nil, err
	}
	settings, err := h.reg.Settings(r.Context(), topic)
	if err != nil {
		return nil, err
	}
	var o registry.CheckOptions
	if s := r.PathValue("version"); s != "" {
		n, err := numberOf(s)
		if err != nil {
			return nil, err
		}
		v, err := h.find(r.Context(), topic, n, false)
		if err != nil {
			return nil, err
		}
		if settings.Level != registry.LevelNone { // under which nothing is compared
			o.Against = []int{v.Number}
		}
	}
	report, err := h.reg.Check(r.Context(), topic, schema, o)
	if err != nil {
		return nil, invalidSchema(err)
	}
	out := struct {
		Compatible bool     `json:"is_compatible"`
		Messages   []string `json:"messages,omitempty"`
	}{Compatible: report.Compatible}
	if err := report.Err(); err != nil && flag(r, "verbose") {
		out.Messages = []string{err.Error()}
	}
	return out, nil
}
