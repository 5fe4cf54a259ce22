package brokers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/internal/leaktest"
)

// childDir tells this test binary to run as a process that publishes to a
// broker in the folder until it is killed.
const childDir = "JETBUS_EMBEDDED_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		fmt.Fprintln(os.Stderr, child(dir))
		os.Exit(1)
	}
	leaktest.Main(m)
}

// child prints the id of each message that was acknowledged.
func child(dir string) error {
	ctx := context.Background()
	b, err := embedded.Start(ctx, embedded.Config{Dir: dir})
	if err != nil {
		return err
	}
	nc, err := b.Connect()
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		id := fmt.Sprint("child-", i)
		if _, err := js.Publish(ctx, "s.child", []byte(id)); err != nil {
			return err
		}
		fmt.Println(id)
	}
}

// TestDeathOfTheProcess is what Kill simulates, and shows that it frees the folder.
func TestDeathOfTheProcess(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var acked []string
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		acked = append(acked, line[:len(line)-1])
		if len(acked) == 100 {
			if _, err := embedded.Start(t.Context(), embedded.Config{Dir: dir}); !errors.Is(err, embedded.ErrInUse) {
				t.Errorf("Start beside another process: %v, want ErrInUse", err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
	if len(acked) < 100 {
		t.Fatalf("only %d acknowledged: the test shows nothing", len(acked))
	}
	have := stored(t, connect(t, bustest.Start(t, embedded.Config{Dir: dir})))
	for _, id := range acked {
		if !have[id] {
			t.Fatalf("%s was acknowledged and is lost", id)
		}
	}
}

// leakEnv makes TestLeak leak a goroutine, which ends its process.
const leakEnv = "JETBUS_BUSTEST_LEAK"

func TestLeak(t *testing.T) {
	if os.Getenv(leakEnv) != "" {
		bustest.Run(t, func(*testing.T) { go func() { select {} }() })
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLeak$")
	cmd.Env = append(os.Environ(), leakEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "blocked goroutines remain") {
		t.Errorf("a leaked goroutine goes unnoticed: %v\n%s", err, out)
	}
}
