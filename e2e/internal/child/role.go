//go:build unix

// Package child runs parts of a test in processes of their own, so that they can be
// killed, frozen and ended like the programs they stand for.
//
// A child is the test binary itself, started again with a [Role] and its configuration
// in the environment. TestMain hands the roles to [Main], which plays one and never
// returns in a child, and returns at once in the test. A child tells its parent what
// happens in reports, one JSON value a line, and takes orders, one line each. It ends
// when its parent does, whatever became of that.
package child

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// What a child is told in its environment.
const (
	envRole   = "JETBUS_TEST_ROLE"
	envConfig = "JETBUS_TEST_CONFIG"
)

// Exit codes of a child.
const (
	exitFailed = 1 // the role returned an error, which is on standard error
	exitOrphan = 3 // the parent is gone
)

// Role is what a child does. Config is what [Start] was given, as JSON. It returns in
// order when ctx ends, by SIGTERM.
type Role func(ctx context.Context, config []byte, p *Parent) error

// Parent is the parent of a child, as its role sees it. It is safe for concurrent use.
type Parent struct {
	orders chan string
	mu     sync.Mutex
	out    *json.Encoder
}

// Main plays the role of this process and ends it, if it is a child. TestMain calls it
// first, with all roles of its binary by name.
func Main(roles map[string]Role) {
	name := os.Getenv(envRole)
	if name == "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	p := &Parent{orders: make(chan string), out: json.NewEncoder(os.Stdout)}
	go p.listen() // ends the process, or ends with it
	err := fmt.Errorf("no role is called %q", name)
	if play, ok := roles[name]; ok {
		err = play(ctx, []byte(os.Getenv(envConfig)), p)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitFailed)
	}
	os.Exit(0)
}

// listen passes on orders, and ends the process when nobody is left to give any.
func (p *Parent) listen() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		p.orders <- lines.Text()
	}
	os.Exit(exitOrphan)
}

// Orders are what [Process.Order] said. A role that is given orders must take them.
func (p *Parent) Orders() <-chan string { return p.orders }

// Tell reports something. What it has told is not lost when the child is killed.
func (p *Parent) Tell(report any) {
	p.mu.Lock()
	err := p.out.Encode(report)
	p.mu.Unlock()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tell:", err)
		os.Exit(exitOrphan)
	}
}
