// Command jetbus runs and uses a JetBus: a broker with the bus on top of it,
// for one machine (jetbus dev) or a team (jetbus serve), and the tools to
// publish, read and declare topics on any NATS server with JetStream.
//
// It exits with 0 when all went well, 1 for a failure, 2 for a wrong command
// line, 3 when a topic, group or position does not exist, 4 for a conflict with
// what exists and 5 when only a part was done.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

func main() {
	os.Exit(realMain())
}

// realMain is main without os.Exit. The first interrupt ends the command in order;
// the second has its default effect, which is to end the process at once.
func realMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	overcommit()
	signal.Ignore(syscall.SIGPIPE) // a reader that went away is an error of the write, which ends the command quietly
	return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
}

// overcommit sets GOMAXPROCS to twice its default, unless the environment sets it. The Go scheduler preempts a
// goroutine only after 10 ms, for example one that parses a large body, and short requests would wait for that. With
// more threads than processors, the operating system switches between them sooner. GOMAXPROCS then no longer follows
// changes of the CPU quota.
func overcommit() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(2 * runtime.GOMAXPROCS(0))
	}
}

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	root := newRoot(getenv) //nolint:contextcheck // cobra carries the context to the commands
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root)
	cmd, err := root.ExecuteContextC(ctx)
	return report(stderr, cmd.CommandPath(), err)
}
