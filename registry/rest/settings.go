package rest

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"github.com/seed-63e9a637/jetbus/registry"
)

func (h *handler) settingRoutes() {
	for _, at := range []string{"/config", "/config/{subject}"} {
		h.handle("GET "+at, h.config)
		h.handle("PUT "+at, h.setConfig)
		h.handle("DELETE "+at, h.unsetConfig)
	}
	for _, at := range []string{"/mode", "/mode/{subject}"} {
		h.handle("GET "+at, h.mode)
		h.handle("PUT "+at, h.setMode)
		h.handle("DELETE "+at, h.unsetMode)
	}
}

// level is a level in an answer, under both names that Confluent's has for it.
type level struct {
	Level string `json:"compatibilityLevel"`
	Set   string `json:"compatibility"`
	Model string `json:"model"`
}

func levelOf(s registry.Settings) level {
	name := strings.ToUpper(string(s.Level))
	return level{Level: name, Set: name, Model: string(s.Model)}
}

// modeOf is a mode in an answer.
func modeOf(s registry.Settings) any {
	return struct {
		Mode string `json:"mode"`
	}{strings.ToUpper(string(s.Mode))}
}

// scope returns the topic of the path, empty for all topics, if the request may use it.
func (h *handler) scope(r *http.Request, write bool) (string, error) {
	if r.PathValue("subject") == "" {
		return "", h.allow(r, "", write)
	}
	return h.subject(r, write)
}

// own returns what is set for a topic, or for all, and what holds there.
func (h *handler) own(r *http.Request, topic string) (set, holds registry.Settings, err error) {
	if topic == "" {
		if set, err = h.reg.GlobalSettings(r.Context()); err == nil {
			holds, err = h.reg.Settings(r.Context(), unusedTopic)
		}
		return set, holds, err
	}
	if set, err = h.reg.TopicSettings(r.Context(), topic); err == nil {
		holds, err = h.reg.Settings(r.Context(), topic)
	}
	return set, holds, err
}

// unusedTopic is one that has no settings of its own: what holds for it holds for all such.
const unusedTopic = "dlq._"

// change changes what is set for a topic, or for all.
func (h *handler) change(r *http.Request, topic string, f func(*registry.Settings)) (err error) {
	if topic == "" {
		_, err = h.reg.UpdateGlobalSettings(r.Context(), f)
	} else {
		_, err = h.reg.UpdateSettings(r.Context(), topic, f)
	}
	return err
}

// inherited refuses a topic that has no setting of its own, unless the request asks for what holds.
func inherited(r *http.Request, topic, set string, code int) error {
	if topic == "" || set != "" || flag(r, "defaultToGlobal") {
		return nil
	}
	return &problem{404, code, fmt.Sprintf("%s has none of its own; ?defaultToGlobal=true gives what holds", topic)}
}

func (h *handler) config(r *http.Request) (any, error) {
	topic, err := h.scope(r, false)
	if err != nil {
		return nil, err
	}
	set, holds, err := h.own(r, topic)
	if err != nil {
		return nil, err
	}
	if err := inherited(r, topic, string(set.Level), 40408); err != nil {
		return nil, err
	}
	return levelOf(holds), nil
}

func (h *handler) setConfig(r *http.Request) (any, error) {
	topic, err := h.scope(r, true)
	if err != nil {
		return nil, err
	}
	var b struct {
		Compatibility string `json:"compatibility"`
		Level         string `json:"compatibilityLevel"`

		registry.Settings // of which the model alone is looked at
	}
	if err := decode(r, &b); err != nil {
		return nil, err
	}
	name := cmp.Or(b.Compatibility, b.Level)
	if name == "" && b.Model == "" {
		return nil, &problem{422, 42203, "there is no compatibility"}
	}
	wanted := registry.Settings{Level: registry.Level(strings.ToLower(name))}
	if name != "" {
		if err := wanted.Level.Valid(); err != nil {
			return nil, err
		}
	}
	err = h.change(r, topic, func(s *registry.Settings) {
		s.Level, s.Model = cmp.Or(wanted.Level, s.Level), cmp.Or(b.Model, s.Model)
	})
	if err != nil {
		return nil, err
	}
	_, holds, err := h.own(r, topic)
	if err != nil {
		return nil, err
	}
	return levelOf(holds), nil
}

func (h *handler) unsetConfig(r *http.Request) (any, error) {
	topic, err := h.scope(r, true)
	if err != nil {
		return nil, err
	}
	_, holds, err := h.own(r, topic)
	if err != nil {
		return nil, err
	}
	if err := h.change(r, topic, func(s *registry.Settings) { s.Level, s.Model = "", "" }); err != nil {
		return nil, err
	}
	return levelOf(holds), nil
}

func (h *handler) mode(r *http.Request) (any, error) {
	topic, err := h.scope(r, false)
	if err != nil {
		return nil, err
	}
	set, holds, err := h.own(r, topic)
	if err != nil {
		return nil, err
	}
	if err := inherited(r, topic, string(set.Mode), 40409); err != nil {
		return nil, err
	}
	return modeOf(holds), nil
}

func (h *handler) setMode(r *http.Request) (any, error) {
	topic, err := h.scope(r, true)
	if err != nil {
		return nil, err
	}
	var b struct {
		Mode string `json:"mode"`
	}
	if err := decode(r, &b); err != nil {
		return nil, err
	}
	wanted := registry.Settings{Mode: registry.Mode(strings.ToLower(b.Mode))}
	if err := wanted.Valid(); err != nil || b.Mode == "" {
		return nil, &problem{422, 42204, fmt.Sprintf("the mode is %.40q, use READWRITE or READONLY", b.Mode)}
	}
	if err := h.change(r, topic, func(s *registry.Settings) { s.Mode = wanted.Mode }); err != nil {
		return nil, err
	}
	return modeOf(wanted), nil
}

func (h *handler) unsetMode(r *http.Request) (any, error) {
	topic, err := h.scope(r, true)
	if err != nil {
		return nil, err
	}
	_, holds, err := h.own(r, topic)
	if err != nil {
		return nil, err
	}
	if err := h.change(r, topic, func(s *registry.Settings) { s.Mode = "" }); err != nil {
		return nil, err
	}
	return modeOf(holds), nil
}
