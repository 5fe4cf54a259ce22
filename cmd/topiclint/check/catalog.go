package check

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/seed-63e9a637/jetbus"
)

// A Catalog is a list of topics that is complete: what it does not have is no topic.
// Its JSON form is {"topics": [...]}.
type Catalog struct {
	Topics []Topic `json:"topics"`
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

// ParseCatalog reads a catalog. It fails on members that it does not know, on names
// that are no topics and on a topic that is there twice; the error wraps [ErrInvalidOption].
func ParseCatalog(text []byte) (*Catalog, error) {
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
