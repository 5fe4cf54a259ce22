package metrics_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/metrics"
)

// Metrics of a bus for Prometheus. The observer is what adapter.Config and
// client.Config take.
func Example() {
	m, err := metrics.New(metrics.Config{})
	if err != nil {
		log.Fatal(err)
	}
	observer := jetbus.Observer(m.Observe) // adapter.Config{Observer: m.Observe}
	page := m.Handler()                    // http.Handle("/metrics", page), or prometheus.MustRegister(m) beside other metrics

	observer.Observe(jetbus.Observation{Kind: jetbus.Published, Topic: "orders", Version: "1", Count: 3})

	answer := httptest.NewRecorder()
	page.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, `events_published_total{topic="orders",version="1"}`) {
			fmt.Print(line)
		}
	}
	// Output: events_published_total{topic="orders",version="1"} 3
}
