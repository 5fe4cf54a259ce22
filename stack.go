package jetbus

import (
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"
)

// MaxStackBytes is the maximum length of the header x-dlq-stack. Line ends, tabs and percent signs take three bytes each.
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
//  2. the innermost error with a method StackTrace without arguments, as errors of github.com/pkg/errors have it. It
//     returns program counters, a string, bytes, or a slice of strings or of values with a method Format or String
//  3. the outermost error that is a [fmt.Formatter] and prints stack frames for %+v
//
// The result is empty if err is nil or no error has a stack. It is what the error prints and can contain secrets.
func StackOf(err error) string {
	for _, kind := range []struct {
		innermost bool
		find      func(error) string
	}{{false, panicStack}, {true, tracedStack}, {false, printedStack}} {
		left := maxChainErrors
		if stack := clipStack(searchStack(err, &left, kind.innermost, kind.find)); stack != "" {
			return stack
		}
	}
	return ""
}

// searchStack returns the first stack in err and what it wraps, starting with err or with the innermost error.
func searchStack(err error, left *int, innermost bool, find func(error) string) (stack string) {
	if err == nil || *left == 0 {
		return ""
	}
	*left--
	if !innermost {
		stack = recoverStack(find, err)
	}
	switch w := err.(type) { //nolint:errorlint // the chain itself is walked
	case interface{ Unwrap() error }:
		if stack == "" {
			stack = searchStack(w.Unwrap(), left, innermost, find)
		}
	case interface{ Unwrap() []error }:
		for _, one := range w.Unwrap() {
			if stack == "" {
				stack = searchStack(one, left, innermost, find)
			}
		}
	}
	if innermost && stack == "" {
		stack = recoverStack(find, err)
	}
	return stack
}

// recoverStack calls find. An error whose methods panic has no stack.
func recoverStack(find func(error) string, err error) (stack string) {
	defer func() {
		if recover() != nil {
			stack = ""
		}
	}()
	return find(err)
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

// traceText formats the result of a StackTrace method. It returns "" for other types, which may print more than a stack.
func traceText(trace reflect.Value) string {
	for trace.Kind() == reflect.Interface {
		trace = trace.Elem()
	}
	switch trace.Kind() {
	case reflect.String:
		return trace.String()
	case reflect.Slice:
	default:
		return ""
	}
	n := trace.Len()
	switch line := trace.Type().Elem(); {
	case line.Kind() == reflect.Uint8:
		return string(trace.Bytes()[:min(n, maxRawStack)])
	case line.Kind() == reflect.Uintptr:
		counters := make([]uintptr, min(n, maxFrames))
		for i := range counters {
			counters[i] = uintptr(trace.Index(i).Uint())
		}
		return framesText(counters)
	case line.Kind() != reflect.String && !line.Implements(reflect.TypeFor[fmt.Formatter]()) && !line.Implements(reflect.TypeFor[fmt.Stringer]()):
		return ""
	}
	var b strings.Builder
	for i := 0; i < min(n, maxFrames) && b.Len() < maxRawStack; i++ {
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
	f, ok := err.(fmt.Formatter)
	if !ok {
		return ""
	}
	var p printer
	f.Format(&p, 'v')
	text, message := string(p.text), err.Error()
	if text == message || !hasFrame(text) {
		return ""
	}
	if rest, ok := strings.CutPrefix(text, message); ok && hasFrame(rest) {
		return rest
	}
	return text
}

// printer is the fmt.State of the verb %+v. It keeps the first maxRawStack bytes.
type printer struct{ text []byte }

// Write implements fmt.State.
func (p *printer) Write(b []byte) (int, error) {
	p.text = append(p.text, b[:min(len(b), maxRawStack-len(p.text))]...)
	return len(b), nil
}

// Width implements fmt.State.
func (*printer) Width() (int, bool) { return 0, false }

// Precision implements fmt.State.
func (*printer) Precision() (int, bool) { return 0, false }

// Flag implements fmt.State.
func (*printer) Flag(c int) bool { return c == '+' }

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

// clipStack returns the part of stack that a dead letter keeps.
func clipStack(stack string) string {
	text, _ := unescapeText(stackText(stack, MaxStackBytes)) // which stackText has escaped
	return text
}

// stackText encodes stack as a header value of at most most bytes. Line ends, tabs and percent signs
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
