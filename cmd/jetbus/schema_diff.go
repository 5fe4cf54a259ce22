package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

func newSchemaDiff(a *app, f *schemaFlags) *cobra.Command {
	var o registry.CheckOptions
	cmd := &cobra.Command{
		Use:   "diff TOPIC OLD NEW",
		Short: "Show how two versions of a topic's schema differ, and what that means",
		Long: `Shows how the texts of two versions differ, members in the order of their names, and
whether one is compatible with the other, in both directions. The exit code is 0
whatever the answer is.`,
		Example: `  jetbus schema diff orders.created 1 2`,
		Args:    exactly(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			older, err := parseVersion(args[1])
			if err != nil {
				return err
			}
			newer, err := parseVersion(args[2])
			if err != nil {
				return err
			}
			if err := (registry.Settings{Model: o.Model}).Valid(); err != nil {
				return usagef("%w", err)
			}
			return a.diffSchemas(cmd, f, args[0], older, newer, o)
		},
	}
	cmd.Flags().StringVar((*string)(&o.Model), "model", "", "strict or declared (default the topic's)")
	return cmd
}

func (a *app) diffSchemas(cmd *cobra.Command, f *schemaFlags, topic string, older, newer int, o registry.CheckOptions) error {
	return a.withRegistry(cmd.Context(), f, func(r *registry.Registry) error {
		var texts [2]string
		for i, n := range []int{older, newer} {
			v, err := r.Version(cmd.Context(), topic, n)
			if err != nil {
				return err
			}
			if v.Erased {
				return fmt.Errorf("version %d of %s: %w", n, topic, registry.ErrErased)
			}
			if texts[i], err = ordered(v.Text); err != nil {
				return err
			}
		}
		o.Level = registry.LevelFull
		report, err := r.Compare(cmd.Context(), topic, older, newer, o)
		if err != nil {
			return err
		}
		if f.output == "table" {
			parts := []string{or(diff(strings.Split(texts[0], "\n"), strings.Split(texts[1], "\n")), "the texts do not differ\n")}
			for _, c := range report.Comparisons {
				parts = append(parts, explainComparison(report, c))
			}
			_, err := io.WriteString(cmd.OutOrStdout(), printableLines(strings.Join(parts, "\n")))
			return err
		}
		view := diffView{Topic: topic, Old: older, New: newer, Model: report.Model}
		for _, c := range report.Comparisons {
			view.Comparisons = append(view.Comparisons, comparisonView{c.Against, c.Direction, viewOf(c.Verdict)})
		}
		return writeValue(cmd.OutOrStdout(), f.output, view)
	})
}

// diffView is what diff prints for programs.
type diffView struct {
	Topic       string           `json:"topic"`
	Old         int              `json:"old"`
	New         int              `json:"new"`
	Model       schema.Model     `json:"model"`
	Comparisons []comparisonView `json:"comparisons"`
}

// ordered writes a schema with its members in the order of their names, one a line.
func ordered(text string) (string, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

// diffContext is how many equal lines are shown around those that differ.
const diffContext = 2

// diff shows the lines that only one of two texts has, with some of those around
// them. It is empty where there are none.
func diff(older, newer []string) string {
	head := 0 // equal lines at the beginning, and at the end
	for head < min(len(older), len(newer)) && older[head] == newer[head] {
		head++
	}
	tail := 0
	for tail < min(len(older), len(newer))-head && older[len(older)-1-tail] == newer[len(newer)-1-tail] {
		tail++
	}
	if head+tail == max(len(older), len(newer)) {
		return ""
	}
	var all []string
	for _, line := range older[:head] {
		all = append(all, "  "+line)
	}
	all = append(all, changes(older[head:len(older)-tail], newer[head:len(newer)-tail])...)
	for _, line := range older[len(older)-tail:] {
		all = append(all, "  "+line)
	}
	var b strings.Builder
	shown := -1 // the last line that is
	for i, line := range all {
		low, high := max(i-diffContext, 0), min(i+diffContext+1, len(all))
		if !slices.ContainsFunc(all[low:high], func(s string) bool { return s[0] != ' ' }) {
			continue
		}
		if i > shown+1 {
			b.WriteString("  ...\n")
		}
		b.WriteString(line + "\n")
		shown = i
	}
	if shown < len(all)-1 {
		b.WriteString("  ...\n")
	}
	return b.String()
}

// maxDiffCells bounds the table of changes. What exceeds it is shown as removed and
// added as a whole.
const maxDiffCells = 16 << 20

// changes is a shortest way from one list of lines to another: "- " before those
// that go, "+ " before those that come, "  " before those that stay.
func changes(older, newer []string) []string {
	var out []string
	if len(older)*len(newer) > maxDiffCells {
		for _, line := range older {
			out = append(out, "- "+line)
		}
		for _, line := range newer {
			out = append(out, "+ "+line)
		}
		return out
	}
	width := len(newer) + 1
	common := make([]uint16, (len(older)+1)*width) // lines in common from i and j on
	for i, before := range slices.Backward(older) {
		for j, after := range slices.Backward(newer) {
			if before == after {
				common[i*width+j] = common[(i+1)*width+j+1] + 1
			} else {
				common[i*width+j] = max(common[(i+1)*width+j], common[i*width+j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(older) || j < len(newer) {
		switch {
		case i < len(older) && j < len(newer) && older[i] == newer[j]:
			out = append(out, "  "+older[i])
			i, j = i+1, j+1
		case j == len(newer) || i < len(older) && common[(i+1)*width+j] >= common[i*width+j+1]:
			out = append(out, "- "+older[i])
			i++
		default:
			out = append(out, "+ "+newer[j])
			j++
		}
	}
	return out
}
