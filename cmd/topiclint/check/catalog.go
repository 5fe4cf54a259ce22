package check

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// A Catalog is a list of topics. It is read from a file with {"topics": [...]}, or from
// the schemas of a registry, as jetbus schema export writes them.
type Catalog struct {
	Topics []Topic `json:"topics"`
	// Partial means that the catalog lists every topic with a schema, but not all topics.
	// A registry yields such a catalog. Topics that other catalogs lack are unknown.
	Partial bool `json:"-"`
}

// A Topic is what a catalog, or the source of a program, says about a topic.
type Topic struct {
	Name string `json:"name"` // see jetbus.ValidTopic
	// Schema is the latest version of the topic's schema. 0: it has none.
	Schema int `json:"schema,omitempty"`
	// Partitions is how many the topic has. 0: none.
	Partitions int  `json:"partitions,omitempty"`
	Compacted  bool `json:"compacted,omitempty"` // see jetbus.TopicConfig.Compact
	// KeyInSubject: its state can be read; see jetbus.TopicConfig. Compacted implies it.
	KeyInSubject bool `json:"keyInSubject,omitempty"`
	// Deprecated says what to use instead. Empty: it is not deprecated.
	Deprecated string `json:"deprecated,omitempty"`
	// Payload is the Go type of the values, with the path of its package:
	// "example.com/orders.Created". Empty: any.
	Payload string `json:"payload,omitempty"`
}

// ParseCatalog reads a catalog, in JSON or as jetbus schema export writes it. It fails
// on unknown members, invalid topics, a topic that appears twice and an export that is
// truncated; the error wraps [ErrInvalidOption].
func ParseCatalog(text []byte) (*Catalog, error) {
	if isExport(text) {
		return parseExport(text)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var c Catalog
	if err := d.Decode(&c); err != nil {
		return nil, optionf("catalog: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, optionf("catalog: there is more behind its end")
	}
	seen := make(map[string]bool, len(c.Topics))
	for i, t := range c.Topics {
		switch err := jetbus.ValidTopic(t.Name); {
		case err != nil:
			return nil, optionf("catalog: topic %d: %w", i+1, err)
		case seen[t.Name]:
			return nil, optionf("catalog: topic %d: %s is there twice", i+1, t.Name)
		case t.Schema < 0, t.Partitions < 0, t.Partitions > jetbus.MaxPartitions:
			return nil, optionf("catalog: topic %s: schema is %d, partitions is %d: use 0 or more, and at most %d partitions", t.Name, t.Schema, t.Partitions, jetbus.MaxPartitions)
		}
		seen[t.Name] = true
	}
	return &c, nil
}

// exportLine holds the members of an export line that the catalog uses; see registry.Export.
type exportLine struct {
	Kind    string `json:"kind"`
	Format  string `json:"format"`
	Lines   int    `json:"lines"` // of the last line: the number of lines before it
	Version struct {
		Topic   string    `json:"topic"`
		Number  int       `json:"version"`
		Deleted time.Time `json:"deleted"`
		Erased  bool      `json:"erased"`
	} `json:"version"`
}

// isExport reports whether a text begins as an export of a registry does.
func isExport(text []byte) bool {
	var head exportLine
	err := json.NewDecoder(bytes.NewReader(text)).Decode(&head)
	return err == nil && head.Kind == "schemas"
}

// parseExport reads the topics that have a schema from an export of a registry.
func parseExport(text []byte) (*Catalog, error) {
	latest := make(map[string]int)
	lines, ended := 0, false
	d := json.NewDecoder(bytes.NewReader(text))
	for {
		var line exportLine
		err := d.Decode(&line)
		switch v := line.Version; {
		case errors.Is(err, io.EOF) && ended:
			c := &Catalog{Partial: true}
			for _, name := range slices.Sorted(maps.Keys(latest)) {
				c.Topics = append(c.Topics, Topic{Name: name, Schema: latest[name]})
			}
			return c, nil
		case errors.Is(err, io.EOF):
			return nil, optionf("catalog: the export of schemas is truncated after line %d", lines)
		case err != nil:
			return nil, optionf("catalog: export of schemas: line %d: %w", lines+1, err)
		case ended:
			return nil, optionf("catalog: export of schemas: unexpected data after its last line")
		case line.Kind == "schemas" && line.Format != "1":
			return nil, optionf("catalog: export of schemas: unknown format %q", line.Format)
		case line.Kind == "end" && line.Lines != lines:
			return nil, optionf("catalog: the export of schemas has %d lines, %d are missing", lines, line.Lines-lines)
		case line.Kind == "end":
			ended = true
		case line.Kind == "version" && v.Deleted.IsZero() && !v.Erased:
			if err := jetbus.ValidTopic(v.Topic); err != nil || v.Number < 1 {
				return nil, optionf("catalog: export of schemas: line %d: invalid version %d of topic %.100q", lines+1, v.Number, v.Topic)
			}
			latest[v.Topic] = max(latest[v.Topic], v.Number)
		}
		lines++
	}
}

// LoadCatalog reads a catalog from a file, and returns its SHA-256 in hex beside it.
func LoadCatalog(file string) (c *Catalog, hash string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, "", fmt.Errorf("%w: catalog: %w", ErrInvalidOption, err)
	}
	sum := sha256.Sum256(text)
	c, err = ParseCatalog(text)
	return c, hex.EncodeToString(sum[:]), err
}

// loadHashed reads a catalog whose hash must be the one given.
func loadHashed(file, want string) (*Catalog, error) {
	c, hash, err := LoadCatalog(file)
	switch {
	case err != nil:
		return nil, err
	case want == "":
		return nil, optionf("catalog without cataloghash: go vet would go on with what it found by an older catalog; topiclint -vetflags prints both flags")
	case hash != want:
		return nil, optionf("the catalog %s has the hash %s, cataloghash is %s: it changed meanwhile", file, hash, want)
	}
	return c, nil
}

// nearest returns the name that is spelled most like name, or "" where none is.
func nearest(name string, names []string) string {
	best, bound := "", min(2, len(name)/4)+1
	for _, n := range names {
		if d := distance(name, n); d < bound || d == bound && best != "" && n < best {
			best, bound = n, d
		}
	}
	return best
}

// distance is Levenshtein's: how many letters must be added, removed or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, corner+1)
		}
	}
	return row[len(b)]
}
