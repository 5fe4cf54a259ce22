package jetbus_test

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
)

// counters are return addresses, as libraries for errors keep them.
func counters() []uintptr {
	pcs := make([]uintptr, 32)
	return pcs[:runtime.Callers(2, pcs)]
}

// frame is a program counter that prints itself, as frames of github.com/pkg/errors do.
type frame uintptr

func (f frame) Format(s fmt.State, _ rune) { _, _ = fmt.Fprintf(s, "frame %d", uintptr(f)) }

// Errors of libraries that differ in what StackTrace returns.
type (
	framesError  struct{ frames []frame }
	tracedError  struct{ trace any }
	textError    struct{ stack string }
	bytesError   struct{ stack []byte }
	pointerError struct{ stack *struct{ Frames []string } }
	askedError   struct{ stack string } // its StackTrace needs an argument
	brokenError  struct{}
)

func (*framesError) Error() string         { return "frames" }
func (e *framesError) StackTrace() []frame { return e.frames }

func (*tracedError) Error() string     { return "traced" }
func (e *tracedError) StackTrace() any { return e.trace }

func (textError) Error() string        { return "text" }
func (e textError) StackTrace() string { return e.stack }

func (bytesError) Error() string        { return "bytes" }
func (e bytesError) StackTrace() []byte { return e.stack }

func (pointerError) Error() string                            { return "pointer" }
func (e pointerError) StackTrace() *struct{ Frames []string } { return e.stack }

func (askedError) Error() string           { return "asked" }
func (e askedError) StackTrace(int) string { return e.stack }

func (brokenError) Error() string      { return "broken" }
func (brokenError) StackTrace() string { panic("no stack") }

// line is a line of a stack.
type line struct{ text string }

func (l line) String() string { return l.text }

// printedError formats itself.
type printedError struct {
	detailed string
	cause    error
}

func (printedError) Error() string   { return "printed" }
func (e printedError) Unwrap() error { return e.cause }
func (e printedError) Format(s fmt.State, verb rune) {
	text := e.Error()
	if verb == 'v' && s.Flag('+') {
		text = e.detailed
	}
	_, _ = s.Write([]byte(text))
}

func newFramesError() error {
	var frames []frame
	for _, pc := range counters() {
		frames = append(frames, frame(pc))
	}
	return &framesError{frames}
}

// panicking is the error that a panic of f becomes.
func panicking(f func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &jetbus.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	f()
	return nil
}

func explode()                { panic("boom") }
func setNil(p *int)           { *p = 1 }
func beyond(list []int) int   { return list[len(list)] } //nolint:gocritic // it is to panic
func explodeAgain() (_ error) { defer func() { panic(recover()) }(); explode(); return nil }

func TestStackOf(t *testing.T) {
	plain := errors.New("plain")
	pcs := counters()
	printed := "printed\nmain.f\n\t/app/main.go:12"
	for name, c := range map[string]struct {
		err         error
		first, more string // of the first line, and of another
	}{
		"a panic":                     {panicking(explode), "jetbus_test.explode(", "jetbus_test.TestStackOf("},
		"a nil pointer":               {panicking(func() { setNil(nil) }), "jetbus_test.setNil(", "jetbus_test.panicking("},
		"an index":                    {panicking(func() { beyond(nil) }), "jetbus_test.beyond(", "jetbus_test.panicking("},
		"a panic that is passed on":   {panicking(func() { _ = explodeAgain() }), "jetbus_test.explodeAgain.func1", "jetbus_test.explode("},
		"a panic, wrapped":            {fmt.Errorf("a: %w", errors.Join(plain, jetbus.Reject(panicking(explode)))), "jetbus_test.explode(", ""},
		"a panic of a traced error":   {panicking(func() { panic(newFramesError()) }), "jetbus_test.TestStackOf.func", ""},
		"a panic before its wrapper":  {&wrapped{textError{"outer"}, panicking(explode)}, "jetbus_test.explode(", ""},
		"a stack without a panic":     {&jetbus.PanicError{Value: 1, Stack: []byte("goroutine 1 [running]:\nmain.f()\n")}, "goroutine 1 [running]:", "main.f()"},
		"frames":                      {newFramesError(), "jetbus_test.newFramesError", "stack_test.go:"},
		"frames, wrapped":             {fmt.Errorf("a: %w", jetbus.RetryIn(0, newFramesError())), "jetbus_test.newFramesError", "jetbus_test.TestStackOf"},
		"frames, joined":              {errors.Join(plain, newFramesError()), "jetbus_test.newFramesError", ""},
		"frames around what steers":   {&wrapped{newFramesError(), jetbus.Reject(plain)}, "jetbus_test.newFramesError", ""},
		"the innermost":               {&wrapped{newFramesError(), &tracedError{"the origin"}}, "the origin", ""},
		"program counters":            {&tracedError{pcs}, "jetbus_test.TestStackOf", "stack_test.go:"},
		"program counters of nothing": {&tracedError{[]uintptr{1}}, "", ""},
		"lines":                       {&tracedError{[]string{"main.f", "main.g"}}, "main.f", "main.g"},
		"text":                        {textError{"main.f\n\t/app/main.go:12\n"}, "main.f", "\t/app/main.go:12"},
		"bytes":                       {bytesError{[]byte("main.f\r\n\tmain.go:12")}, "main.f", "\tmain.go:12"},
		"a pointer":                   {pointerError{&struct{ Frames []string }{[]string{"main.f"}}}, "", ""},
		"a struct":                    {&tracedError{struct{ Token string }{"main.go:12 secret"}}, "", ""},
		"a map":                       {&tracedError{map[string]string{"token": "main.go:12 secret"}}, "", ""},
		"structs":                     {&tracedError{[]struct{ Token string }{{"main.go:12 secret"}}}, "", ""},
		"lines that are formatted":    {&tracedError{[]line{{"main.f"}, {"main.g"}}}, "main.f", "main.g"},
		"a nil pointer to a stack":    {pointerError{}, "", ""},
		"no stack in an interface":    {&tracedError{}, "", ""},
		"an empty stack":              {textError{" \n"}, "", ""},
		"an argument":                 {askedError{"main.f"}, "", ""},
		"a method that panics":        {&wrapped{&tracedError{"outer"}, brokenError{}}, "outer", ""},
		"printed":                     {fmt.Errorf("a: %w", printedError{printed, nil}), "main.f", "\t/app/main.go:12"},
		"the outermost printed":       {printedError{"all of it\nmain.f\n\t/app/main.go:12", printedError{printed, nil}}, "all of it", ""},
		"a trace before what prints":  {printedError{printed, textError{"main.g"}}, "main.g", ""},
		"printed without frames":      {printedError{"printed, which is main.go: a file", nil}, "", ""},
		"printed as its text":         {printedError{"printed", nil}, "", ""},
		"plain":                       {fmt.Errorf("a: %w", plain), "", ""},
		"nil":                         {nil, "", ""},
	} {
		stack := jetbus.StackOf(c.err)
		first, _, _ := strings.Cut(stack, "\n")
		if !strings.Contains(first, c.first) || !strings.Contains(stack, c.more) || (stack == "") != (c.first == "") {
			t.Errorf("%s: the stack does not begin with %q and have %q:\n%s", name, c.first, c.more, stack)
		}
		if strings.Contains(stack, "\r") || strings.Contains(stack, "debug.Stack") {
			t.Errorf("%s: %q", name, stack)
		}
	}
}

// endlessError prints 256 MiB for %+v, after a frame.
type endlessError struct{}

func (endlessError) Error() string { return "endless" }
func (endlessError) Format(s fmt.State, _ rune) {
	_, _ = fmt.Fprint(s, "main.f\n\t/app/main.go:12\n")
	chunk := make([]byte, 64<<10)
	for range 4096 {
		_, _ = s.Write(chunk)
	}
}

// StackOf needs little memory for an error that prints much.
func TestStackOfIsBounded(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	stack := jetbus.StackOf(endlessError{})
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; !strings.HasPrefix(stack, "main.f\n") || n > 16<<20 {
		t.Errorf("%d bytes were allocated for %.40q", n, stack)
	}
}

// wrapped is an error around another that it says nothing about, as errors with a stack are.
type wrapped struct {
	error
	inner error
}

func (w *wrapped) Unwrap() []error { return []error{w.inner, w.error} }

func TestStackOfEndlessChain(t *testing.T) {
	loop := &wrapped{error: errors.New("loop")}
	loop.inner = loop
	if stack := jetbus.StackOf(loop); stack != "" {
		t.Errorf("%q", stack)
	}
}

// withStack is the stack that a dead letter has when it comes back, and the header of its record.
func withStack(t testing.TB, d jetbus.DeadLetter, stack string) (got, header string) {
	t.Helper()
	d.Stack = stack
	e := stored(d, 1)
	if err := e.Validate(); err != nil {
		t.Fatal(err)
	}
	back, err := jetbus.ParseDeadLetter(e)
	if err != nil {
		t.Fatal(err)
	}
	return back.Stack, e.Headers["x-dlq-stack"]
}

func TestDeadLetterStack(t *testing.T) {
	for name, c := range map[string]struct{ stack, want, header string }{
		"lines":      {"main.f(0x1, 50%)\n\t/app/a b.go:12 +0x1d\n", "main.f(0x1, 50%)\n\t/app/a b.go:12 +0x1d", "main.f(0x1, 50%25)%0A%09/app/a b.go:12 +0x1d"},
		"other text": {" \u00e9\x00\xff\r\n\u2028x\t ", "\u00e9 ?\n\u2028x", "\u00e9 ?%0A\u2028x"},
		"none":       {"", "", ""},
	} {
		if got, header := withStack(t, dead(), c.stack); got != c.want || header != c.header {
			t.Errorf("%s: %q in the header %q", name, got, header)
		}
	}
	long := strings.Repeat("main.f(...)\n\t/app/main.go:12 +0x1d\n", 500)
	got, header := withStack(t, dead(), long)
	rest, cut := strings.CutSuffix(got, "\n...")
	if !cut || !strings.HasPrefix(long, rest+"\n") || len(header) > jetbus.MaxStackBytes || len(header) < jetbus.MaxStackBytes-60 {
		t.Errorf("%d bytes in a header of %d, the end is %q", len(got), len(header), got[max(len(got)-60, 0):])
	}
	if again, _ := withStack(t, dead(), got); again != got || jetbus.StackOf(textError{long}) != got {
		t.Error("a stack that was cut is cut again")
	}
	for _, letter := range []string{"\u20ac", "%", "a\u20ac%"} { // a line that is too long is cut between characters
		line := strings.Repeat(letter, 9000)
		got, header := withStack(t, dead(), line)
		rest, cut := strings.CutSuffix(got, "...")
		if !cut || !strings.HasPrefix(line, rest) || !utf8.ValidString(got) || len(header) > jetbus.MaxStackBytes || len(header) < jetbus.MaxStackBytes-9 {
			t.Errorf("%q: %d bytes in a header of %d, the end is %q", letter, len(got), len(header), got[len(got)-9:])
		}
	}
	e := stored(dead(), 1)
	e.Headers["x-dlq-stack"] = "100% main.f"
	if d, err := jetbus.ParseDeadLetter(e); err != nil || d.Stack != "100% main.f" {
		t.Errorf("the stack of another writer is %q: %v", d.Stack, err)
	}
}

// A stack takes nothing away from the event, and no header of it goes into the event.
func TestStackNeverDisplacesHeaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := dead()
		d.Event, d.Stack = drawEvent(t), ""
		without := d.Record()
		d.Stack = strings.TrimSpace(strings.Repeat(drawText(t, "line", 80)+"\n\t%", rapid.IntRange(0, 300).Draw(t, "lines")))
		with := d.Record()
		if err := with.Validate(); err != nil {
			t.Fatal(err)
		}
		back, err := jetbus.ParseDeadLetter(with)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := back.Event.Headers["x-dlq-stack"]; ok {
			t.Fatal("the event has the stack")
		}
		header, bytes := with.Headers["x-dlq-stack"], 0
		for name, value := range with.Headers {
			bytes += len(name) + len(value)
		}
		if len(header) > jetbus.MaxStackBytes || bytes > 48<<10+100 {
			t.Fatalf("headers of %d bytes, a stack of %d", bytes, len(header))
		}
		if rest, cut := strings.CutSuffix(back.Stack, "\n..."); back.Stack != d.Stack && (back.Stack != "" || d.Stack == "" || len(without.Headers) < jetbus.MaxHeaders && bytes < 47<<10) &&
			(!cut || !strings.HasPrefix(d.Stack, rest)) {
			t.Fatalf("%q became %q", d.Stack, back.Stack)
		}
		delete(with.Headers, "x-dlq-stack")
		if fmt.Sprint(with) != fmt.Sprint(without) {
			t.Fatalf("%v\n%v", with, without)
		}
	})
}
