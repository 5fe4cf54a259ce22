package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// file writes a file and returns its name.
func file(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const (
	nameSchema     = `{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}`
	longNameSchema = `{"type":"object","properties":{"name":{"type":"string","minLength":1}},"required":["name"],"additionalProperties":false}`
	moreSchema     = `{"type":"object","properties":{"name":{"type":"string"},"n":{"type":"integer"}},"required":["name"],"additionalProperties":false}`
)

func TestSchemaCheckFiles(t *testing.T) {
	older, longer, more := file(t, "old.json", nameSchema), file(t, "long.json", longNameSchema), file(t, "more.json", moreSchema)
	tests := []struct {
		args string
		code int
		want []string // in what is printed
	}{
		{older + " " + older, 0, []string{"backward: compatible: whatever the old schema accepts, the new one accepts"}},
		{older + " " + more, 0, []string{"backward: compatible"}},
		{older + " " + longer, 1, []string{`backward: this event was valid before and is not now: {"name":""}`, "/name: must have at least 1 character", "because: minLength 1 is new at #/properties/name"}},
		{older + " " + more + " --level forward", 1, []string{"forward: this event is valid now, and whoever reads with the old schema refuses it", `the property "n" is not allowed`}},
		{older + " " + more + " --level full --model declared", 0, []string{"backward: compatible", "forward: compatible"}},
		{"- " + older, 0, []string{"backward: compatible"}},
		{older + " " + longer + " -o ndjson", 1, []string{`{"compatible":false,"level":"backward","model":"strict","comparisons":[{"direction":"backward","verdict":"refuted","witness":{"name":""},"violations":["/name: `}},
	}
	for _, tt := range tests {
		r := command(t, nameSchema, append([]string{"schema", "check"}, strings.Fields(tt.args)...)...)
		if r.code != tt.code {
			t.Errorf("check %s: exit code %d, want %d: %s", tt.args, r.code, tt.code, r.errOut)
		}
		for _, want := range tt.want {
			if !strings.Contains(r.out, want) {
				t.Errorf("check %s: no %q in:\n%s", tt.args, want, r.out)
			}
		}
		if tt.code != 0 && strings.Count(r.errOut, "\n") != 1 {
			t.Errorf("check %s: errors %q, want one line", tt.args, r.errOut)
		}
	}
}

func TestSchemaCheckUsage(t *testing.T) {
	good, bad := file(t, "a.json", "true"), file(t, "b.json", `{"type":"text"}`)
	for args, want := range map[string]string{
		"":                                   "0 arguments given",
		good:                                 "1 argument given",
		good + " " + bad:                     "at #/type",
		good + " /does/not/exist":            "there is no file /does/not/exist",
		"- -":                                "only one of the schemas",
		"--jsonl --topic a":                  "choose one",
		"--jsonl " + good:                    "1 argument given",
		"--fail " + good + " " + good:        "--fail without --jsonl",
		"--topic a --draft draft-07 " + good: "--draft with --topic",
		"--topic A+ " + good:                 "invalid topic",
		"--topic a " + good + " " + good:     "2 arguments given",
		"--jsonl --level some":               "no such compatibility level",
		"--jsonl --level none":               "there is nothing to compare",
		"--jsonl --model open":               "no such model",
		"--jsonl --draft draft-01":           "--draft",
		"--jsonl -o yaml":                    `--output "yaml"`,
	} {
		r := command(t, "", append([]string{"schema", "check"}, strings.Fields(args)...)...)
		if r.code != exitUsage || !strings.Contains(r.errOut, want) || strings.Count(r.errOut, "\n") != 1 || r.out != "" {
			t.Errorf("schema check %s: %+v, want exit code 2 with %q", args, r, want)
		}
	}
}

func TestSchemaCheckLines(t *testing.T) {
	quoted, _ := json.Marshal(nameSchema)
	tests := []struct{ line, want string }{
		{`{"id":1,"old":` + nameSchema + `,"new":` + nameSchema + `}`, `{"id":1,"compatible":true,"verdict":"proved"}`},
		{`{"id":"a","old":` + string(quoted) + `,"new":` + moreSchema + `}`, `{"id":"a","compatible":true,"verdict":"proved"}`},
		{`{"id":{"x":[1]},"old":` + nameSchema + `,"new":` + longNameSchema + `}`, `{"id":{"x":[1]},"compatible":false,"verdict":"refuted","witness":{"name":""},`},
		{`{"id":2,"old":true,"new":false}`, `{"id":2,"compatible":false,"verdict":"refuted","witness":`},
		{`{"id":3,"old":{"enum":[9007199254740993]},"new":{"maximum":9007199254740992}}`, `{"id":3,"compatible":false,"verdict":"refuted","witness":9007199254740993,`},
		{`{"id":4,"old":{"$schema":"http://json-schema.org/draft-04/schema#","maximum":3,"exclusiveMaximum":true},"new":{"maximum":3}}`, `{"id":4,"compatible":true,"verdict":"proved"}`},
		{`{"id":5,"old":{"type":"text"},"new":true}`, `{"id":5,"compatible":false,"error":"old: invalid schema: at #/type`},
		{`{"id":6,"old":true,"new":"{"}`, `{"id":6,"compatible":false,"error":"new: invalid schema: `},
		{`{"id":7,"old":true,"new":{"$ref":"file:///etc/passwd"}}`, `{"id":7,"compatible":false,"error":"new: `},
		{`{"id":8,"old":true}`, `{"id":8,"compatible":false,"error":"new is missing"}`},
		{`{"id":9,"old":1e999999,"new":true}`, `{"id":9,"compatible":false,"error":"old: `},
		{`{"old":true,"new":true}`, `{"id":null,"compatible":true,"verdict":"proved"}`},
		{`{"id":12,"old":true,"NEW":true}`, `{"id":null,"compatible":false,"error":"the line is no JSON object with the members id, old and new: unknown member \"NEW\", use \"new\""}`},
		{`[1]`, `{"id":null,"compatible":false,"error":"the line is no JSON object with the members id, old and new: the value is an array, at byte 1, and should be an object"}`},
		{`{"id":13,"old":true,"new":false,"new":true}`, `{"id":null,"compatible":false,"error":"the line is no JSON object with the members id, old and new: member \"new\" is given twice"}`},
		{`not JSON`, `{"id":null,"compatible":false,"error":"the line is no JSON object`},
		{`[1,2]`, `{"id":null,"compatible":false,"error":"the line is no JSON object`},
		{"{\"id\":\"\xff\",\"old\":true,\"new\":true}", `{"id":null,"compatible":false,"error":"the line is not UTF-8"}`},
		{`{"id":10,"old":"` + strings.Repeat(" ", maxPairLine) + `","new":true}`, `{"id":null,"compatible":false,"error":"the line is longer than 4.0 MiB"}`},
		{`{"id":11,"old":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `,"new":true}`, `{"id":null,"compatible":false,"error":`},
		{`{"id":"\u001b[2J\u202e","old":true,"new":true}`, `{"id":"\u001b[2J\u202e","compatible":true,"verdict":"proved"}`},
	}
	var in strings.Builder
	for i, tt := range tests {
		in.WriteString(tt.line)
		if i < len(tests)-1 {
			in.WriteString("\n\n")
		}
	}
	r := command(t, in.String(), "schema", "check", "--jsonl")
	if r.code != 0 || r.errOut != "" {
		t.Fatalf("exit code %d: %s", r.code, r.errOut)
	}
	lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	if len(lines) != len(tests) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(tests), r.out)
	}
	for i, tt := range tests {
		if !strings.HasPrefix(lines[i], tt.want) || !json.Valid([]byte(lines[i])) {
			t.Errorf("%.200s\n is answered by %.300s\n want           %s", tt.line, lines[i], tt.want)
		}
	}
	if r := command(t, in.String(), "schema", "check", "--jsonl", "--fail"); r.code != exitFailure || !strings.Contains(r.errOut, "16 of 21 are not") {
		t.Errorf("with --fail: exit code %d: %s", r.code, r.errOut)
	}
}

func TestSchemaCheckLinesOptions(t *testing.T) {
	line := `{"id":1,"old":` + nameSchema + `,"new":` + moreSchema + `}`
	for args, want := range map[string]string{
		"--level forward":                 `{"id":1,"compatible":false,"verdict":"refuted"`,
		"--level full":                    `{"id":1,"compatible":false,"direction":"forward","verdict":"refuted"`,
		"--level full --model declared":   `{"id":1,"compatible":true,"verdict":"proved"}`,
		"--level backward_transitive":     `{"id":1,"compatible":true,"verdict":"proved"}`,
		"--draft draft-07 --model strict": `{"id":1,"compatible":true,"verdict":"proved"}`,
	} {
		r := command(t, line, append([]string{"schema", "check", "--jsonl"}, strings.Fields(args)...)...)
		if r.code != 0 || !strings.HasPrefix(r.out, want) {
			t.Errorf("%s: %+v, want %s", args, r, want)
		}
	}
}

// A thousand lines, some of them broken, are answered in their order.
func TestSchemaCheckManyLines(t *testing.T) {
	const lines = 1000
	var in strings.Builder
	for i := range lines {
		switch i % 5 {
		case 0:
			fmt.Fprintf(&in, `{"id":%d,"old":{"maximum":%d},"new":{"maximum":%d}}`+"\n", i, i, i+1)
		case 1:
			fmt.Fprintf(&in, `{"id":%d,"old":{"type":"integer","maximum":%d},"new":{"maximum":%d}}`+"\n", i, i, i-1)
		case 2:
			fmt.Fprintf(&in, `{"id":%d,"old":{"minimum":"%d"},"new":true}`+"\n", i, i)
		case 3:
			fmt.Fprintf(&in, `{"id":%d,"old":`+"\n", i)
		case 4:
			fmt.Fprintf(&in, `{"id":%d,"old":"{\"const\":%d}","new":"{\"enum\":[%d]}"}`+"\r\n", i, i, i)
		}
	}
	r := command(t, in.String(), "schema", "check", "--jsonl")
	if r.code != 0 {
		t.Fatal(r.errOut)
	}
	out := bufio.NewScanner(strings.NewReader(r.out))
	for i := range lines {
		if !out.Scan() {
			t.Fatalf("%d lines", i)
		}
		var a struct {
			ID         *int
			Compatible bool
			Verdict    string
			Witness    json.RawMessage
			Error      string
		}
		if err := json.Unmarshal(out.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		ok := a.ID != nil && *a.ID == i
		switch i % 5 {
		case 0, 4:
			ok = ok && a.Compatible && a.Verdict == "proved"
		case 1:
			ok = ok && !a.Compatible && a.Verdict == "refuted" && string(a.Witness) == fmt.Sprint(i)
		case 2:
			ok = ok && !a.Compatible && strings.Contains(a.Error, "#/minimum")
		case 3:
			ok = a.ID == nil && !a.Compatible && a.Error != ""
		}
		if !ok {
			t.Errorf("line %d: %s", i, out.Text())
		}
	}
	if out.Scan() {
		t.Errorf("more than %d lines: %s", lines, out.Text())
	}
}

// A line is answered before the next is given, so that a program can ask and wait.
func TestSchemaCheckLinesAtOnce(t *testing.T) {
	in, ask := io.Pipe()
	answers, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		p, err := checkFlags{draft: "2020-12"}.pairs()
		if err == nil {
			err = checkLines(t.Context(), in, out, p, false)
		}
		done <- err
	}()
	lines := bufio.NewReader(answers)
	for i := range 3 {
		if _, err := fmt.Fprintf(ask, `{"id":%d,"old":true,"new":true}`+"\n", i); err != nil {
			t.Fatal(err)
		}
		line, err := lines.ReadString('\n')
		if want := fmt.Sprintf(`{"id":%d,"compatible":true,"verdict":"proved"}`+"\n", i); err != nil || line != want {
			t.Fatalf("%q, %v, want %q", line, err, want)
		}
	}
	if err := ask.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSchemaCheckLinesFailures(t *testing.T) {
	broken := errors.New("broken")
	p, err := checkFlags{draft: "2020-12"}.pairs()
	if err != nil {
		t.Fatal(err)
	}
	line := `{"id":1,"old":true,"new":true}` + "\n"
	var out bytes.Buffer
	err = checkLines(t.Context(), io.MultiReader(strings.NewReader(line), iotest.ErrReader(broken)), &out, p, false)
	if !errors.Is(err, broken) || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("a reader that fails: %v, %q", err, out.String())
	}
	err = checkLines(t.Context(), strings.NewReader(strings.Repeat(line, 100)), failingWriter{broken}, p, false)
	if !errors.Is(err, broken) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func FuzzSchemaCheckLine(f *testing.F) {
	f.Add([]byte(`{"id":1,"old":{"type":"integer"},"new":"{\"type\":\"number\"}"}`))
	f.Add([]byte(`{"id":null,"old":"","new":null}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		p, err := checkFlags{draft: "2020-12"}.pairs()
		if err != nil {
			t.Fatal(err)
		}
		text, err := jsonLine(p.answer(line, nil))
		if err != nil || !json.Valid(text) || bytes.Count(text, []byte("\n")) != 1 {
			t.Fatalf("%q is answered by %q, %v", line, text, err)
		}
	})
}
