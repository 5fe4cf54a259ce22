package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

func TestExitCodes(t *testing.T) {
	unread := &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}
	tests := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{fmt.Errorf("print: %w", unread), 0},
		{errors.Join(unread, fmt.Errorf("and: %w", unread)), 0},
		{errors.Join(jetbus.ErrNoTopic, unread), 3},
		{&partialError{unread}, 5},
		{&fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}, 1},
		{&net.OpError{Op: "write", Err: os.NewSyscallError("write", syscall.EPIPE)}, 1},
		{errors.New("anything"), 1},
		{jetbus.ErrUnavailable, 1},
		{usagef("bad"), 2},
		{fmt.Errorf("x: %w", jetbus.ErrInvalidTopic), 2},
		{fmt.Errorf("x: %w", jetbus.ErrInvalidOption), 2},
		{fmt.Errorf("x: %w", jetbus.ErrNoTopic), 3},
		{jetbus.ErrNoGroup, 3},
		{jetbus.ErrPositionUnknown, 3},
		{&jetbus.ConflictError{What: "topic a"}, 4},
		{&jetbus.PublishError{Err: jetbus.ErrWrongSequence}, 4},
		{embedded.ErrInUse, 4},
		{&schema.CompileError{}, 2},
		{fmt.Errorf("x: %w: %w", registry.ErrInvalidReference, registry.ErrNoVersion), 2},
		{registry.ErrInvalidExport, 2},
		{registry.ErrNoSchema, 3},
		{registry.ErrErased, 3},
		{&registry.IncompatibleError{}, 4},
		{&registry.ReferencedError{}, 4},
		{registry.ErrReadOnly, 4},
		{registry.ErrBackfillDiffers, 4},
		{&partialError{jetbus.ErrNoTopic}, 5},
	}
	for _, tt := range tests {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("exit code of %v is %d, want %d", tt.err, got, tt.want)
		}
	}
}

// What this system says of an address that is taken, and of output that nobody reads, is what
// the command looks for.
func TestErrorsOfTheSystem(t *testing.T) {
	t.Parallel()
	first, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if second, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", first.Addr().String()); err == nil {
		_ = second.Close()
		t.Error("two listeners have one address")
	} else if !errors.Is(err, errAddressTaken) {
		t.Errorf("an address that is taken: %v", err)
	}
	text := "listen tcp 127.0.0.1:1: bind: " + errAddressTaken.Error() // of a server that does not wrap it
	err = listenError(errors.New(text), "--metrics", "127.0.0.1:1")
	if want := "choose another with --metrics; port 0 takes a free one"; !errors.Is(err, errAddressTaken) || remedy("jetbus serve", err) != want {
		t.Errorf("its text alone: %v; %s", err, remedy("jetbus serve", err))
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	_ = r.Close() // a write shows it
	_, err = w.WriteString("x")
	failed, ok := errors.AsType[*fs.PathError](err)
	if !ok {
		t.Fatalf("a pipe that nobody reads: %v", err)
	}
	failed.Path = os.Stdout.Name()
	if got := exitCode(failed); got != 0 {
		t.Errorf("of standard output that nobody reads: exit code %d", got)
	}
}

func TestReportIsOneLine(t *testing.T) {
	var b strings.Builder
	report(&b, "jetbus", errors.Join(errors.New("one\x1b[31m"), fmt.Errorf("two: %w", jetbus.ErrNoTopic)))
	want := `jetbus: one\x1b[31m; two: no such topic; see jetbus topics, or declare it with jetbus topics create` + "\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestUsageErrors(t *testing.T) {
	tests := []struct{ args, want string }{
		{"publish", `there is no command "publish"; see jetbus --help`},
		{"sbu", "did you mean sub?"},
		{"pub", "0 arguments given; usage: jetbus pub TOPIC [PAYLOAD|-] [flags]; see jetbus pub --help"},
		{"pub a b c", "3 arguments given"},
		{"pub --nonsense", "unknown flag: --nonsense; see jetbus pub --help"},
		{"pub Bad.Topic x", "invalid topic"},
		{"pub a x --header nope", "use x-name=value"},
		{"pub a x --header nats-x=1", "invalid header"},
		{"pub a x --id 1 --count 2", "--id with --count"},
		{"pub a x --count 0", "--count 0"},
		{"pub a x --lines", "--lines takes neither"},
		{"pub a x --at yesterday", `--at: "yesterday" is no time`},
		{"pub a x -o xml", `--output "xml"`},
		{"sub", "0 arguments given"},
		{"sub a --from nowhere", `--from "nowhere"`},
		{"sub a --from seq=x", "not a sequence"},
		{"sub a --from after=", "the value is missing"},
		{"sub a --filter nope=1", `--filter "nope=1"`},
		{"sub a --limit -1", `"--limit" flag: use 1 or more; see jetbus sub --help`},
		{"sub a --limit 0", `"--limit" flag: use 1 or more`},
		{"dlq ls a --limit 0", `"--limit" flag: use 1 or more`},
		{"backfill a b --limit x", `"--limit" flag: use 1 or more`},
		{"sub a --limit 99999999999999999999", `"--limit" flag: "99999999999999999999" is out of range; see jetbus sub --help`},
		{"sub a --limit -99999999999999999999", `"--limit" flag: use 1 or more`},
		{"pub a x --count x", `"--count" flag: "x" is no number; see jetbus pub --help`},
		{"pub a x --count 99999999999999999999", "is out of range"},
		{"dev --plain=maybe", `"--plain" flag: use true or false`},
		{"pub a x --ttl soon", `"--ttl" flag: use a duration as 90s or 1h30m`},
		{"topics rn a", `topics has no command "rn"`},
		{"topics ls -o yaml", `--output "yaml"`},
		{"topics create a --max-bytes much", "is no size"},
		{"serve", "name the folder of the store with --dir"},
		{"serve --dir x --tls-cert a", "--tls-cert and --tls-key go together"},
		{"serve --dir x --listen 0.0.0.0:4222", "--listen 0.0.0.0:4222 is reachable from other machines: give --user and --password"},
		{"serve --dir x --prefix a.b", "--prefix says nothing to jetbus serve"},
		{"serve --dir x --server foo", "--server says nothing to jetbus serve"},
		{"dev --server foo", "--server says nothing to jetbus dev; see jetbus dev --help"},
		{"dev --timeout 1s", "--timeout says nothing to jetbus dev"},
		{"version --server foo", "--server says nothing to jetbus version; see jetbus version --help"},
		{"lint --prefix foo", "--prefix says nothing to jetbus lint; see jetbus lint --help"},
		{"lint --token foo", "--token says nothing to jetbus lint; see jetbus lint --help"},
		{"token mint --server foo", "--server says nothing to jetbus token mint; see jetbus token mint --help"},
		{"completion --prefix x", "--prefix says nothing to jetbus completion; see jetbus completion --help"},
		{"completion bash --prefix x", "--prefix says nothing to jetbus completion bash; see jetbus completion bash --help"},
		{"serve --dir x --log-format xml", `--log-format "xml"`},
		{"serve --dir x --user a", `serve: no --password for --user "a"; see jetbus serve --help`},
		{"serve --dir x --user Token", `serve: no --password for --user "Token"; see jetbus serve --help`},
		{"serve --dir x --password a", "serve: a --password without --user; see jetbus serve --help"},
		{"serve --dir x --user a --token b", "serve: a --token and a --user or --password exclude each other"},
		{"serve --dir x --listen foo:bar", `serve: --listen: address foo:bar: port "bar" is not a number from 0 to 65535`},
		{"serve --dir x --websocket foo", "serve: --websocket: address foo: missing port in address"},
		{"serve --dir x --websocket-origin https://a.example", "serve: --websocket-origin without --websocket"},
		{"serve --dir x --websocket 0 --websocket-origin a", `serve: --websocket-origin: "a" is not of the form https://host[:port]`},
		{"serve --dir x --gateway foo:bar", "serve: --gateway foo:bar: use host:port or a port, which is a number from 0 to 65535"},
		{"dev --dir x --gateway foo:bar", "jetbus: --gateway foo:bar: use host:port or a port, which is a number from 0 to 65535"},
		{"dev --dir x --gateway foo", "--gateway foo: use host:port or a port"},
		{"dev --dir x --listen foo:bar", `jetbus: --listen: address foo:bar: port "bar" is not a number from 0 to 65535`},
		{"dev --interval 1ms", "--interval 1ms"},
		{"dev --dir x --listen 0.0.0.0:0", "--listen 0.0.0.0:0 is reachable from other machines, and dev lets in whoever comes"},
		{"topics --user a --token b", "give one of"},
		{"topics --timeout 0s", "--timeout 0s"},
		{"topics --creds /does/not/exist", "--creds"},
		{"version x", "1 argument given"},
	}
	for _, tt := range tests {
		r := command(t, "", strings.Fields(tt.args)...)
		if r.code != exitUsage || !strings.Contains(r.errOut, tt.want) || strings.Contains(r.errOut, "jetbus: jetbus") || strings.Contains(r.errOut, "strconv") || strings.Count(r.errOut, "\n") != 1 || !strings.HasPrefix(r.errOut, "jetbus: ") {
			t.Errorf("jetbus %s: exit code %d, want 2, with one line that says %q, got %q", tt.args, r.code, tt.want, r.errOut)
		}
		if r.out != "" {
			t.Errorf("jetbus %s wrote %q to standard output", tt.args, r.out)
		}
	}
}

// What is wrong with a command line leads to the help of its own command, or to what lists the
// things that it has to name.
func TestUsageErrorsNameTheHelp(t *testing.T) {
	for args, want := range map[string]string{
		"publish":                            "--help",
		"pub a x --header nope":              "pub --help",
		"pub a x --count 0":                  "pub --help",
		"pub a x --at yesterday":             "pub --help",
		"pub a x -o xml":                     "pub --help",
		"sub a --from nowhere":               "sub --help",
		"sub a --filter nope=1":              "sub --help",
		"topics --timeout 0s":                "topics --help",
		"topics ls -o yaml":                  "topics ls --help",
		"serve":                              "serve --help",
		"serve --dir x --log-level loud":     "serve --help",
		"serve --dir x --listen foo:bar":     "serve --help",
		"dev --interval 1ms":                 "dev --help",
		"dev --for -1s":                      "dev --help",
		"token mint --subject ann":           "token mint --help",
		"project":                            "project --help",
		"dlq show a x":                       "dlq ls",
		"outbox retry --db postgres://a/b":   "outbox ls --state dead",
		"changefeed run --for -1s --topic a": "changefeed run --help",
	} {
		r := command(t, "", strings.Fields(args)...)
		if r.code != exitUsage || !strings.HasSuffix(r.errOut, "; see jetbus "+want+"\n") || strings.Count(r.errOut, "see jetbus ") != 1 {
			t.Errorf("jetbus %s: exit code %d, want 2, and nothing but jetbus %s to see: %s", args, r.code, want, r.errOut)
		}
	}
}

// The prefix of the bus is minded where there is one: for a gateway, whoever names it, or for metrics.
func TestServePrefix(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, name := range []string{"JETBUS_GATEWAY", "JETBUS_METRICS"} {
		env := map[string]string{name: taken.Addr().String()}
		r := commandEnv(t, env, "", "serve", "--dir", t.TempDir(), "--listen", "0", "--prefix", "shop")
		if r.code != exitFailure || strings.Contains(r.errOut, "--prefix") || !strings.Contains(r.errOut, "listen on "+taken.Addr().String()) {
			t.Errorf("%s: exit code %d: %s", name, r.code, r.errOut)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, args := range []string{"", "--help", "help pub", "pub --help", "sub -h", "dev -h", "serve -h", "topics -h", "topics create -h"} {
		if r := command(t, "", strings.Fields(args)...); r.code != 0 || !strings.Contains(r.out, "Examples:") {
			t.Errorf("jetbus %s: exit code %d, no examples in:\n%s%s", args, r.code, r.out, r.errOut)
		}
	}
	for _, arg := range []string{"version", "--version"} {
		if r := command(t, "", arg); r.code != 0 || !strings.HasPrefix(r.out, "jetbus ") || strings.Count(r.out, "\n") != 1 {
			t.Errorf("%s: %+v", arg, r)
		}
	}
	if r := command(t, "", "--help"); strings.Count(r.out, "\n  pub ") != 1 || !strings.Contains(r.out, "--tls-ca string") {
		t.Errorf("help does not list each command once, and all flags:\n%s", r.out)
	}
	if r := command(t, "", "topics", "ls", "--help"); strings.Contains(r.out, "--tls-ca string") || !strings.Contains(r.out, "see jetbus --help") {
		t.Errorf("help of a command that connects:\n%s", r.out)
	}
	for name, flags := range map[string][]string{"dev": {"prefix"}, "serve": {"user", "password", "token", "prefix"}} {
		r := command(t, "", name, "--help")
		for _, flag := range flags {
			if strings.Count(r.out, "\n      --"+flag+" string ") != 1 {
				t.Errorf("help of %s does not list --%s once:\n%s", name, flag, r.out)
			}
		}
		if strings.Contains(r.out, "--creds") {
			t.Errorf("help of %s lists --creds, which it refuses:\n%s", name, r.out)
		}
	}
	if r := command(t, "", "completion", "bash"); r.code != 0 || !strings.Contains(r.out, "jetbus") || r.errOut != "" {
		t.Errorf("completion bash: exit code %d, %d bytes: %s", r.code, len(r.out), r.errOut)
	}
	for _, args := range []string{"version", "token mint", "completion bash"} {
		r := command(t, "", append(strings.Fields(args), "--help")...)
		if args == "version" && strings.Count(r.out, "\n") > 10 || strings.Contains(r.out, "--server") {
			t.Errorf("help of %s, which does not connect:\n%s", args, r.out)
		}
	}
}

func TestNoServer(t *testing.T) {
	r := command(t, "", "topics", "--server", "nats://me:secret@127.0.0.1:1", "--timeout", "2s")
	if r.code != exitFailure || !strings.Contains(r.errOut, "start one with jetbus dev") || strings.Contains(r.errOut, "secret") {
		t.Errorf("%+v", r)
	}
}

func TestRedacted(t *testing.T) {
	for in, want := range map[string]string{
		"nats://127.0.0.1:4222":          "nats://127.0.0.1:4222",
		"nats://me:pw@h:1,nats://tok@h2": "nats://xxxxx@h:1,nats://xxxxx@h2",
		"me:p%zzw@h":                     "...@h",
	} {
		if got := redacted(in); got != want {
			t.Errorf("redacted(%q) = %q, want %q", in, got, want)
		}
	}
	for _, address := range []string{"nats://me:se%zzcret@h:1", "nats://me:se/cret@h:1", "nats://h:2,nats://me:se#cret@h:1"} {
		r := command(t, "", "topics", "--server", address)
		if r.code != exitUsage || strings.Contains(r.errOut, "se%") || strings.Contains(r.errOut, "se/") || strings.Contains(r.errOut, "se#") || strings.Contains(r.errOut, "cret") {
			t.Errorf("%s: exit code %d: %s", address, r.code, r.errOut)
		}
	}
}
