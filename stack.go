package jetbus

import (
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"
)

// MaxStackBytes bounds the stack in a dead letter, as its header has it: line ends count as three bytes.
const MaxStackBytes = MaxHeaderValueBytes

const (
	maxChainErrors = 100       // errors of a chain in which StackOf looks for a stack
	maxFrames      = 128       // of a stack that is not text
	maxRawStack    = 256 << 10 // bytes of a stack from which the part to keep is taken
	minStackBytes  = 64        // less room than this is left empty
	stackCut       = "..."     // replaces the end of a stack that was cut
)

// StackOf returns the stack of a failure, as [DeadLetter.Stack] keeps it: usually the innermost frames first, two
// lines a frame, at most [MaxStackBytes]. It searches err and the errors that it wraps, the first 100, for:
//
//  1. a [PanicError]: its stack, from the function that panicked
//  2. the innermost error with a method StackTrace, without arguments and with one result of any type, as errors of
//     github.com/pkg/errors have it
//  3. the outermost error that is a [fmt.Formatter] and prints stack frames for %+v
//
// The result is empty if err is nil or no error has a stack.
func StackOf(err error) string {
	for _, kind := range []struct {
		innermost bool
		of        func(error) string
	}{{false, panicStack}, {true, tracedStack}, {false, printedStack}} {
		left := maxChainErrors
		if stack := clipStack(searchStack(err, &left, kind.innermost, kind.of)); stack != "" {
			return stack
		}
	}
	return ""
}

// searchStack returns the first stack in err and what it wraps, starting with err or with the innermost error.
func searchStack(err error, left *int, innermost bool, of func(error) string) (stack string) {
	if err == nil || *left == 0 {
		return ""
	}
	*left--
	if !innermost {
		stack = safely(of, err)
	}
	switch w := err.(type) { //nolint:errorlint // the chain itself is walked
	case interface{ Unwrap() error }:
		if stack == "" {
			stack = searchStack(w.Unwrap(), left, innermost, of)
		}
	case interface{ Unwrap() []error }:
		for _, one := range w.Unwrap() {
			if stack == "" {
				stack = searchStack(one, left, innermost, of)
			}
		}
	}
	if innermost && stack == "" {
		stack = safely(of, err)
	}
	return stack
}

// safely treats an error whose methods panic as one without a stack.
func safely(of func(error) string, err error) (stack string) {
	defer func() {
		if recover() != nil {
			stack = ""
		}
	}()
	return of(err)
}

// panicStack returns the stack of a PanicError from the function that panicked. It drops the frames that recovered the
// panic, which debug.Stack prints before the frame "panic(...)", and the frames of the runtime after it, which a nil
// pointer or an index adds.
func panicStack(err error) string {
	p, ok := err.(*PanicError) //nolint:errorlint // the chain itself is walked
	if !ok {
		return ""
	}
	text := string(p.Stack[:min(len(p.Stack), maxRawStack)])
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "panic(") {
			continue
		}
		rest := lines[min(i+2, len(lines)):]
		for len(rest) > 2 && strings.HasPrefix(rest[0], "runtime.") {
			rest = rest[2:]
		}
		if useful := strings.Join(rest, "\n"); strings.TrimSpace(useful) != "" {
			return useful
		}
		break
	}
	return text
}

// tracedStack returns the result of the method StackTrace as text. Libraries differ in its type, so it is called by reflection.
func tracedStack(err error) string {
	method := reflect.ValueOf(err).MethodByName("StackTrace")
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return ""
	}
	return traceText(method.Call(nil)[0])
}

// traceText is a stack trace as text: of program counters, of text, or of anything that prints.
func traceText(trace reflect.Value) string {
	for trace.Kind() == reflect.Interface {
		trace = trace.Elem()
	}
	switch trace.Kind() {
	case reflect.String:
		return trace.String()
	case reflect.Slice, reflect.Array:
	case reflect.Invalid:
		return ""
	case reflect.Pointer, reflect.Map, reflect.Func, reflect.Chan:
		if trace.IsNil() {
			return ""
		}
		fallthrough
	default:
		return fmt.Sprintf("%+v", trace)
	}
	n := trace.Len()
	switch trace.Type().Elem().Kind() {
	case reflect.Uint8:
		return fmt.Sprintf("%s", trace)
	case reflect.Uintptr:
		counters := make([]uintptr, min(n, maxFrames))
		for i := range counters {
			counters[i] = uintptr(trace.Index(i).Uint())
		}
		return framesText(counters)
	default:
	}
	var b strings.Builder
	for i := range min(n, maxFrames) {
		fmt.Fprintf(&b, "%+v\n", trace.Index(i))
	}
	return b.String()
}

// framesText returns a stack of return addresses, as runtime.Callers returns them, as text.
func framesText(counters []uintptr) string {
	var b strings.Builder
	for frames := runtime.CallersFrames(counters); ; {
		f, more := frames.Next()
		if f.Function != "" {
			b.WriteString(f.Function + "\n\t" + f.File + ":" + strconv.Itoa(f.Line) + "\n")
		}
		if !more {
			return b.String()
		}
	}
}

// printedStack returns what %+v prints of an error that formats itself, without the error's text at the start. It
// counts only if it names a line of a Go file: many errors print other details.
func printedStack(err error) string {
	if _, ok := err.(fmt.Formatter); !ok { //nolint:errorlint // the chain itself is walked
		return ""
	}
	text := fmt.Sprintf("%+v", err)
	message := err.Error()
	if text == message || !hasFrame(text[:min(len(text), maxRawStack)]) {
		return ""
	}
	if rest, ok := strings.CutPrefix(text, message); ok && hasFrame(rest) {
		return rest
	}
	return text
}

func hasFrame(text string) bool {
	for {
		_, rest, ok := strings.Cut(text, ".go:")
		if !ok {
			return false
		}
		if rest != "" && '0' <= rest[0] && rest[0] <= '9' {
			return true
		}
		text = rest
	}
}

// clipStack is a stack as a dead letter keeps it.
func clipStack(stack string) string {
	text, _ := unescapeText(stackText(stack, MaxStackBytes)) // which stackText has escaped
	return text
}

// stackText makes a header's value of a stack, in at most that many bytes: line ends, tabs and percent signs
// are written as "%" and two hex digits, other control characters become spaces. A longer stack is cut
// after a whole line; a single line is cut after a whole character.
func stackText(stack string, most int) string {
	if stack = cutText(stack, maxRawStack); stack == "" || most < minStackBytes {
		return ""
	}
	stack = strings.Map(func(r rune) rune {
		if r == '\r' {
			return -1
		}
		if r != '\n' && r != '\t' && unprintable(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(stack, "?"))
	text := stackEscape.Replace(strings.TrimSpace(stack))
	if len(text) <= most {
		return text
	}
	text = cutText(text, most-len(lineEnd+stackCut))
	if at := strings.LastIndex(text, lineEnd); at > 0 {
		return text[:at] + lineEnd + stackCut
	}
	if at := strings.LastIndexByte(text, '%'); at >= 0 && at > len(text)-len(lineEnd) { // within what is escaped
		text = text[:at]
	}
	return text + stackCut
}

const lineEnd = "%0A" // as stackEscape writes it

var stackEscape = strings.NewReplacer("%", "%25", "\n", lineEnd, "\t", "%09")
