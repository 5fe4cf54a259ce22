package registry

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
)

// What a line of an export is.
const (
	lineHead     = "schemas" // the first line
	lineID       = "id"
	lineVersion  = "version"
	lineSettings = "settings"
	lineGlobal   = "global"
	lineEnd      = "end" // the last line: what was before it is all there is
)

// line is one line of an export. What is nil or zero is not of its kind.
type line struct {
	Kind        string    `json:"kind"`
	Format      string    `json:"format,omitempty"` // of lineHead
	ID          int       `json:"id,omitempty"`     // of lineID
	Fingerprint string    `json:"fingerprint,omitempty"`
	Topic       string    `json:"topic,omitempty"` // of lineSettings
	Settings    *Settings `json:"settings,omitempty"`
	Version     *Version  `json:"version,omitempty"`
	Lines       int       `json:"lines,omitempty"` // of lineEnd: those before it
}

// Export writes the whole registry as it is at one moment, one JSON object a line:
// ids, versions with deleted and erased ones, and settings, each of them in order,
// so that exports can be compared. The error wraps [ErrUnreadable] where one of them
// cannot be read, jetbus.ErrClosed, or is that of w.
func (r *Registry) Export(ctx context.Context, w io.Writer) error {
	s, err := r.read(ctx)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	buffered := bufio.NewWriter(w)
	e := json.NewEncoder(buffered)
	e.SetEscapeHTML(false)
	count := 0
	put := func(l line) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		count++
		return e.Encode(l)
	}
	if err = s.export(put); err == nil {
		if err = e.Encode(line{Kind: lineEnd, Lines: count}); err == nil {
			err = buffered.Flush()
		}
	}
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

func (s *snapshot) export(put func(line) error) error {
	if err := put(line{Kind: lineHead, Format: formatVersion}); err != nil {
		return err
	}
	if err := s.global.export(line{Kind: lineGlobal}, put); err != nil {
		return fmt.Errorf("global settings: %w", err)
	}
	ids := s.ids.all()
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		if ids[id] == "" {
			return fmt.Errorf("id %d: %w", id, ErrUnreadable)
		}
		if err := put(line{Kind: lineID, ID: id, Fingerprint: ids[id]}); err != nil {
			return err
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(s.topics)) {
		t := s.topics[topic]
		if err := t.settings.export(line{Kind: lineSettings, Topic: topic}, put); err != nil {
			return fmt.Errorf("settings of %s: %w", topic, err)
		}
		for _, e := range t.versions {
			if e.broken != nil {
				return fmt.Errorf("version %d of %s: %w", e.Number, topic, e.broken)
			}
			if err := put(line{Kind: lineVersion, Version: &e.Version}); err != nil {
				return err
			}
		}
	}
	return nil
}

// export writes settings as a line, if there are any.
func (s ownSettings) export(l line, put func(line) error) error {
	if s.broken != nil || s.Settings == (Settings{}) {
		return s.broken
	}
	l.Settings = &s.Settings
	return put(l)
}
