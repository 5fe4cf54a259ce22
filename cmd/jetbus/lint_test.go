package main

import (
	"strings"
	"testing"
)

func TestLintUsage(t *testing.T) {
	for args, want := range map[string]string{
		"lint --format xml":                           "use text, sarif or github",
		"lint --checks BUS000":                        `no check "BUS000"`,
		"lint --write-baseline":                       "needs -baseline",
		"lint --catalog /does/not/exist":              "no such file",
		"lint --baseline /does/not/exist":             "write it with -write-baseline",
		"lint --bucket OTHERS":                        "--bucket says nothing to jetbus lint",
		"lint --server nats://127.0.0.1:1 --prefix a": "--prefix says nothing to jetbus lint",
	} {
		if r := command(t, "", strings.Fields(args)...); r.code != exitUsage || !strings.Contains(r.errOut, want) || strings.Count(r.errOut, "\n") != 1 {
			t.Errorf("jetbus %s: %+v, want %q", args, r, want)
		}
	}
}
