package metrics_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/metrics"
)

// everything makes each metric have a sample.
func everything(t *testing.T) *metrics.Metrics {
	t.Helper()
	m := newMetrics(t, metrics.Config{})
	for _, kind := range []jetbus.ObservationKind{
		jetbus.Published, jetbus.PublishFail, jetbus.Delivered, jetbus.Undecodable, jetbus.DeadLettered,
		jetbus.Drained, jetbus.DrainFail, jetbus.OutboxDead,
	} {
		m.Observe(of(kind, "1"))
	}
	watchAll(m)
	m.WatchFeed("panics", func() metrics.Feed { panic("feed") })
	if err := m.WatchTopics(shop(), metrics.TopicOptions{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestTable: what is in the table is what is scraped.
func TestTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := prometheus.NewPedanticRegistry()
		if err := r.Register(everything(t)); err != nil {
			t.Fatal(err)
		}
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		rows := map[string]metrics.Metric{}
		for _, row := range metrics.Table() {
			if _, twice := rows[row.Name]; twice || row.Help == "" || row.Unit == "" || row.From == "" || !strings.HasSuffix(row.Help, ".") {
				t.Errorf("row %+v is there twice or lacks something", row)
			}
			if total := strings.HasSuffix(row.Name, "_total"); total != (row.Type == metrics.Counter) {
				t.Errorf("%s is a %s", row.Name, row.Type)
			}
			rows[row.Name] = row
		}
		for _, f := range families {
			row, is := rows[f.GetName()]
			if !is || f.GetHelp() != row.Help || strings.ToLower(f.GetType().String()) != string(row.Type) {
				t.Errorf("%s %s %q is not so in the table: %+v", f.GetType(), f.GetName(), f.GetHelp(), row)
			}
			var labels []string
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, l.GetName())
			}
			want := slices.Sorted(slices.Values(row.Labels))
			if !slices.Equal(labels, want) {
				t.Errorf("%s has the labels %q, the table says %q", f.GetName(), labels, want)
			}
			delete(rows, f.GetName())
		}
		for name := range rows {
			t.Errorf("nothing moves %s", name)
		}
	})
}

// TestNames: Prometheus's own linter has nothing against the names, but for the
// milliseconds, which are the names that the bus's users know.
func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		problems, err := testutil.CollectAndLint(everything(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if !strings.HasSuffix(p.Metric, "_ms") {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
	})
}

// TestTableIsACopy: nobody can change the table.
func TestTableIsACopy(t *testing.T) {
	row := metrics.Table()[0]
	row.Labels[0] = "changed"
	if got := metrics.Table()[0].Labels[0]; got != "topic" {
		t.Errorf("the label is %q now", got)
	}
}

// TestReadme keeps the README's table that of the package.
func TestReadme(t *testing.T) {
	var want strings.Builder
	want.WriteString("| metric | type | unit | moved by | what |\n|---|---|---|---|---|\n")
	for _, row := range metrics.Table() {
		name := row.Name
		if len(row.Labels) > 0 {
			name += "{" + strings.Join(row.Labels, ",") + "}"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s | %s |\n", name, row.Type, row.Unit, row.From, row.Help)
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "\n"+want.String()+"\n") {
		t.Errorf("README.md, \"Metrics and traces\", has another table than the package; it should be:\n%s", want.String())
	}
}
