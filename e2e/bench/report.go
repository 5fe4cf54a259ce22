package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// line is one comparison of the table.
type line struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"` // of the bus: a median
	Unit    string  `json:"unit"`
	Ratio   float64 `json:"ratio,omitempty"` // 0 where there is nothing to compare with
	Against string  `json:"against,omitempty"`
	Goal    string  `json:"goal,omitempty"` // empty: informative
	Met     bool    `json:"met"`            // true where there is no goal

	yardstick float64 // 0: none
	low, high float64 // of the ratios of the turns
	cpu       float64 // CPU time of an operation, as a ratio; 0: not measured
}

// atLeast sets a goal for the ratio.
func (l *line) atLeast(goal float64) {
	if goal == 0 {
		l.Met = true
		return
	}
	l.Goal, l.Met = fmt.Sprintf(">= %gx", goal), l.Ratio >= goal
}

func printTable(w io.Writer, lines []line) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "name\tvalue\tyardstick\tagainst\tratio\tlow..high\tcpu\tgoal\tmet")
	for _, l := range lines {
		met := "-"
		if l.Goal != "" {
			met = map[bool]string{true: "yes", false: "NO"}[l.Met]
		}
		spread, cpu, ratio, yardstick := "-", "-", "-", "-"
		if l.Ratio != 0 {
			ratio, yardstick = number(l.Ratio), number(l.yardstick)+" "+l.Unit
		}
		if l.high != 0 {
			spread = number(l.low) + ".." + number(l.high)
		}
		if l.cpu != 0 {
			cpu = number(l.cpu)
		}
		fmt.Fprintln(t, strings.Join([]string{l.Name, number(l.Value) + " " + l.Unit, yardstick, l.Against, ratio, spread, cpu, l.Goal, met}, "\t"))
	}
	_ = t.Flush() // standard output
}

func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 10_000:
		return fmt.Sprintf("%.0fk", v/1000)
	case a >= 1000:
		return fmt.Sprintf("%.1fk", v/1000)
	case a >= 20:
		return fmt.Sprintf("%.0f", v)
	case a >= 5:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func writeJSON(path string, lines []line) error {
	var b strings.Builder
	for _, l := range lines {
		text, err := json.Marshal(l)
		if err != nil {
			return err
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	return os.WriteFile(path, []byte(b.String()), 0o644) //nolint:gosec // a report for everybody
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// loadAverage is the machine's, where it says.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
