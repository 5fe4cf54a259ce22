package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/exactjson"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// maxSpecFile bounds what is read of a file.
const maxSpecFile = 1 << 20

// projectSpec is a projection as the flags or a file describe it. The names are
// those of the file.
type projectSpec struct {
	Topic        string      `json:"topic"`
	Collection   string      `json:"collection"`
	Name         string      `json:"name"`
	From         string      `json:"from"`
	KeyOf        jsonPath    `json:"keyOf"`
	Map          fieldList   `json:"map"`
	Tombstone    condition   `json:"tombstone"`
	VersionOf    jsonPath    `json:"versionOf"`
	Indexes      []indexSpec `json:"indexes"`
	TombstoneTTL periodText  `json:"tombstoneTTL"`
	HardDelete   bool        `json:"hardDelete"`
	Exclusive    bool        `json:"exclusive"`
	Merge        bool        `json:"merge"`
}

// indexSpec is an index as a file describes it.
type indexSpec struct {
	Name   string     `json:"name"`
	Keys   indexKeys  `json:"keys"`
	Unique bool       `json:"unique"`
	Sparse bool       `json:"sparse"`
	Where  filterText `json:"where"` // of a partial index
}

// fieldList is the map of a file: an object of fields with their paths, in its order.
type fieldList []field

// UnmarshalJSON reads {"host": ".host", "load": ".cpu_pct"}.
func (l *fieldList) UnmarshalJSON(text []byte) error {
	*l = fieldList{}
	return eachMember(text, func(name string, raw json.RawMessage) error {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return fmt.Errorf("map: %s: a path is a string", name)
		}
		return l.add(name, s)
	})
}

// add adds a field, if documents can have it.
func (l *fieldList) add(name, path string) error {
	p, err := parsePath(path)
	if err != nil {
		return fmt.Errorf("map: %s: %w", name, err)
	}
	switch {
	case name == "" || strings.HasPrefix(name, "$") || strings.ContainsAny(name, ".\x00"):
		return fmt.Errorf("map: %q is no name of a field: it must not be empty, start with $ or have dots", name)
	case strings.HasPrefix(name, "_"):
		return fmt.Errorf("map: %s: fields that start with _ are the projection's own", name)
	}
	for _, f := range *l {
		if f.name == name {
			return fmt.Errorf("map: %s is there twice", name)
		}
	}
	*l = append(*l, field{name, p})
	return nil
}

// parseFields reads --map: field=path, separated by commas or given repeatedly.
func parseFields(flags []string) (fieldList, error) {
	var l fieldList
	for _, flag := range flags {
		for piece := range strings.SplitSeq(flag, ",") {
			name, path, ok := strings.Cut(piece, "=")
			if !ok {
				return nil, usagef("--map %q: use field=path, as in host=.host,load=.cpu_pct", piece)
			}
			if err := l.add(name, path); err != nil {
				return nil, usagef("--%w", err)
			}
		}
	}
	return l, nil
}

// indexKeys are the fields of an index in their order.
type indexKeys bson.D

// UnmarshalJSON reads {"host": 1, "name": -1}.
func (k *indexKeys) UnmarshalJSON(text []byte) error {
	*k = nil
	return eachMember(text, func(name string, raw json.RawMessage) error {
		if s := string(raw); s != "1" && s != "-1" {
			return fmt.Errorf("indexes: %s: use 1 for ascending or -1 for descending", name)
		}
		return k.add(name, string(raw) == "-1")
	})
}

func (k *indexKeys) add(name string, descending bool) error {
	if name == "" || strings.HasPrefix(name, "$") || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%q is no name of a field", name)
	}
	for _, e := range *k {
		if e.Key == name {
			return fmt.Errorf("%s is in an index twice", name)
		}
	}
	direction := int32(1)
	if descending {
		direction = -1
	}
	*k = append(*k, bson.E{Key: name, Value: direction})
	return nil
}

// parseIndexes reads --index and --unique-index: an index each, of fields separated
// by commas, descending where they start with a minus.
func parseIndexes(flag string, values []string, unique bool) ([]indexSpec, error) {
	var list []indexSpec
	for _, v := range values {
		i := indexSpec{Unique: unique}
		for name := range strings.SplitSeq(v, ",") {
			name, descending := strings.CutPrefix(name, "-")
			if err := i.Keys.add(name, descending); err != nil {
				return nil, usagef("--%s %s: %w: use fields as in host,-name", flag, v, err)
			}
		}
		list = append(list, i)
	}
	return list, nil
}

// filterText is a filter in extended JSON.
type filterText bson.D

// UnmarshalJSON reads {"status": "alive"}.
func (f *filterText) UnmarshalJSON(text []byte) error {
	return bson.UnmarshalExtJSON(text, false, (*bson.D)(f))
}

// periodText is a period of a file: "12h", "31d", "none".
type periodText time.Duration

// UnmarshalText reads a period as flags have it.
func (p *periodText) UnmarshalText(text []byte) error { return (*periodFlag)(p).Set(string(text)) }

// eachMember calls f for the members of an object in their order.
func eachMember(text []byte, f func(name string, raw json.RawMessage) error) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(errors.New("there should be an object"), err)
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		if err := f(name.(string), raw); err != nil { // the decoder has checked that a name is a string
			return err
		}
	}
	return nil
}

// parseSpec reads a file that describes a projection.
func parseSpec(text []byte) (s projectSpec, err error) {
	return s, parseObject(text, &s)
}

// parseObject decodes a JSON object by exact member names, and refuses unknown members.
func parseObject(text []byte, to any) error {
	return exactjson.Unmarshal(text, to, exactjson.RefuseAll)
}

// readSpec reads the file that --file names; "-" is standard input, whose end an interrupt does
// not wait for.
func readSpec[T any](cmd *cobra.Command, name string, parse func([]byte) (T, error)) (s T, err error) {
	in := cmd.InOrStdin()
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return s, usagef("--file: %w", fileError(err))
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	}
	text, err := readUntilDone(cmd.Context(), func() ([]byte, error) { return io.ReadAll(io.LimitReader(in, maxSpecFile+1)) })
	switch {
	case cmd.Context().Err() != nil:
		return s, fmt.Errorf("interrupted before the end of %s: nothing was begun", inputName(name))
	case err != nil:
		return s, fmt.Errorf("read %s: %w", inputName(name), err)
	case len(text) > maxSpecFile:
		return s, usagef("--file %s: it has more than %s", name, size(int64(maxSpecFile)))
	}
	if s, err = parse(text); err != nil {
		return s, usagef("--file %s: %w", name, err)
	}
	return s, nil
}

// inputName is what people call a file that is named to a command, of which "-" is none.
func inputName(name string) string {
	if name == "-" {
		return "standard input"
	}
	return name
}

// check refuses what cannot work before anything is asked, and fills in the name.
func (s *projectSpec) check() error {
	switch {
	case s.Topic == "" && s.From == "":
		return usagef("name the topic to project, or with --from a snapshot of it")
	case s.VersionOf.text == "key":
		return usagef("--version-of key: use a path into the payload, like .version")
	case s.HardDelete && !s.Exclusive:
		return usagef("--hard-delete needs --exclusive: where replicas share the events, a deletion without a trace can be undone by an older event")
	case s.TombstoneTTL != 0 && s.HardDelete:
		return usagef("--tombstone-ttl says how long the trace of a deletion stays, and --hard-delete leaves none")
	}
	for _, name := range []string{s.Topic, s.From} {
		if name == "" {
			continue
		}
		if err := checkTopic(name); err != nil {
			return err
		}
	}
	if s.Name != "" {
		if err := jetbus.ValidGroup(s.Name); err != nil {
			return usagef("--name: %w", err)
		}
	}
	for i, index := range s.Indexes {
		if len(index.Keys) == 0 {
			return usagef("indexes: number %d has no keys", i+1)
		}
	}
	return nil
}

// complete fills in what is left open once the topic is known: the collection is
// called like the topic, and the projection like the collection.
func (s *projectSpec) complete() error {
	s.Collection = or(s.Collection, s.Topic)
	if s.Name == "" {
		if err := jetbus.ValidGroup(s.Collection); err != nil {
			return usagef("the projection would be named like its collection, and %w: name it with --name", err)
		}
		s.Name = s.Collection
	}
	return nil
}

// options are the projection's.
func (s *projectSpec) options() projector.Options {
	o := projector.Options{Name: s.Name, Topic: s.Topic, From: s.From, Exclusive: s.Exclusive}
	if !s.KeyOf.isKey() {
		o.KeyOf = s.KeyOf.key
	}
	if s.Map != nil {
		o.Map = func(e jetbus.Event) (any, error) { return project(s.Map, e) }
	}
	if s.Tombstone.path.text != "" {
		o.Tombstone = s.Tombstone.holds
	}
	if !s.VersionOf.isKey() {
		o.VersionOf = s.VersionOf.version
	}
	return o
}

// sink are the options of the collection.
func (s *projectSpec) sink() mongosink.Options {
	o := mongosink.Options{Collection: s.Collection, Merge: s.Merge, HardDelete: s.HardDelete, TombstoneTTL: time.Duration(s.TombstoneTTL)}
	for _, i := range s.Indexes {
		o.Indexes = append(o.Indexes, mongosink.Index{Name: i.Name, Keys: bson.D(i.Keys), Unique: i.Unique, Sparse: i.Sparse, Partial: bson.D(i.Where)})
	}
	return o
}
