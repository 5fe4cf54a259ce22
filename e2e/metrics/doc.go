// Package metrics checks what Prometheus makes of the alerts and the dashboard of package
// metrics: every query parses, and names only metrics and labels that there are. And it sees
// each of these metrics move, on a page read by Prometheus's parser.
package metrics
