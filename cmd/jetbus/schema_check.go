package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// checkFlags are the flags of schema check.
type checkFlags struct {
	topic, level, model, draft string
	jsonl, fail, allowNew      bool
}

func newSchemaCheck(a *app, f *schemaFlags) *cobra.Command {
	var c checkFlags
	cmd := &cobra.Command{
		Use:   "check OLD NEW | check --topic TOPIC NEW | check --jsonl",
		Short: "Prove that a schema is compatible, or show a value that proves the contrary",
		Long: `Compares two schemas in files, or one with the registered versions of a topic, and
stores nothing. "-" is standard input. The exit code is 1 if one is not proved to be
compatible, and 3 if the topic has no schema, unless --allow-new is given. But for --topic
no server is needed.

The level says what is asked for: backward, that what the old schema accepts is
accepted by the new one; forward, the other way round; full, both. The model says what
properties mean that a schema does not declare: see jetbus schema config --help.

With --jsonl each line of standard input is an object with the members id, old and new.
A schema stands there as it is, or as a string that contains it. For each line that is
not empty, in order, a line is written:

  {"id":1,"compatible":true,"verdict":"proved"}
  {"id":2,"compatible":false,"verdict":"refuted","witness":{"n":-1},"reasons":["..."]}
  {"id":3,"compatible":false,"verdict":"unproved","reasons":["..."]}
  {"id":4,"compatible":false,"error":"old: invalid schema: ..."}

With the level full a direction is named that is not proved. The exit code is 0 when all
lines were answered, whatever the answers are, unless --fail is given.`,
		Example: `  jetbus schema check old.json new.json
  jetbus schema check --topic orders.created order.json
  jetbus schema check --jsonl --model declared < pairs.ndjson`,
		Args: between(0, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return a.checkSchemas(cmd, f, c, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&c.topic, "topic", "", "compare with the registered versions of this topic")
	flags.StringVar(&c.level, "level", "", "backward, forward or full (default backward; with --topic the topic's)")
	flags.StringVar(&c.model, "model", "", "strict or declared (default strict; with --topic the topic's)")
	flags.StringVar(&c.draft, "draft", string(schema.Draft2020), "what schemas without $schema are: draft-04, draft-06, draft-07, 2019-09 or 2020-12")
	flags.BoolVar(&c.jsonl, "jsonl", false, "compare the pairs on standard input, one a line")
	flags.BoolVar(&c.allowNew, "allow-new", false, "with --topic: accept a topic without a schema")
	flags.BoolVar(&c.fail, "fail", false, "with --jsonl: exit with 1 if a line is not compatible")
	return cmd
}

func (a *app) checkSchemas(cmd *cobra.Command, f *schemaFlags, c checkFlags, args []string) error {
	if err := checkOutput(f.output); err != nil {
		return err
	}
	if err := (registry.Settings{Level: registry.Level(c.level), Model: schema.Model(c.model)}).Valid(); err != nil {
		return usagef("%w", err)
	}
	wanted := 2
	switch {
	case c.jsonl && c.topic != "":
		return usagef("--jsonl with --topic: choose one")
	case c.fail && !c.jsonl:
		return usagef("--fail without --jsonl: the exit code says it anyway")
	case c.allowNew && c.topic == "":
		return usagef("--allow-new without --topic: it is for topics without a schema")
	case c.topic != "" && cmd.Flags().Changed("draft"):
		return usagef("--draft with --topic: registered schemas say their draft in $schema")
	case c.jsonl:
		wanted = 0
	case c.topic != "":
		wanted = 1
	}
	if err := exactly(wanted)(cmd, args); err != nil {
		return err
	}
	if c.topic != "" {
		return a.checkTopicSchema(cmd, f, c, args[0])
	}
	p, err := c.pairs()
	if err != nil {
		return err
	}
	if c.jsonl {
		return checkLines(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), p, c.fail)
	}
	return checkFiles(cmd, f.output, p, args[0], args[1])
}

// pairs is how the flags compare two schemas.
func (c checkFlags) pairs() (*pairChecker, error) {
	p := &pairChecker{model: schema.Model(or(c.model, string(schema.Strict))), draft: schema.Draft(c.draft)}
	p.level = registry.Level(or(c.level, string(registry.LevelBackward)))
	if p.directions = p.level.Directions(); len(p.directions) == 0 {
		return nil, usagef("--level %s: there is nothing to compare", p.level)
	}
	if _, err := schema.Compile("true", schema.Options{Draft: p.draft}); err != nil {
		return nil, usagef("--draft: %w", err)
	}
	return p, nil
}

// pairChecker compares two schemas. It may be used by several goroutines at once.
type pairChecker struct {
	level      registry.Level
	model      schema.Model
	draft      schema.Draft
	directions []registry.Direction

	mu    sync.Mutex
	known map[string]*schema.Schema // what was compiled of late, by its text; under mu
}

// manyKnown is how many schemas are kept: a list of pairs is often one of versions,
// where what is new in one is old in the next.
const manyKnown = 256

func (p *pairChecker) compile(text string) (*schema.Schema, error) {
	p.mu.Lock()
	s := p.known[text]
	p.mu.Unlock()
	if s != nil {
		return s, nil
	}
	s, err := schema.Compile(text, schema.Options{Draft: p.draft})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil || len(p.known) >= manyKnown {
		p.known = make(map[string]*schema.Schema, manyKnown)
	}
	p.known[text] = s
	return s, nil
}

// compare returns one comparison for each direction. An error is one of the texts.
func (p *pairChecker) compare(older, newer string) ([]registry.Comparison, error) {
	before, err := p.compile(older)
	if err != nil {
		return nil, fmt.Errorf("old: %w", err)
	}
	after, err := p.compile(newer)
	if err != nil {
		return nil, fmt.Errorf("new: %w", err)
	}
	var list []registry.Comparison
	for _, d := range p.directions {
		c := registry.Comparison{Direction: d}
		if d == registry.Forward {
			c.Verdict = schema.Compare(after, before, p.model)
		} else {
			c.Verdict = schema.Compare(before, after, p.model)
		}
		list = append(list, c)
	}
	return list, nil
}

func checkFiles(cmd *cobra.Command, output string, p *pairChecker, older, newer string) error {
	if older == "-" && newer == "-" {
		return usagef("only one of the schemas can be on standard input")
	}
	before, err := readSchema(cmd, older)
	if err != nil {
		return err
	}
	after, err := readSchema(cmd, newer)
	if err != nil {
		return err
	}
	comparisons, err := p.compare(before, after)
	if err != nil {
		return err
	}
	report := registry.Report{Level: p.level, Model: p.model, Comparisons: comparisons}
	return writeReport(cmd, output, report, newer, older)
}

func (a *app) checkTopicSchema(cmd *cobra.Command, f *schemaFlags, c checkFlags, name string) error {
	if err := checkTopic(c.topic); err != nil {
		return err
	}
	text, err := readSchema(cmd, name)
	if err != nil {
		return err
	}
	return a.withRegistry(cmd.Context(), f, func(r *registry.Registry) error {
		report, err := r.Check(cmd.Context(), c.topic, text, registry.CheckOptions{Level: registry.Level(c.level), Model: schema.Model(c.model)})
		if err != nil {
			return err
		}
		if _, err := r.Latest(cmd.Context(), c.topic); errors.Is(err, registry.ErrNoSchema) {
			all, err := r.Versions(cmd.Context(), c.topic, true)
			switch {
			case err != nil:
				return err
			case len(all) == 0 && !c.allowNew:
				return fmt.Errorf("%w: no such topic or schema: %s; use --allow-new for the first schema of a topic", registry.ErrNoSchema, c.topic)
			case f.output == "table":
				return writeFirst(cmd, all, c.topic)
			}
		}
		return writeReport(cmd, f.output, report, name, c.topic)
	})
}

// writeFirst prints the version that a schema would get in a topic without a live version.
func writeFirst(cmd *cobra.Command, all []registry.Version, topic string) error {
	has, next := "has no schema yet", 1
	if len(all) > 0 {
		has, next = "has no schema that is not deleted", all[len(all)-1].Number+1
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "topic %s %s: this would be its version %d\n", topic, has, next)
	return err
}

// comparisonView is a comparison as it is printed for programs.
type comparisonView struct {
	Against   int                `json:"against,omitempty"`
	Direction registry.Direction `json:"direction"`
	verdictView
}

// verdictView is a verdict as it is printed for programs.
type verdictView struct {
	Verdict    schema.Result   `json:"verdict,omitempty"`
	Witness    json.RawMessage `json:"witness,omitempty"`
	Violations []string        `json:"violations,omitempty"`
	Reasons    []string        `json:"reasons,omitempty"`
}

func viewOf(v schema.Verdict) verdictView {
	view := verdictView{Verdict: v.Result, Witness: v.Witness}
	for _, x := range v.Violations {
		view.Violations = append(view.Violations, x.String())
	}
	for _, r := range v.Reasons {
		view.Reasons = append(view.Reasons, r.String())
	}
	return view
}

// reportView is a report as it is printed for programs.
type reportView struct {
	Topic       string           `json:"topic,omitempty"`
	Compatible  bool             `json:"compatible"`
	Level       registry.Level   `json:"level"`
	Model       schema.Model     `json:"model"`
	Comparisons []comparisonView `json:"comparisons"`
}

// writeReport prints what a check of two schemas found out. Its error says that the
// newer one is not compatible, or not proved to be.
func writeReport(cmd *cobra.Command, output string, r registry.Report, newer, older string) error {
	view := reportView{Topic: r.Topic, Compatible: true, Level: r.Level, Model: r.Model, Comparisons: []comparisonView{}}
	refuted := false
	for _, c := range r.Comparisons {
		view.Compatible = view.Compatible && c.Verdict.Result == schema.Proved
		refuted = refuted || c.Verdict.Result == schema.Refuted
		view.Comparisons = append(view.Comparisons, comparisonView{c.Against, c.Direction, viewOf(c.Verdict)})
	}
	var err error
	if output != "table" {
		err = writeValue(cmd.OutOrStdout(), output, view)
	} else {
		_, err = io.WriteString(cmd.OutOrStdout(), printableLines(explainReport(r)))
	}
	if err == nil && !view.Compatible {
		is := "is not proved to be compatible with"
		if refuted {
			is = "is not compatible with"
		}
		err = fmt.Errorf("%s %s %s (level %s, model %s)", newer, is, older, r.Level, r.Model)
	}
	return err
}

// explainReport is a report for people.
func explainReport(r registry.Report) string {
	if len(r.Comparisons) == 0 {
		return fmt.Sprintf("there is nothing to compare with under level %s\n", r.Level)
	}
	var b strings.Builder
	for _, c := range r.Comparisons {
		if c.Against != 0 {
			fmt.Fprintf(&b, "version %d, ", c.Against)
		}
		b.WriteString(explainComparison(r, c))
	}
	return b.String()
}

// explainComparison is one of a report for a person.
func explainComparison(r registry.Report, c registry.Comparison) string {
	of := ""
	if r.Model == schema.Declared && c.Written == schema.Strict {
		of = " (of events from before the declared model, which may have any property)"
	}
	return fmt.Sprintf("%s%s: %s\n", c.Direction, of, c.Verdict.Explain(c.Direction))
}

// errPairs says that lines were not compatible.
var errPairs = errors.New("not all pairs are compatible")
