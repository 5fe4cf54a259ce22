package drive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// place is what a finding is known by in a baseline. Lines are not in it: they move.
type place struct {
	File    string `json:"file"`
	Check   string `json:"check"`
	Message string `json:"message"`
}

// knownItem is one line of a baseline.
type knownItem struct {
	place
	Count int `json:"count"` // how many there are of it
}

// baselineFile is a baseline's JSON form.
type baselineFile struct {
	Findings []knownItem `json:"findings"`
}

// baseline counts the findings that are known.
type baseline map[place]int

func (c *Config) baseline() (baseline, error) {
	if c.Baseline == "" || c.WriteBaseline {
		return nil, nil
	}
	text, err := os.ReadFile(c.Baseline)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: baseline: %w; write it with -write-baseline", ErrUsage, err)
	}
	if err != nil {
		return nil, fmt.Errorf("baseline: %w", err)
	}
	return parseBaseline(text)
}

func parseBaseline(text []byte) (baseline, error) {
	var file baselineFile
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf("%w: baseline: %w", ErrUsage, err)
	}
	b := make(baseline)
	for _, item := range file.Findings {
		if item.Count < 1 {
			return nil, fmt.Errorf("%w: baseline: %s in %s: count is %d, use 1 or more", ErrUsage, item.Check, item.File, item.Count)
		}
		b[item.place] += item.Count
	}
	return b, nil
}

// unknown returns the findings that are not known. Of those that are alike, the last
// ones are new.
func (b baseline) unknown(list []Finding) []Finding {
	used := make(map[place]int)
	var fresh []Finding
	for _, f := range list {
		p := place{f.File, f.ID, f.Message}
		if used[p]++; used[p] > b[p] {
			fresh = append(fresh, f)
		}
	}
	return fresh
}

func writeBaseline(name string, list []Finding) error {
	file := baselineFile{Findings: []knownItem{}}
	at := make(map[place]int)
	for _, f := range list {
		p := place{f.File, f.ID, f.Message}
		i, ok := at[p]
		if !ok {
			i = len(file.Findings)
			at[p] = i
			file.Findings = append(file.Findings, knownItem{place: p})
		}
		file.Findings[i].Count++
	}
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	return nil
}
