package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus/changefeed"
)

// feedSpec is a change feed as the flags or a file describe it. The names are those
// of the file.
type feedSpec struct {
	Database      string       `json:"database"`
	Collection    string       `json:"collection"`
	Topic         string       `json:"topic"`
	Name          string       `json:"name"`
	Mode          string       `json:"mode"`
	FullDocument  string       `json:"fullDocument"`
	Before        string       `json:"before"`
	Expanded      bool         `json:"expanded"`
	Ops           []string     `json:"ops"`
	Filter        filterText   `json:"filter"`
	Format        string       `json:"format"`
	Start         feedStart    `json:"start"`
	OnHistoryLost string       `json:"onHistoryLost"`
	OnInvalidate  string       `json:"onInvalidate"`
	OnOversize    string       `json:"onOversize"`
	OnPoison      string       `json:"onPoison"`
	OnMissing     string       `json:"onMissing"`
	AllowLoop     bool         `json:"allowLoop"`
	TokenStore    string       `json:"tokenStore"`
	Lease         jsonDuration `json:"lease"`
}

// feedDescribed are the flags that a file stands for.
var feedDescribed = []string{
	"database", "db", "collection", "topic", "name", "mode", "full-document", "before", "expanded", "ops", "filter", "format", "start",
	"on-history-lost", "on-invalidate", "on-oversize", "on-poison", "on-missing", "allow-loop", "token-store", "lease",
}

// add adds the flags that describe a feed.
func (s *feedSpec) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.Collection, "collection", "", "collection, which need not exist yet (default all of the database)")
	flags.StringVar(&s.Topic, "topic", "", "topic to publish to, which nobody else does; declared where it does not exist")
	flags.StringVar(&s.Name, "name", "", "name of the feed, which its instances share (default TOPIC with dashes)")
	flags.StringVar(&s.Mode, "mode", "", "how each change gets into the topic once: auto, chain, atomic or serial (default auto)")
	flags.StringVar(&s.FullDocument, "full-document", "", "document of an update: updateLookup, whenAvailable, required, or default for what was changed alone (default updateLookup)")
	flags.StringVar(&s.Before, "before", "", "whether MongoDB must have the documents before the change: off, whenAvailable or required (default off)")
	flags.BoolVar(&s.Expanded, "expanded", false, "publish what happens to indexes and collections, too")
	flags.StringSliceVar(&s.Ops, "ops", nil, "only these: insert,update,replace,delete; what happens to the collection itself is always published")
	flags.Var(&s.Filter, "filter", `only what this condition on operationType and ns selects, such as {"ns.coll": {"$ne": "tmp"}}`)
	flags.StringVar(&s.Format, "format", "", "payload: relaxed or canonical for extended JSON, or bson (default relaxed)")
	flags.Var(&s.Start, "start", "where a feed without a position begins: latest, copy for all documents first, a time (RFC 3339), or a resume token (default latest)")
	flags.StringVar(&s.OnHistoryLost, "on-history-lost", "", "when MongoDB no longer has the changes: fail, resync or latest (default fail)")
	flags.StringVar(&s.OnInvalidate, "on-invalidate", "", "when the collection is dropped or renamed: continue, fail or resync (default continue)")
	flags.StringVar(&s.OnOversize, "on-oversize", "", "events larger than the broker takes: fail, dlq, key or skip (default fail)")
	flags.StringVar(&s.OnPoison, "on-poison", "", "changes that the topic's schema refuses: dlq, fail or skip (default dlq)")
	flags.StringVar(&s.OnMissing, "on-missing", "", "updates of documents that are gone by now: key or skip (default key)")
	flags.BoolVar(&s.AllowLoop, "allow-loop", false, "publish what a projection of the same topic wrote")
	addTokenStore(cmd, &s.TokenStore)
	flags.Var(&s.Lease, "lease", "how long the feed stands still when the instance that runs it dies (default 15s)")
}

// check refuses what cannot work before anything is asked, and fills in the name and
// the database.
func (s *feedSpec) check(database string) error {
	s.Database = or(s.Database, database)
	s.TokenStore = or(s.TokenStore, storeKeys)
	switch {
	case s.Topic == "":
		return usagef("name the topic with --topic, such as %s", or(s.Collection, "orders")+".changed")
	case s.TokenStore == storeMongo && s.Collection == "":
		return usagef("--token-store mongo: the feed would publish its own position, as it watches the whole database: use keys")
	case s.TokenStore == storeMongo && s.Collection == changefeed.DefaultTokens:
		return usagef("--token-store mongo: the feed would publish its own position: use keys")
	}
	if err := checkTopic(s.Topic); err != nil {
		return err
	}
	if s.Name == "" {
		s.Name = strings.ReplaceAll(s.Topic, ".", "-")
	}
	for _, op := range s.Ops {
		if !slices.Contains(documentOps, op) {
			return usagef("--ops %q: use some of %s", op, strings.Join(documentOps, ", "))
		}
	}
	if err := checkTokenStore(s.TokenStore); err != nil {
		return err
	}
	if _, err := s.options().Normalize(); err != nil {
		return usagef("%s", feedFlagNames.Replace(err.Error()))
	}
	return nil
}

// feedFlagNames turns the names of options in an error into those of flags.
var feedFlagNames = strings.NewReplacer(
	"FullDocument is", "--full-document is", "Before is", "--before is", "Format is", "--format is", "Mode is", "--mode is", "Name is", "--name is",
	"OnHistoryLost is", "--on-history-lost is", "OnInvalidate is", "--on-invalidate is", "OnOversize is", "--on-oversize is",
	"OnPoison is", "--on-poison is", "OnMissing is", "--on-missing is", "LeaseTTL is", "--lease is", "Start is", "--start is",
	"Database is", "--database is", "Collection is", "--collection is", "stage 0 of Pipeline", "--filter", "stage 1 of Pipeline", "--filter",
	"use Filter for the rest", "documents can be selected in a program, with changefeed.Options.Filter",
)

// documentOps are the operations of --ops.
var documentOps = []string{"insert", "update", "replace", "delete"}

// options are the feed's.
func (s *feedSpec) options() changefeed.Options {
	o := changefeed.Options{
		Name: s.Name, Database: s.Database, Collection: s.Collection, Topic: s.Topic, Mode: changefeed.Mode(s.Mode),
		FullDocument: changefeed.FullDocument(s.FullDocument), Before: changefeed.Before(s.Before), Expanded: s.Expanded,
		Format: changefeed.Format(s.Format), Start: s.Start.point, AllowLoop: s.AllowLoop, LeaseTTL: time.Duration(s.Lease),
		OnHistoryLost: changefeed.Policy(s.OnHistoryLost), OnInvalidate: changefeed.Policy(s.OnInvalidate), OnOversize: changefeed.Policy(s.OnOversize),
		OnPoison: changefeed.Policy(s.OnPoison), OnMissing: changefeed.Policy(s.OnMissing),
	}
	if len(s.Ops) > 0 { // what is about no document passes
		unwanted := bson.A{}
		for _, op := range documentOps {
			if !slices.Contains(s.Ops, op) {
				unwanted = append(unwanted, op)
			}
		}
		o.Pipeline = append(o.Pipeline, match(bson.D{{Key: "operationType", Value: bson.D{{Key: "$nin", Value: unwanted}}}}))
	}
	if len(s.Filter) > 0 {
		o.Pipeline = append(o.Pipeline, match(bson.D(s.Filter)))
	}
	return o
}

func match(condition bson.D) bson.D { return bson.D{{Key: "$match", Value: condition}} }

// feedStart is where a feed begins, as a flag and in a file.
type feedStart struct {
	text  string
	point changefeed.StartPoint
}

func (f *feedStart) String() string { return f.text }

// Type implements pflag.Value.
func (f *feedStart) Type() string { return "start" }

// Set reads latest, copy, a time or a token.
func (f *feedStart) Set(s string) error {
	switch s {
	case "latest":
		f.point = changefeed.FromLatest()
	case "copy":
		f.point = changefeed.FromCopy()
	default:
		if at, err := time.Parse(time.RFC3339, s); err == nil {
			f.point = changefeed.FromTimestamp(at)
			break
		}
		token, err := changefeed.ParseToken(s)
		if err != nil {
			return fmt.Errorf("%.100q: use latest, copy, a time like 2026-01-02T15:04:05Z, or the _data of a resume token", s)
		}
		f.point = changefeed.FromToken(token)
	}
	f.text = s
	return nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *feedStart) UnmarshalText(text []byte) error { return f.Set(string(text)) }

// String implements pflag.Value.
func (f *filterText) String() string {
	if len(*f) == 0 {
		return ""
	}
	text, err := bson.MarshalExtJSON(bson.D(*f), false, false)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Type implements pflag.Value.
func (f *filterText) Type() string { return "condition" }

// Set implements pflag.Value.
func (f *filterText) Set(s string) error {
	if err := f.UnmarshalJSON([]byte(s)); err != nil {
		return fmt.Errorf("no JSON object: %w", err)
	}
	return nil
}

// jsonDuration is a duration as a flag and in a file: "15s".
type jsonDuration time.Duration

func (d *jsonDuration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

// Type implements pflag.Value.
func (d *jsonDuration) Type() string { return "duration" }

// Set implements pflag.Value.
func (d *jsonDuration) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil || v <= 0 {
		return fmt.Errorf("%q is no duration: use 15s or 1m", s)
	}
	*d = jsonDuration(v)
	return nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *jsonDuration) UnmarshalText(text []byte) error { return d.Set(string(text)) }

// parseFeedSpec reads a file that describes a feed.
func parseFeedSpec(text []byte) (s feedSpec, err error) {
	return s, parseObject(text, &s)
}
