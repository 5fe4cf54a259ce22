package metrics_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/metrics"
)

// The types of package metrics that stand for those of rooms it may not import.
var _ = metrics.FeedStats(changefeed.Stats{})

// check fails where something is wrong with a query.
func check(t *testing.T, where, query string) {
	t.Helper()
	for _, problem := range problems(query) {
		t.Errorf("%s: %q: %s", where, query, problem)
	}
}

// problems says what is wrong with a query: it does not parse, or names what there is not.
func problems(query string) (out []string) {
	expr, err := parser.ParseExpr(query)
	if err != nil {
		return []string{err.Error()}
	}
	known := series()
	under := []string{"instance"} // labels of what is selected
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		s, is := n.(*parser.VectorSelector)
		if !is {
			return nil
		}
		of, is := known[s.Name]
		if !is {
			out = append(out, s.Name+" is not in metrics.Table")
		}
		under = append(under, of...)
		for _, m := range s.LabelMatchers {
			if m.Name != labels.MetricName && !slices.Contains(of, m.Name) {
				out = append(out, s.Name+" has no label "+m.Name)
			}
		}
		return nil
	})
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if a, is := n.(*parser.AggregateExpr); is {
			for _, label := range a.Grouping {
				if !slices.Contains(under, label) {
					out = append(out, "nothing in it has the label "+label)
				}
			}
		}
		return nil
	})
	return out
}

// series are the labels of all that a scrape can find, by name.
func series() map[string][]string {
	out := map[string][]string{}
	for _, row := range metrics.Table() {
		if row.Type != metrics.Histogram {
			out[row.Name] = row.Labels
			continue
		}
		out[row.Name+"_bucket"] = append(slices.Clone(row.Labels), "le")
		out[row.Name+"_sum"], out[row.Name+"_count"] = row.Labels, row.Labels
	}
	return out
}

// TestAlerts is what `promtool check rules` does, and check.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile("../../metrics/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	all, errs := rulefmt.Parse(text, false, model.UTF8Validation)
	for _, err := range errs {
		t.Error(err)
	}
	if len(errs) > 0 {
		return
	}
	seen := map[string]bool{}
	for _, g := range all.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || seen[r.Alert] || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("rule %q is no alert, is there twice, or lacks a text", r.Alert)
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s has the severity %q", r.Alert, s)
			}
			if time.Duration(r.For) > time.Hour {
				t.Errorf("%s waits for %v", r.Alert, r.For)
			}
			seen[r.Alert] = true
			check(t, r.Alert, r.Expr)
		}
	}
	if len(seen) < 10 {
		t.Errorf("found %d alerts", len(seen))
	}
}

// TestDashboard checks the queries and the shape of the dashboard.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../metrics/grafana/jetbus.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID         int
			Type       string
			Title      string
			Datasource struct{ UID string }
			Targets    []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$__rate_interval", "5m", "$topic", ".*", "$group", ".*")
	ids := map[int]bool{}
	versions, writers := 0, 0
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d %q is there twice or has no title", p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q has no query, or the data source %q", p.Title, p.Datasource.UID)
		}
		for _, q := range p.Targets {
			check(t, p.Title, fill.Replace(q.Expr))
			if strings.Contains(q.Expr, "version) (rate(events_") && strings.Contains(q.LegendFormat, "{{version}}") {
				versions++
			}
			if p.Type == "table" && strings.Contains(q.Expr, "by (topic, version, instance) (events_published_total{") {
				writers++
			}
		}
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		of, label, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(v.Query, "label_values("), ")"), ", ")
		if !slices.Contains(series()[of], label) {
			t.Errorf("the variable %s asks for %s of %s, which has none", v.Name, label, of)
		}
	}
	if writers != 1 { // a rate does not show the first event of a series
		t.Errorf("%d tables show who publishes a version", writers)
	}
	if versions != 2 {
		t.Errorf("%d panels show the versions of schemas, want one of what is published and one of what is handled", versions)
	}
	if len(ids) < 20 {
		t.Errorf("found %d panels", len(ids))
	}
}

// TestProblems: the check sees what it is there for.
func TestProblems(t *testing.T) {
	for _, query := range []string{
		"rate(events_published_totals[5m])", `events_inflight{groups="g"}`, "sum by (groups) (events_inflight)", "sum(",
	} {
		if problems(query) == nil {
			t.Errorf("%q passes", query)
		}
	}
	if found := problems(`sum by (le) (rate(delivery_latency_ms_bucket{group="g"}[5m]))`); found != nil {
		t.Errorf("a good query fails: %v", found)
	}
}
