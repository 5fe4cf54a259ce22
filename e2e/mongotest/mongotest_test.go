// Package mongotest_test tests where package mongotest finds a MongoDB: it runs itself as
// the program mongod.
package mongotest_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
)

// TestMain makes the program of the tests a mongod when it is called so.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "mongod" {
		os.Exit(m.Run())
	}
	if err := program(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// program behaves like the program mongod: with the stand-in.
func program(args []string) error {
	flags := flag.NewFlagSet("mongod", flag.ContinueOnError)
	host, port := flags.String("bind_ip", "", ""), flags.String("port", "", "")
	set, log := flags.String("replSet", "", ""), flags.String("logpath", "", "")
	flags.String("dbpath", "", "")
	flags.String("setParameter", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if os.Getenv("MONGOD_FAILS") != "" {
		return os.WriteFile(*log, []byte("no room on the disk"), 0o600)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	srv, err := mongod.Start(ctx, mongod.Config{Listen: net.JoinHostPort(*host, *port), ReplicaSet: *set})
	if err != nil {
		return err
	}
	defer srv.Stop()
	<-ctx.Done()
	return nil
}

// noMongod hides what the machine has.
func noMongod(t *testing.T) {
	t.Helper()
	t.Setenv(mongotest.EnvURI, "")
	t.Setenv("PATH", t.TempDir())
}

// mongodOnPath has a mongod on the PATH.
func mongodOnPath(t *testing.T) {
	t.Helper()
	noMongod(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(os.Getenv("PATH"), "mongod")); err != nil {
		t.Fatal(err)
	}
}

// use writes to the database of the test.
func use(t *testing.T, s *mongotest.Server) {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(s.URI()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Disconnect(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := client.Database(s.Database()).Collection("c").InsertOne(t.Context(), bson.D{}); err != nil {
		t.Fatal(err)
	}
}

func TestStandIn(t *testing.T) {
	noMongod(t)
	a, b := mongotest.Start(t), mongotest.Start(t)
	use(t, a)
	if a.StandIn() == nil || !strings.Contains(a.String(), "no database") {
		t.Errorf("started %s", a)
	}
	if a.Database() == b.Database() || !strings.HasPrefix(a.Database(), "teststandin_") {
		t.Errorf("databases %s and %s", a.Database(), b.Database())
	}
}

func TestURI(t *testing.T) {
	mongodOnPath(t)
	srv, err := mongod.Start(t.Context(), mongod.Config{Username: "u", Password: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop()
	t.Setenv(mongotest.EnvURI, srv.URI())
	t.Run("one", func(t *testing.T) {
		s := mongotest.Start(t)
		use(t, s)
		if s.URI() != srv.URI() || s.StandIn() != nil {
			t.Errorf("took %s at %s", s, s.URI())
		}
		if dbs := srv.Databases(); len(dbs) != 1 || dbs[0] != s.Database() {
			t.Errorf("databases %v, want %s", dbs, s.Database())
		}
	})
	if dbs := srv.Databases(); len(dbs) != 0 {
		t.Errorf("databases %v are left", dbs)
	}
}

func TestPath(t *testing.T) {
	mongodOnPath(t)
	var addr string
	t.Run("one", func(t *testing.T) {
		s := mongotest.Start(t)
		use(t, s)
		addr = strings.TrimSuffix(strings.TrimPrefix(s.URI(), "mongodb://"), "/?replicaSet=rs0")
		if s.StandIn() != nil || filepath.Base(s.String()) != "mongod" {
			t.Errorf("took %s", s)
		}
	})
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("the program outlives its test")
	}
}

// A recorder is a test that fails.
type recorder struct {
	testing.TB
	failed string
}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	panic(r)
}

func TestProgramThatEnds(t *testing.T) {
	mongodOnPath(t)
	t.Setenv("MONGOD_FAILS", "1")
	wantFailure(t, "no room on the disk")
}

func TestStandalone(t *testing.T) {
	srv, err := mongod.Start(t.Context(), mongod.Config{Standalone: true})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop()
	t.Setenv(mongotest.EnvURI, srv.URI())
	wantFailure(t, "--replSet")
}

func wantFailure(t *testing.T, part string) {
	t.Helper()
	r := &recorder{TB: t}
	func() {
		defer func() {
			if p := recover(); p != any(r) {
				t.Errorf("recovered %v", p)
			}
		}()
		mongotest.Start(r)
	}()
	if !strings.Contains(r.failed, part) {
		t.Errorf("failed with %q, want %q", r.failed, part)
	}
}
