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

// TestReadmeService keeps the README's service the one of adapter's Example.
func TestReadmeService(t *testing.T) {
	_, service, ok := strings.Cut(read(t, "adapter/example_service_test.go"), "// serve is")
	service, _, found := strings.Cut(service, "\n}\n")
	if !ok || !found {
		t.Fatal("adapter/example_service_test.go has no serve")
	}
	if service = "// serve is" + service + "\n}\n"; !strings.Contains(read(t, "README.md"), service) {
		t.Errorf("README.md has another service than adapter's Example:\n%s", service)
	}
}

// TestReadmeTopic keeps the README's typed topic that of adapter's Example.
func TestReadmeTopic(t *testing.T) {
	_, example, ok := strings.Cut(read(t, "adapter/example_test.go"), "\torders := jetbus.Topic")
	example, _, found := strings.Cut(example, "\tcheck(err)\n\t<-done\n")
	if !ok || !found {
		t.Fatal("adapter/example_test.go has no typed topic")
	}
	example = strings.ReplaceAll("\torders := jetbus.Topic"+example, "\n\t", "\n")[1:]
	if !strings.Contains(read(t, "README.md"), "```go\n"+example+"```\n") {
		t.Errorf("README.md has another typed topic than adapter's Example:\n%s", example)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
