package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// parseStart reads --from: latest, earliest, ts=TIME, after=ID or seq=N.
func parseStart(s string, now time.Time) (jetbus.Start, error) {
	kind, value, has := strings.Cut(s, "=")
	switch {
	case s == "latest":
		return jetbus.Latest(), nil
	case s == "earliest":
		return jetbus.Earliest(), nil
	case has && value == "":
		return jetbus.Start{}, usagef("--from %s: the value is missing", s)
	case kind == "ts" && has:
		t, err := parseTime(value, func(d time.Duration) time.Time { return now.Add(-d) })
		if err != nil {
			return jetbus.Start{}, usagef("--from: %w", err)
		}
		return jetbus.AtTime(t), nil
	case kind == "after" && has:
		return jetbus.AfterID(value), nil
	case kind == "seq" && has:
		n, err := strconv.ParseUint(strings.TrimPrefix(value, "#"), 10, 64)
		if err != nil {
			return jetbus.Start{}, usagef("--from seq=%s: not a sequence", value)
		}
		return jetbus.AfterSeq(max(n, 1) - 1), nil
	}
	return jetbus.Start{}, usagef("--from %q: use latest, earliest, ts=TIME, after=ID or seq=N", s)
}

// parseTime reads a time: RFC 3339, epoch milliseconds, or a duration that
// relative turns into a time.
func parseTime(s string, relative func(time.Duration) time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil && ms > 1e11 {
		return time.UnixMilli(ms), nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return relative(d), nil
	}
	return time.Time{}, fmt.Errorf("%q is no time: use 2026-01-02T15:04:05Z, epoch milliseconds, or a duration like 10m", s)
}

// parseFilter reads --filter: key=K, prefix=P, x-name=V or header.NAME=V, separated by
// commas or given repeatedly. A comma that no condition follows belongs to the value.
func parseFilter(flags []string) (jetbus.Filter, error) {
	var f jetbus.Filter
	var conditions []string
	for _, flag := range flags {
		for i, piece := range strings.Split(flag, ",") {
			if i > 0 && !isCondition(piece) {
				conditions[len(conditions)-1] += "," + piece
				continue
			}
			conditions = append(conditions, piece)
		}
	}
	for _, c := range conditions {
		if !isCondition(c) {
			return f, usagef("--filter %q: use key=K, prefix=P, x-name=VALUE or header.NAME=VALUE", c)
		}
		name, value, _ := strings.Cut(c, "=")
		switch name {
		case "key":
			f.Key = value
		case "prefix":
			f.KeyPrefix = value
		default:
			if f.Headers == nil {
				f.Headers = map[string]string{}
			}
			f.Headers[strings.TrimPrefix(name, otherHeader)] = value
		}
	}
	return f, nil
}

// otherHeader is in front of a header that is neither an "x-" name nor a standard one.
// Without it "keys=a" would be a header, and most likely is not meant as one.
const otherHeader = "header."

func isCondition(s string) bool {
	name, _, ok := strings.Cut(s, "=")
	if !ok || name == "key" || name == "prefix" {
		return ok
	}
	header, other := strings.CutPrefix(name, otherHeader)
	switch header {
	case jetbus.HeaderContentType, jetbus.HeaderTraceParent, jetbus.HeaderTraceState:
		return true
	}
	return (other || strings.HasPrefix(header, "x-")) && jetbus.ValidHeader(header, "v") == nil
}
