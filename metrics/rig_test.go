package metrics_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/metrics"
)

// scraped is what a scrape has found: values by "name{label=value,...}"; a histogram's
// is its count, and its sum is at name_sum.
type scraped map[string]float64

// newMetrics makes metrics.
func newMetrics(t *testing.T, c metrics.Config) *metrics.Metrics {
	t.Helper()
	m, err := metrics.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// scrape reads all metrics, through a registry that checks them.
func scrape(t *testing.T, m *metrics.Metrics) scraped {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(m); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := scraped{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			slices.Sort(labels)
			in := "{" + strings.Join(labels, ",") + "}"
			switch {
			case s.GetHistogram() != nil:
				out[f.GetName()+in] = float64(s.GetHistogram().GetSampleCount())
				out[f.GetName()+"_sum"+in] = s.GetHistogram().GetSampleSum()
			case s.GetCounter() != nil:
				out[f.GetName()+in] = s.GetCounter().GetValue()
			default:
				out[f.GetName()+in] = s.GetGauge().GetValue()
			}
		}
	}
	return out
}

// want checks values.
func (s scraped) want(t *testing.T, want map[string]float64) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got, is := s[name]; !is || got != want[name] {
			t.Errorf("%s = %v (there: %t), want %v", name, got, is, want[name])
		}
	}
}

// without checks that there are no samples that begin so.
func (s scraped) without(t *testing.T, prefixes ...string) {
	t.Helper()
	for name, v := range s {
		for _, p := range prefixes {
			if strings.HasPrefix(name, p) {
				t.Errorf("%s = %v, want no such sample", name, v)
			}
		}
	}
}

// of is an observation about an event of topic a and group g.
func of(kind jetbus.ObservationKind, id string) jetbus.Observation {
	return jetbus.Observation{Kind: kind, Topic: "a", Group: "g", ID: id, Attempt: 1}
}
