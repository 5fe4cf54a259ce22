//go:build linux

package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/adapter"
)

// Tokens of clients with few permissions. That of each is its name, in 32 characters.
var (
	mallory   = tokenOf("mallory")   // reads topics and schemas
	prober    = tokenOf("prober")    // the same
	writer    = tokenOf("writer")    // publishes to bulk, live and dear.*, and reads schemas
	bystander = tokenOf("bystander") // publishes to calm, and reads topics
)

func tokenOf(name string) string { return strings.Repeat(name, 32)[:32] }

// serveOptions are what a process of jetbus serve differs by.
type serveOptions struct {
	settings  string   // of the gateway, JSON; default: none
	anonymous bool     // the gateway has no tokens
	flags     []string // more of them
}

// serveProcess is a process of jetbus serve with a gateway. Its tokens are token, which reads
// topics and joins the group billing, and those above.
type serveProcess struct {
	*testing.T
	cmd     *exec.Cmd
	urls    []string // that it printed, the broker's first
	address string   // of the gateway
}

// startServe builds the command and runs it. The process ends with the test.
func startServe(t *testing.T, o serveOptions) *serveProcess {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "jetbus")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/jetbus")
	build.Dir = filepath.Join("..", "..") // it is of the other module
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	args := []string{"serve", "--dir", filepath.Join(dir, "store"), "--listen", "127.0.0.1:0", "--gateway", "127.0.0.1:0"}
	if !o.anonymous {
		args = append(args, "--tokens", writeTokens(t, dir))
	}
	if o.settings != "" {
		config := filepath.Join(dir, "gateway.json")
		if err := os.WriteFile(config, []byte(o.settings), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--gateway-config", config)
	}
	var log bytes.Buffer // to be read when the process has ended
	s := &serveProcess{T: t, cmd: exec.CommandContext(context.WithoutCancel(t.Context()), program, append(args, o.flags...)...)}
	s.cmd.Stderr = &log
	stdout, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := s.cmd.Process.Signal(os.Interrupt)
		late := time.AfterFunc(limit, func() { _ = s.cmd.Process.Kill() })
		defer late.Stop()
		if err = errors.Join(err, s.cmd.Wait()); err != nil {
			t.Errorf("end of jetbus serve: %v\n%.5000s", err, log.Bytes())
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	rest, ok := strings.CutPrefix(line, "ready ")
	if s.urls = strings.Fields(rest); err != nil || !ok || len(s.urls) < 2 {
		t.Fatalf("jetbus serve printed %q: %v", line, err)
	}
	for _, url := range s.urls[1:] {
		if strings.HasPrefix(url, "http://") && s.address == "" {
			s.address = hostOf(url)
		}
	}
	return s
}

// writeTokens writes the file of tokens, and returns its path.
func writeTokens(t *testing.T, dir string) string {
	t.Helper()
	type entry struct {
		Token   string   `json:"token"`
		Subject string   `json:"subject"`
		Scopes  []string `json:"scopes"`
	}
	text, err := json.Marshal([]entry{
		{token, "tool", []string{"topic:read:>", "group:join:billing"}},
		{mallory, "mallory", []string{"topic:read:>", "schema:read:>"}},
		{prober, "prober", []string{"topic:read:>", "schema:read:>"}},
		{writer, "writer", []string{"topic:write:bulk", "topic:write:live", "topic:write:dear.>", "schema:read:>"}},
		{bystander, "bystander", []string{"topic:read:>", "topic:write:calm"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "tokens.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// hostOf returns host and port of a URL.
func hostOf(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	host, _, _ := strings.Cut(rest, "/")
	return host
}

// connect connects to the broker until the end of the test.
func (s *serveProcess) connect() *nats.Conn {
	s.Helper()
	nc, err := nats.Connect(s.urls[0])
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(nc.Close)
	return nc
}

// open opens a bus at the broker until the end of the test.
func (s *serveProcess) open() *adapter.Bus {
	s.Helper()
	bus, err := adapter.Open(s.Context(), s.connect(), adapter.Config{})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := bus.Close(ctx); err != nil {
			s.Errorf("end of the bus: %v", err)
		}
	})
	return bus
}

// request is a request to the gateway.
type request struct {
	as, method, path, body, contentType string
}

// do makes a request and returns the status and the headers of the answer.
func do(ctx context.Context, c *http.Client, address string, r request) (status int, header http.Header, err error) {
	req, err := http.NewRequestWithContext(ctx, r.method, "http://"+address+r.path, strings.NewReader(r.body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+r.as)
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	answer, err := c.Do(req)
	if err != nil {
		return 0, nil, err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, answer.Header, errors.Join(err, answer.Body.Close())
}

// rss and peakRSS return the memory that the process has, and the most that it had, in bytes.
func (s *serveProcess) rss() int     { return s.memory("VmRSS:") }
func (s *serveProcess) peakRSS() int { return s.memory("VmHWM:") }

func (s *serveProcess) memory(name string) int {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.Error(err)
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				s.Error(err)
			}
			return kib << 10
		}
	}
	s.Errorf("there is no %s in %s", name, text)
	return 0
}

// cpu returns the CPU time that the process has used.
func (s *serveProcess) cpu() time.Duration {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		s.Error(err)
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the third field on, see proc(5)
	user, errUser := strconv.Atoi(fields[11])
	system, errSystem := strconv.Atoi(fields[12])
	if err := errors.Join(errUser, errSystem); err != nil {
		s.Error(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
