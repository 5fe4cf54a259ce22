//go:build linux

package edge

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// Bounds of the attack with silent sockets.
const (
	silentRoom   = 1_000  // connections that the gateway has room for, fewer than by default: so the attack is shorter
	silentMakers = 8      // goroutines
	silentEach   = 500    // sockets that each of them keeps open
	silentMost   = 30_000 // in all
	silentTries  = 30     // by a client with a token during the attack
	silentRSS    = 512    // MiB of the server, at most
)

// TestSilentSocketsOverTCP opens WebSockets to jetbus serve that send nothing, as fast as it can
// and from one address, as behind a reverse proxy. A client with a token connects within 5 seconds
// each time.
func TestSilentSocketsOverTCP(t *testing.T) {
	s := startServe(t, fmt.Sprintf(`{"limits":{"connections":%d}}`, silentRoom))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var made atomic.Int64
	var makers sync.WaitGroup
	for range silentMakers {
		makers.Go(func() { makeSilent(ctx, s.address, &made) })
	}
	for made.Load() < 2*silentRoom {
		time.Sleep(10 * time.Millisecond)
	}
	var slowest time.Duration
	in := 0
	for i := range silentTries {
		began := time.Now()
		if err := authenticateWithin(ctx, s.address, 5*time.Second); err != nil {
			t.Errorf("try %d: %v", i+1, err)
			continue
		}
		in++
		slowest = max(slowest, time.Since(began))
		time.Sleep(100 * time.Millisecond)
	}
	rss := s.peakRSS()
	cancel()
	makers.Wait()
	t.Logf("%d of %d tries of a client with a token, the slowest in %v, beside %d silent sockets; RSS at most %d MiB", in, silentTries, slowest, made.Load(), rss)
	if rss > silentRSS {
		t.Errorf("the server had %d MiB, want %d at most", rss, silentRSS)
	}
}

// makeSilent opens WebSockets that send nothing. When it has silentEach of them, it closes the
// oldest one for each that it opens.
func makeSilent(ctx context.Context, address string, made *atomic.Int64) {
	var open []net.Conn
	defer func() {
		for _, nc := range open {
			_ = nc.Close()
		}
	}()
	for ctx.Err() == nil && made.Load() < silentMost {
		nc, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", address)
		if err != nil {
			continue
		}
		_ = nc.SetDeadline(time.Now().Add(5 * time.Second))
		_, err = io.WriteString(nc, "GET /ws HTTP/1.1\r\nHost: "+address+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: "+frame.Subprotocol+"\r\n\r\n")
		if err == nil {
			_, err = nc.Read(make([]byte, 512))
		}
		if open = append(open, nc); err != nil || len(open) > silentEach {
			_ = open[0].Close()
			open = open[1:]
		}
		made.Add(1)
	}
}

// authenticateWithin connects once and authenticates.
func authenticateWithin(ctx context.Context, address string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+address+"/ws", &websocket.DialOptions{ //nolint:bodyclose // an answer that became a WebSocket has no body to close
		Subprotocols: []string{frame.Subprotocol},
		HTTPClient:   &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	})
	if err != nil {
		return err
	}
	defer func() { _ = ws.CloseNow() }()
	if err := ws.Write(ctx, websocket.MessageText, []byte(`{"op":"AUTH","corr":"a","token":"`+token+`"}`)); err != nil {
		return err
	}
	for {
		_, text, err := ws.Read(ctx)
		if err != nil {
			return err
		}
		m, err := frame.ParseMessage(text)
		switch {
		case err != nil:
			return err
		case m.Op == frame.OK:
			return nil
		case m.Op != frame.Hello:
			return fmt.Errorf("%s", text)
		}
	}
}

// serveProcess is jetbus serve with a gateway, and token as its only token.
type serveProcess struct {
	*testing.T
	cmd     *exec.Cmd
	address string // of the gateway
}

// startServe builds the command and runs it with these settings of the gateway, JSON. It ends with
// the test.
func startServe(t *testing.T, settings string) *serveProcess {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "jetbus")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/jetbus")
	build.Dir = filepath.Join("..", "..") // it is of the other module
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	tokens, config := filepath.Join(dir, "tokens.json"), filepath.Join(dir, "gateway.json")
	list := `[{"token":"` + token + `","subject":"tool","scopes":["topic:read:>"]}]`
	if err := errors.Join(os.WriteFile(tokens, []byte(list), 0o600), os.WriteFile(config, []byte(settings), 0o600)); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer // to be read when the process has ended
	s := &serveProcess{T: t, cmd: exec.CommandContext(context.WithoutCancel(t.Context()), program, "serve", "--dir", filepath.Join(dir, "store"), "--listen", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--tokens", tokens, "--gateway-config", config)}
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
	i := strings.LastIndex(line, " http://")
	if err != nil || i < 0 {
		t.Fatalf("jetbus serve printed %q: %v", line, err)
	}
	s.address = strings.TrimSpace(line[i+len(" http://"):])
	return s
}

var peakLine = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`)

// peakRSS returns the most memory that the process had so far, in MiB.
func (s *serveProcess) peakRSS() int {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.Fatal(err)
	}
	found := peakLine.FindSubmatch(text)
	if found == nil {
		s.Fatalf("there is no VmHWM in %s", text)
	}
	kib, err := strconv.Atoi(string(found[1]))
	if err != nil {
		s.Fatal(err)
	}
	return kib >> 10
}
