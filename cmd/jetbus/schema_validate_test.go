package main

import (
	"strings"
	"testing"
)

func TestSchemaValidate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "schema", "register", "orders", file(t, "a.json", nameSchema))
	b.ok(t, "", "schema", "register", "orders", file(t, "b.json", longNameSchema), "--force", "--by", "ann")
	good, short, broken := file(t, "good.json", `{"name":"long enough"}`+"\n"), file(t, "short.json", `{"name":""}`), file(t, "broken.json", `{"name":`)
	b.shows(t, good+" follows version 2 of the schema of orders\n", "schema", "validate", "orders", good)
	b.shows(t, short+" follows version 1 of the schema of orders\n", "schema", "validate", "orders", short, "--version", "1")
	if out := b.ok(t, `{"name":"long enough"}`, "schema", "validate", "orders", "-", "-o", "ndjson"); out != `{"topic":"orders","version":2,"valid":true}`+"\n" {
		t.Errorf("%s", out)
	}
	for name, want := range map[string]string{short: "/name: ", broken: "the event: not JSON"} {
		r := b.run(t, "", "schema", "validate", "orders", name)
		if r.code != exitFailure || !strings.HasPrefix(r.out, want) || r.errOut != "jetbus: "+name+" does not follow version 2 of the schema of orders\n" {
			t.Errorf("%+v", r)
		}
	}
	r := b.run(t, `{"name":""}`, "schema", "validate", "orders", "-", "-o", "ndjson")
	if r.code != exitFailure || !strings.HasPrefix(r.out, `{"topic":"orders","version":2,"valid":false,"violations":["/name: `) {
		t.Errorf("%+v", r)
	}
	if r := b.run(t, "", "schema", "validate", "orders", "-"); r.code != exitFailure || !strings.Contains(r.out, "missing") {
		t.Errorf("without a payload: %+v", r)
	}
	b.ok(t, "", "schema", "rm", "orders", "1", "--yes")
	b.fails(t, exitNotFound, "version 1 of orders is deleted", "", "schema", "validate", "orders", good, "--version", "1")
	b.fails(t, exitNotFound, "see jetbus schema ls", "", "schema", "validate", "orders", good, "--version", "9")
	b.fails(t, exitNotFound, "see jetbus schema ls", "", "schema", "validate", "none", good)
	b.fails(t, exitUsage, "there is no file nowhere.json", "", "schema", "validate", "orders", "nowhere.json")
	b.fails(t, exitUsage, `"x" is no version`, "", "schema", "validate", "orders", good, "--version", "x")
	b.fails(t, exitUsage, "invalid topic", "", "schema", "validate", "or/ders", good)
	b.fails(t, exitUsage, "1 argument given", "", "schema", "validate", "orders")
}
