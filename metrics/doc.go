// Package metrics turns what a bus does into metrics for Prometheus. [Table] lists
// them all.
//
//	m, err := metrics.New(metrics.Config{})
//	bus, err := adapter.Open(ctx, nc, adapter.Config{Observer: m.Observe})
//	err = m.WatchTopics(bus, metrics.TopicOptions{})
//	http.Handle("/metrics", m.Handler()) // or prometheus.MustRegister(m), beside other metrics
//
// What this process does comes through its observer, which asks nobody. What the broker knows, which is how far groups are behind and how many dead
// letters there are, is asked for when somebody scrapes, at most once in
// Config.AskEvery, for at most Config.Timeout, about a bounded number of topics. It is
// the same in every process that watches the same topics, so let one do it, or
// aggregate with max, not with sum.
//
// What is not known has no sample: a topic that does not answer is missing and counts
// in metrics_errors_total, and is never 0.
//
// Labels are bounded: after Config.MaxTopics topics, and Config.MaxGroups pairs of a
// topic and a group, further ones count under the name "other" ([Other]). Of what the
// broker is asked, topics and groups beyond the bounds of [TopicOptions] are left out.
//
// The folder has a dashboard for Grafana (grafana/jetbus.json) and alerts for
// Prometheus (alerts.yml).
package metrics
