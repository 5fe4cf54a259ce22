// Package mongotest gives tests a MongoDB: a real one where there is one, and
// otherwise the stand-in of package mongod.
//
// [Start] looks for, in this order: the server that the environment variable
// MONGODB_URI names; the program mongod on the PATH, which is started as a
// replica set of one member in a temporary folder; the stand-in. It logs which
// one it took. A test that needs faults which only the stand-in can produce takes
// it with [StartStandIn], or starts package mongod itself. [FailCommand] makes commands
// of any of them fail.
package mongotest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// EnvURI is the environment variable with the URI of a server to test against. It
// has to be a replica set that the tests may write to.
const EnvURI = "MONGODB_URI"

// startTimeout is how long a real mongod may take to become the primary.
const startTimeout = 60 * time.Second

// codeAlreadyInitialized is what a replica set answers that needs no initiating.
const codeAlreadyInitialized = 23

// A Server is a MongoDB for one test, with a database of its own. It ends with
// the test.
type Server struct {
	uri     string
	db      string
	kind    string
	standIn *mongod.Server
}

// Start finds or starts a server. The test fails if that does not work.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{db: databaseName(t.Name())}
	var err error
	if uri := os.Getenv(EnvURI); uri != "" {
		s.uri, s.kind = uri, "the server of "+EnvURI
		reply, err := mongod.Run(t.Context(), uri, "admin", `{"hello": 1}`)
		switch {
		case err != nil: // it may need what Run does not know; the driver of the test will tell
			t.Logf("mongotest: %v", err)
		case !strings.Contains(reply, `"setName"`) && !strings.Contains(reply, `"isdbgrid"`):
			t.Fatalf("mongotest: the server of %s is a standalone: start it with --replSet and initiate the set", EnvURI)
		}
	} else if path, lookErr := exec.LookPath("mongod"); lookErr == nil {
		s.kind = path
		s.uri, err = spawn(t, path)
		if err != nil {
			t.Fatalf("mongotest: start %s: %v", path, err)
		}
	} else {
		return StartStandIn(t)
	}
	s.ready(t)
	return s
}

// StartStandIn starts the stand-in, whatever else there is, for tests of faults that no real
// server can be told to produce. The test fails if that does not work.
func StartStandIn(t testing.TB) *Server {
	t.Helper()
	s := &Server{db: databaseName(t.Name()), kind: "the stand-in (no database)"}
	var err error
	if s.standIn, err = mongod.Start(t.Context(), mongod.Config{}); err != nil {
		t.Fatalf("mongotest: %v", err)
	}
	t.Cleanup(s.standIn.Stop)
	s.uri = s.standIn.URI()
	s.ready(t)
	return s
}

// ready says which server the test has, and has its database dropped with the test.
func (s *Server) ready(t testing.TB) {
	t.Helper()
	t.Logf("mongotest: %s, database %s", s.kind, s.db)
	t.Cleanup(func() { s.drop(t) })
}

// URI is the connection string of the server.
func (s *Server) URI() string { return s.uri }

// Database is the name of a database that is the test's own. It is dropped when
// the test ends.
func (s *Server) Database() string { return s.db }

// StandIn is the stand-in, for its faults; nil if the server is a real one.
func (s *Server) StandIn() *mongod.Server { return s.standIn }

// String says which server it is.
func (s *Server) String() string { return s.kind }

// FailCommand sets the fail point failCommand of the server at uri, which mode (such as
// {times: 3}, "alwaysOn" and "off") and data describe as MongoDB's documentation of
// fail points does. It is off when the test ends. A real server needs
// --setParameter enableTestCommands=1.
//
// It is said over a connection of its own: a client that has met an earlier fault may
// answer with that one.
func FailCommand(t testing.TB, uri string, mode any, data bson.D) {
	t.Helper()
	set := func(mode any, data bson.D) error {
		command, err := bson.MarshalExtJSON(bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: mode}, {Key: "data", Value: data}}, true, false)
		if err == nil {
			_, err = mongod.Run(context.WithoutCancel(t.Context()), uri, "admin", string(command))
		}
		return err
	}
	if err := set(mode, data); err != nil {
		t.Fatalf("mongotest: %v", err)
	}
	t.Cleanup(func() { _ = set("off", bson.D{}) }) // the server may be gone
}

// drop removes the database.
func (s *Server) drop(t testing.TB) {
	ctx := context.WithoutCancel(t.Context()) // which has ended
	if _, err := mongod.Run(ctx, s.uri, s.db, `{"dropDatabase": 1}`); err != nil {
		t.Logf("mongotest: the database %s stays: %v", s.db, err)
	}
}

// maxName is how many bytes of a test's name its database has; MongoDB allows 63
// in all.
const maxName = 40

// databaseName is a name for the database of a test.
func databaseName(test string) string {
	name := []byte(strings.ToLower(test))
	name = name[:min(len(name), maxName)]
	for i, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			name[i] = '_'
		}
	}
	return string(name) + "_" + strings.ToLower(rand.Text()[:12])
}

// spawn starts a mongod and makes it a replica set. It ends with the test.
func spawn(t testing.TB, path string) (uri string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	addr, err := freeAddr(ctx)
	if err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(addr)
	dir := t.TempDir()
	log := filepath.Join(dir, "mongod.log")
	cmd := exec.Command(path, //nolint:noctx // it lives as long as the test, not the start
		"--dbpath", dir, "--port", port, "--bind_ip", "127.0.0.1", "--replSet", "rs0",
		"--setParameter", "enableTestCommands=1", "--logpath", log)
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
	})
	if err := initiate(ctx, addr, ended); err != nil {
		tail, _ := os.ReadFile(log) // there may be none
		return "", fmt.Errorf("%w\n%s", err, tail[max(0, len(tail)-2000):])
	}
	return "mongodb://" + addr + "/?replicaSet=rs0", nil
}

func freeAddr(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// initiate waits for a mongod to answer, makes it a replica set, and waits until
// it is the primary.
func initiate(ctx context.Context, addr string, ended <-chan struct{}) error {
	uri := "mongodb://" + addr + "/"
	command := `{"replSetInitiate": {"_id": "rs0", "members": [{"_id": 0, "host": "` + addr + `"}]}}`
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	initiated := false
	var last error
	for {
		if !initiated {
			_, last = mongod.Run(ctx, uri, "admin", command)
			e, ok := errors.AsType[*mongod.CommandError](last)
			initiated = last == nil || ok && e.Code == codeAlreadyInitialized
		}
		if initiated {
			var hello struct {
				Primary bool `json:"isWritablePrimary"`
			}
			var reply string
			if reply, last = mongod.Run(ctx, uri, "admin", `{"hello": 1}`); last == nil {
				last = json.Unmarshal([]byte(reply), &hello)
			}
			if hello.Primary {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ended:
			return errors.New("it ended by itself")
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		}
	}
}
