package rest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-63e9a637/jetbus/registry"
)

func (h *handler) schemaRoutes() {
	h.handle("GET /schemas/types", func(*http.Request) (any, error) { return []string{schemaType}, nil })
	h.handle("GET /schemas", h.schemas)
	h.handle("GET /contexts", func(*http.Request) (any, error) { return []string{"."}, nil })
	h.handle("GET /schemas/ids/{id}", func(r *http.Request) (any, error) {
		list, err := h.byID(r, true)
		if err != nil {
			return nil, err
		}
		v := answer(list[0])
		return version{SchemaType: v.SchemaType, Schema: v.Schema, References: v.References, Metadata: v.Metadata, GUID: v.GUID}, nil
	})
	h.handle("GET /schemas/ids/{id}/schema", func(r *http.Request) (any, error) {
		list, err := h.byID(r, true)
		if err != nil {
			return nil, err
		}
		return rawText(list[0].Text), nil
	})
	h.handle("GET /schemas/ids/{id}/subjects", func(r *http.Request) (any, error) {
		list, err := h.byID(r, flag(r, "deleted"))
		if err != nil {
			return nil, err
		}
		out := []string{}
		for _, v := range list { // in the order of topics
			if n := len(out); n == 0 || out[n-1] != v.Topic {
				out = append(out, v.Topic)
			}
		}
		return out, nil
	})
	h.handle("GET /schemas/ids/{id}/versions", func(r *http.Request) (any, error) {
		list, err := h.byID(r, flag(r, "deleted"))
		if err != nil {
			return nil, err
		}
		type usage struct {
			Subject string `json:"subject"`
			Version int    `json:"version"`
		}
		out := []usage{}
		for _, v := range list {
			out = append(out, usage{v.Topic, v.Number})
		}
		return out, nil
	})
}

// schemas lists versions, in the order of topics and numbers.
func (h *handler) schemas(r *http.Request) (any, error) {
	deleted := flag(r, "deleted")
	topics, err := h.reg.Topics(r.Context(), deleted)
	if err != nil {
		return nil, err
	}
	out := []version{}
	skip, most := pageOf(r)
	for _, topic := range topics {
		if len(out) == most {
			break
		}
		if !strings.HasPrefix(topic, r.URL.Query().Get("subjectPrefix")) || h.allow(r, topic, false) != nil {
			continue
		}
		list, err := h.known(r.Context(), topic, deleted)
		if err != nil {
			return nil, err
		}
		list = slices.DeleteFunc(list, func(v registry.Version) bool { return v.Erased })
		if flag(r, "latestOnly") && len(list) > 0 {
			list = list[len(list)-1:]
		}
		skipped := min(skip, len(list))
		list, skip = list[skipped:], skip-skipped
		if most >= 0 {
			list = list[:min(most-len(out), len(list))]
		}
		for _, v := range list {
			out = append(out, answer(v))
		}
	}
	return out, nil
}

// byID returns the versions with the id of the path that the request may see, one or more. A
// schema is found by its id as long as it is not erased; deleted says whether versions are
// listed that are deleted.
func (h *handler) byID(r *http.Request, deleted bool) ([]registry.Version, error) {
	none := &problem{404, 40403, fmt.Sprintf("no schema has the id %.40q", r.PathValue("id"))}
	id, err := strconv.Atoi(r.PathValue("id"))
	if err != nil || id < 1 {
		return nil, none
	}
	list, err := h.reg.ByID(r.Context(), id)
	if err != nil {
		p := h.explain(r, err)
		if p.Code == 40401 {
			return nil, none
		}
		return nil, p
	}
	var out []registry.Version
	for _, v := range list {
		if (deleted || v.Live()) && h.allow(r, v.Topic, false) == nil {
			out = append(out, v)
		}
	}
	if len(out) == 0 {
		return nil, none
	}
	return out, nil
}
