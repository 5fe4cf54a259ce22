package jetbus_test

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeProgram keeps the README's first program the tested Example of adapter.
func TestReadmeProgram(t *testing.T) {
	readme := read(t, "README.md")
	source := read(t, "adapter/example_test.go")
	_, body, ok := strings.Cut(source, "func Example() {\n")
	body, _, found := strings.Cut(body, "\t// Output:")
	if !ok || !found {
		t.Fatal("adapter/example_test.go has no Example with an output")
	}
	_, program, ok := strings.Cut(readme, "```go\npackage main\n")
	program, _, found = strings.Cut(program, "```\n")
	if !ok || !found {
		t.Fatal("README.md has no program")
	}
	if !strings.Contains(program, "func main() {\n"+body+"}\n") {
		t.Errorf("README.md's program is not adapter's Example; its main should be:\n%s", body)
	}
	if lines := strings.Count(body, "\n"); lines > 30 {
		t.Errorf("the program has %d lines, the heading says thirty", lines)
	}
}

// TestReadmeService keeps the README's service, and how signals end it, those of adapter's Example.
func TestReadmeService(t *testing.T) {
	readme, source := read(t, "README.md"), read(t, "adapter/example_service_test.go")
	_, service, ok := strings.Cut(source, "// serve is")
	service, _, found := strings.Cut(service, "\n}\n")
	if !ok || !found {
		t.Fatal("adapter/example_service_test.go has no serve")
	}
	if service = "// serve is" + service + "\n}\n"; !strings.Contains(readme, service) {
		t.Errorf("README.md has another service than adapter's Example:\n%s", service)
	}
	_, signals, ok := strings.Cut(source, "func Example_gracefulShutdown() {\n")
	signals, _, found = strings.Cut(signals, "\tbroker, err := ")
	if !ok || !found {
		t.Fatal("adapter/example_service_test.go has no Example that begins with its context")
	}
	if signals = "func main() {\n" + signals + "\tnc, err := "; !strings.Contains(readme, signals) {
		t.Errorf("README.md's service does not end by signals as adapter's Example; its main should begin:\n%s", signals)
	}
}

// TestReadmeEnsureTopic keeps the README's declaration of a topic that of adapter's Example.
func TestReadmeEnsureTopic(t *testing.T) {
	declaration := excerpt(t, "ExampleBus_EnsureTopic", "_, err = bus.EnsureTopic", "info, err := ")
	if !strings.Contains(read(t, "README.md"), "```go\n"+declaration+"```\n") {
		t.Errorf("README.md declares another topic than adapter's Example:\n%s", declaration)
	}
}

// TestReadmeTopic keeps the README's typed topic that of adapter's Example.
func TestReadmeTopic(t *testing.T) {
	topic := excerpt(t, "Example_typedTopic", "type Order struct", "// Output:")
	if !strings.Contains(read(t, "README.md"), "```go\n"+topic+"```\n") {
		t.Errorf("README.md has another typed topic than adapter's Example:\n%s", topic)
	}
}

// TestReadmeHeaderIndex keeps the README's index of a header that of the Example.
func TestReadmeHeaderIndex(t *testing.T) {
	_, code, ok := strings.Cut(read(t, "header_index_example_test.go"), "\nconst (\n")
	code, _, found := strings.Cut(code, "\n// Find the events")
	if !ok || !found {
		t.Fatal("header_index_example_test.go has no index before its Example")
	}
	if code = "const (\n" + code; !strings.Contains(read(t, "README.md"), "```go\n"+code+"```\n") {
		t.Errorf("README.md has another index than the Example:\n%s", code)
	}
}

// excerpt returns the lines of an Example of adapter/example_test.go from the one that begins with
// first up to the one that begins with end, as they stand outside of a function.
func excerpt(t *testing.T, example, first, end string) string {
	t.Helper()
	_, body, ok := strings.Cut(read(t, "adapter/example_test.go"), "\nfunc "+example+"() {\n")
	body, _, closed := strings.Cut(body, "\n}\n")
	_, lines, begins := strings.Cut(body, "\t"+first)
	lines, _, ends := strings.Cut(lines, "\t"+end)
	if !ok || !closed || !begins || !ends {
		t.Fatalf("adapter/example_test.go has no %s with lines from %q to %q", example, first, end)
	}
	return strings.ReplaceAll(first+lines, "\n\t", "\n")
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
