package metrics_test

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/seed-63e9a637/jetbus/metrics"
)

// limit bounds every wait. It only matters where a test fails.
const limit = 2 * time.Minute

// page is an endpoint with metrics, and what was seen of them to change.
type page struct {
	*testing.T
	url    string
	client *http.Client
	rows   map[string]metrics.Metric
	last   map[string]float64 // samples; of a histogram its count
	moved  map[string]bool    // metrics of which a sample was seen with two values, of which none is 0
}

func newPage(t *testing.T, url string) *page {
	t.Helper()
	p := &page{
		T: t, url: url, client: &http.Client{Transport: &http.Transport{}},
		rows: map[string]metrics.Metric{}, last: map[string]float64{}, moved: map[string]bool{},
	}
	t.Cleanup(p.client.CloseIdleConnections)
	for _, row := range metrics.Table() {
		p.rows[row.Name] = row
	}
	return p
}

// scrape reads the page as Prometheus does.
func (p *page) scrape() {
	p.Helper()
	request, err := http.NewRequestWithContext(p.Context(), http.MethodGet, p.url, http.NoBody)
	if err != nil {
		p.Fatal(err)
	}
	answer, err := p.client.Do(request)
	if err != nil {
		p.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		p.Fatalf("%s: %s", answer.Status, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		p.Fatal(err)
	}
	for name, family := range families {
		row, is := p.rows[name]
		if kind := strings.ToLower(family.GetType().String()); !is || kind != string(row.Type) {
			p.Errorf("%s is a %s, in the table %q", name, kind, row.Type)
		}
		for _, sample := range family.GetMetric() {
			var names, values []string
			for _, label := range sample.GetLabel() {
				names, values = append(names, label.GetName()), append(values, label.GetName()+"="+label.GetValue())
			}
			slices.Sort(names)
			slices.Sort(values)
			if want := slices.Sorted(slices.Values(row.Labels)); !slices.Equal(names, want) {
				p.Errorf("%s has the labels %v, in the table %v", name, names, want)
			}
			value := sample.GetGauge().GetValue() + sample.GetCounter().GetValue() + float64(sample.GetHistogram().GetSampleCount())
			series := name + "{" + strings.Join(values, ",") + "}"
			if before := p.last[series]; value != before { // one that was not there was 0
				p.moved[name] = true
				if row.Type != metrics.Gauge && value < before {
					p.Errorf("%s went from %v to %v", series, before, value)
				}
			}
			p.last[series] = value
		}
	}
}

// until scrapes until the metrics have moved; meanwhile is called between two scrapes.
func (p *page) until(meanwhile func(), names ...string) {
	p.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); ; <-tick.C {
		p.scrape()
		missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return p.moved[name] })
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			p.Fatalf("%v did not move; there is\n%s", missing, p.text())
		}
		if meanwhile != nil {
			meanwhile()
		}
	}
}

// moves is until for a test that does nothing meanwhile.
func (p *page) moves(names ...string) {
	p.Helper()
	p.until(nil, names...)
}

// still are the metrics of the table that have not moved.
func (p *page) still() (out []string) {
	for name := range p.rows {
		if !p.moved[name] {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (p *page) text() string {
	var out strings.Builder
	for _, series := range slices.Sorted(maps.Keys(p.last)) {
		out.WriteString(series + "\n")
	}
	return out.String()
}
