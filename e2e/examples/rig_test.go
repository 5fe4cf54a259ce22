//go:build unix

package examples

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
)

// limit bounds every run of a program. Only a broken program reaches it.
const limit = 2 * time.Minute

// programs is the folder of the programs, which are built once.
var programs string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "jetbus-examples-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	build := exec.CommandContext(context.Background(), "go", "build", "-race", "-o", dir, "./examples/...")
	build.Dir = filepath.Join("..", "..") // the root module
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// command returns a program that is killed if the test ends before it, or after limit. It
// knows only the servers in args.
func command(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(programs, program), args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "NATS_URL=") && !strings.HasPrefix(v, mongotest.EnvURI+"=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd
}

// run runs a program that must succeed, and returns its output.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := command(t, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("%s ended with %v: %s\n%s", program, err, &stderr, &stdout)
	}
	t.Logf("%s:\n%s", program, &stdout)
	return stdout.String()
}

// exitCode returns the exit code of a program that has ended.
func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// servers are a broker and a database of a MongoDB for one test.
type servers struct {
	*testing.T

	nc   *nats.Conn
	bus  *adapter.Bus
	db   *mongo.Database
	args []string // flags that name them
}

func newServers(t *testing.T) *servers {
	t.Helper()
	ctx := t.Context()
	b, err := embedded.Start(ctx, embedded.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, b.Stop) })
	m := mongotest.Start(t)
	s := &servers{T: t, args: []string{"-server", b.URL(), "-mongo", m.URI(), "-database", m.Database()}}
	s.nc, err = broker.Dial(b.URL())
	s.ok(err)
	t.Cleanup(s.nc.Close)
	s.bus, err = adapter.Open(ctx, s.nc, adapter.Config{})
	s.ok(err)
	t.Cleanup(func() { stop(t, s.bus.Close) })
	client, err := mongo.Connect(options.Client().ApplyURI(m.URI()))
	s.ok(err)
	t.Cleanup(func() { stop(t, client.Disconnect) })
	s.db = client.Database(m.Database())
	return s
}

func stop(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := f(ctx); err != nil {
		t.Error(err)
	}
}

func (s *servers) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// events returns the events of a topic.
func (s *servers) events(topic string) (events []jetbus.Event) {
	s.Helper()
	for e, err := range s.bus.Scan(s.Context(), topic, jetbus.ScanQuery{}) {
		s.ok(err)
		events = append(events, e)
	}
	return events
}

// documents returns the documents of a collection by their keys, as extended JSON.
func (s *servers) documents(collection string) map[string]string {
	s.Helper()
	cursor, err := s.db.Collection(collection).Find(s.Context(), bson.D{})
	s.ok(err)
	var all []bson.Raw
	s.ok(cursor.All(s.Context(), &all))
	byKey := map[string]string{}
	for _, doc := range all {
		text, err := bson.MarshalExtJSON(doc, false, false)
		s.ok(err)
		byKey[doc.Lookup("_id").StringValue()] = string(text)
	}
	return byKey
}

// settled checks that a group has settled every event of a topic.
func (s *servers) settled(topic, group string) {
	s.Helper()
	groups, err := s.bus.Groups(s.Context(), topic)
	s.ok(err)
	for _, g := range groups {
		if g.Group == group {
			if g.Pending > 0 || g.Held > 0 {
				s.Errorf("%s/%s has %d pending and %d held events", topic, group, g.Pending, g.Held)
			}
			return
		}
	}
	s.Errorf("%s has no group %s, but %+v", topic, group, groups)
}

// deadLetters returns the dead letters of a topic.
func (s *servers) deadLetters(topic string) (all []jetbus.DeadLetter) {
	s.Helper()
	for d, err := range jetbus.DeadLetters(s.Context(), s.bus, jetbus.DeadLetterQuery{Topic: topic}) {
		if errors.Is(err, jetbus.ErrNoDeadLetters) {
			return nil
		}
		s.ok(err)
		all = append(all, d)
	}
	return all
}

// disturb starts a program, calls f when it has published its events, and returns what it
// reports when it ends with exit code 1.
func (s *servers) disturb(program string, f func(*os.Process)) (stderr string) {
	s.Helper()
	cmd := command(s.T, program, s.args...)
	var reported bytes.Buffer
	cmd.Stderr = &reported
	stdout, err := cmd.StdoutPipe()
	s.ok(err)
	s.ok(cmd.Start())
	var printed []string
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if printed = append(printed, lines.Text()); strings.Contains(lines.Text(), "published") {
			f(cmd.Process)
		}
	}
	if err := cmd.Wait(); exitCode(err) != 1 {
		s.Errorf("%s ended with %v: %s\n%s", program, err, &reported, strings.Join(printed, "\n"))
	}
	return reported.String()
}

// interrupt interrupts a program when it has published its events.
func (s *servers) interrupt(program string) {
	s.Helper()
	stderr := s.disturb(program, func(p *os.Process) { s.ok(p.Signal(os.Interrupt)) })
	if want := program + ": interrupt signal received\n"; stderr != want {
		s.Errorf("stderr is %q, want %q", stderr, want)
	}
}

// pause makes a group that gets no events, so that a program that waits for it does not end.
func (s *servers) pause(c jetbus.TopicConfig, group string) {
	s.Helper()
	_, err := s.bus.EnsureTopic(s.Context(), c)
	s.ok(err)
	_, err = s.bus.EnsureGroup(s.Context(), c.Name, jetbus.GroupConfig{Group: group, From: jetbus.Earliest()})
	s.ok(err)
	s.ok(s.bus.PauseGroup(s.Context(), c.Name, group, time.Now().Add(time.Hour)))
}
