//go:build web

package web

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// module is the folder of the ES module.
const module = "../../gateway/web"

// suiteTime is how long the suite may take, all scenes together.
const suiteTime = 20 * time.Minute

// minNode is the first version of Node that the module is for.
const minNode = 20

// TestNode runs the suite in Node.
func TestNode(t *testing.T) {
	node := findNode(t)
	if _, err := os.Stat(filepath.Join(module, "node_modules", "ws", "package.json")); err != nil {
		t.Fatal("the package ws is missing, which gives Node a WebSocket: run npm ci in gateway/web")
	}
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), suiteTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "--test", "--test-reporter=spec", "test/node.test.js")
	cmd.Dir, cmd.Env = module, append(os.Environ(), "JETBUS_RIG="+r.control, "NODE_OPTIONS=")
	together(cmd)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("the suite failed in Node: %v", err)
	}
	if scenes := scenes(t); bytes.Count(out, []byte("✔")) != scenes {
		t.Errorf("the output does not name %d scenes that passed", scenes)
	}
}

// findNode finds a Node that is new enough.
func findNode(t *testing.T) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("node is missing: install Node %d or later (Debian: apt-get install nodejs npm)", minNode)
	}
	out, err := exec.CommandContext(t.Context(), node, "--version").Output()
	major, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(string(out)), "v"), ".")
	if n, bad := strconv.Atoi(major); err != nil || bad != nil || n < minNode {
		t.Fatalf("%s is version %q (%v): install Node %d or later", node, out, err, minNode)
	}
	return node
}

// scenes is how many scenes there are.
func scenes(t *testing.T) int {
	t.Helper()
	n := 0
	for _, name := range []string{"suite.js", "edges.js"} {
		text, err := os.ReadFile(filepath.Join(module, "test", name))
		if err != nil {
			t.Fatal(err)
		}
		n += len(regexp.MustCompile(`(?m)^  async \S.*\(t\) \{$`).FindAll(text, -1))
	}
	return n
}

// together lets a program end with its children, who else keep its output open.
func together(cmd *exec.Cmd) (kill func() error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second // for what left the group
	return cmd.Cancel
}

// TestBrowser runs the suite in headless Chromium.
func TestBrowser(t *testing.T) {
	program := findChromium(t)
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), suiteTime)
	defer cancel()
	stopped := browse(ctx, t, program, r.control+"/web/test/page.html")
	passed, done := 0, false
	for !done {
		select {
		case one := <-r.results:
			switch {
			case one.Done:
				done = true
			case one.Error != "":
				t.Errorf("%s (%d ms): %s", one.Scene, one.MS, one.Error)
			default:
				passed++
				t.Logf("%s (%d ms)", one.Scene, one.MS)
			}
		case err := <-stopped:
			t.Fatalf("Chromium ended before the suite did: %v", err)
		case <-ctx.Done():
			t.Fatalf("the suite did not end, after %d scenes", passed)
		}
	}
	if want := scenes(t); passed != want {
		t.Errorf("%d scenes of %d passed", passed, want)
	}
}

// browse opens a page. The channel gets what ended the browser; else it ends with the test.
func browse(ctx context.Context, t *testing.T, program, page string) <-chan error {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--remote-debugging-port=0", "--user-data-dir="+t.TempDir(), page)
	cmd.Stdout, cmd.Stderr = &out, &out
	kill := together(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	stopped, ended := make(chan error, 1), make(chan struct{})
	go func() {
		stopped <- cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = kill()
		<-ended
		if t.Failed() {
			t.Logf("what Chromium said:\n%s", out.Bytes())
		}
	})
	return stopped
}

// findChromium finds the browser: CHROMIUM in the environment, or one of the usual names.
func findChromium(t *testing.T) string {
	t.Helper()
	names := []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}
	if set := os.Getenv("CHROMIUM"); set != "" {
		names = []string{set}
	}
	for _, name := range names {
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}
	t.Fatalf("there is none of %s: install Chromium (Debian: apt-get install --no-install-recommends chromium), or name one in CHROMIUM", strings.Join(names, ", "))
	return ""
}
