package main

import (
	"bytes"
	"strings"
	"testing"
)

func command(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestCommandLine(t *testing.T) {
	tests := []struct {
		args, out, errOut string
		code              int
	}{
		{"-rules", "BUS001 invalid topic\n", "", 0},
		{"-h", "", "usage: topiclint [flags] [packages]", 0},
		{"-nonsense", "", "not defined: -nonsense", 2},
		{"-format xml", "", `topiclint: wrong command line: -format "xml"`, 2},
		{"-vetflags -checks BUS004 -tests -strict", "-topiclint.checks=BUS004 -topiclint.tests=true -topiclint.strict=true\n", "", 0},
		{"-vetflags -catalog /does/not/exist", "", "no such file", 2},
		{"-C /does/not/exist", "", "topiclint: load packages: ", 1},
	}
	for _, tt := range tests {
		code, out, errOut := command(t, strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(errOut, tt.errOut) || (tt.errOut == "") != (errOut == "") {
			t.Errorf("topiclint %s: code %d, %q, %q", tt.args, code, out, errOut)
		}
	}
}
