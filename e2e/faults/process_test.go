//go:build unix

package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// limit bounds every wait that ends well before it, on a busy machine too.
const limit = 40 * time.Second

// A child process is this test binary with a role and its configuration in the
// environment.
const (
	envRole   = "JETBUS_FAULTS_ROLE"
	envConfig = "JETBUS_FAULTS_CONFIG"
)

// role is what a child does. It ends when ctx does, by SIGTERM.
type role func(ctx context.Context, config []byte, p *parent) error

var roles = map[string]role{
	"broker":   runBroker,
	"node":     runNode,
	"consumer": runConsumer,
	"mover":    runMover,
}

func TestMain(m *testing.M) {
	name := os.Getenv(envRole)
	if name == "" {
		flag.Parse()
		if err := flag.Set("test.parallel", "20"); err != nil { // most of the time they wait
			panic(err)
		}
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	p := &parent{orders: make(chan string), out: json.NewEncoder(os.Stdout)}
	go p.listen()
	err := roles[name](ctx, []byte(os.Getenv(envConfig)), p)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// report is a line that a child tells its parent.
type report struct {
	What    string    // what happened
	ID      string    `json:",omitempty"` // of the event
	Seq     uint64    `json:",omitempty"`
	Attempt int       `json:",omitempty"`
	Count   int       `json:",omitempty"`
	At      time.Time // by the clock of the machine, which all processes share
	Err     string    `json:",omitempty"`
	Is      string    `json:",omitempty"` // the condition behind Err, as the role names it
}

// parent is the other end of a child.
type parent struct {
	orders chan string
	mu     sync.Mutex
	out    *json.Encoder
}

// listen passes on orders, and ends the process when nobody is left to give any.
func (p *parent) listen() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		p.orders <- lines.Text()
	}
	os.Exit(3)
}

func (p *parent) tell(r report) {
	r.At = time.Now()
	p.mu.Lock()
	err := p.out.Encode(r)
	p.mu.Unlock()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tell:", err)
		os.Exit(3)
	}
}

// child is a process that plays a role.
type child struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
	ended  chan struct{} // closed when the process is gone and all it said is read
	err    error         // of its end

	mu      sync.Mutex
	reports []report
	more    chan struct{} // closed when there are more; then another one is made
}

// spawn starts a child, which is killed at the end of the test if it still lives.
func spawn(t *testing.T, name string, config any) *child {
	t.Helper()
	c, err := start(name, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.kill()
		if t.Failed() && c.stderr.Len() > 0 {
			t.Logf("%s %d said:\n%s", name, c.cmd.Process.Pid, c.stderr.String())
		}
	})
	return c
}

func start(name string, config any) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	c := &child{name: name, cmd: exec.Command(exe), ended: make(chan struct{}), more: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), envRole+"="+name, envConfig+"="+string(text))
	c.cmd.Stderr = &c.stderr
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go c.read(out)
	return c, nil
}

// read collects what the child says until its end.
func (c *child) read(out io.Reader) {
	defer close(c.ended)
	lines := json.NewDecoder(out)
	for {
		var r report
		if lines.Decode(&r) != nil {
			break // the end, or a line that a SIGKILL cut
		}
		c.mu.Lock()
		c.reports = append(c.reports, r)
		close(c.more)
		c.more = make(chan struct{})
		c.mu.Unlock()
	}
	c.err = c.cmd.Wait()
}

// said returns the reports of a kind so far, and a channel that is closed when
// there are more.
func (c *child) said(what string) ([]report, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []report
	for _, r := range c.reports {
		if r.What == what {
			out = append(out, r)
		}
	}
	return out, c.more
}

// await waits for a report of a kind that matches.
func (c *child) await(t *testing.T, what string, match func(report) bool) report {
	t.Helper()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for ended := false; ; {
		reports, more := c.said(what)
		if i := slices.IndexFunc(reports, match); i >= 0 {
			return reports[i]
		}
		if ended {
			t.Fatalf("%s ended without saying %q: %v", c.name, what, c.err)
		}
		select {
		case <-more:
		case <-c.ended:
			ended = true
		case <-timeout.C:
			c.mu.Lock()
			defer c.mu.Unlock()
			t.Fatalf("%s does not say %q; last it said %+v", c.name, what, c.reports[max(len(c.reports)-5, 0):])
		}
	}
}

// first waits for the first report of a kind.
func (c *child) first(t *testing.T, what string) report {
	t.Helper()
	return c.await(t, what, func(report) bool { return true })
}

// of waits for a report of a kind about an event.
func (c *child) of(t *testing.T, what, id string) report {
	t.Helper()
	return c.await(t, what, func(r report) bool { return r.ID == id })
}

// order tells the child something.
func (c *child) order(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(c.stdin, text+"\n"); err != nil {
		t.Fatalf("order %s to %s: %v", c.name, text, err)
	}
}

// kill ends the process by SIGKILL and returns when it is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // may be gone already
	<-c.ended
}

func (c *child) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		t.Fatalf("signal %v to %s: %v", s, c.name, err)
	}
}

// gone waits for the end of a child that ends in order.
func (c *child) gone(t *testing.T) {
	t.Helper()
	select {
	case <-c.ended:
	case <-time.After(limit):
		t.Fatalf("%s does not end", c.name)
	}
	if c.err != nil {
		t.Errorf("%s: %v", c.name, c.err)
	}
}
