package mongod_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/internal/leaktest"
)

func TestStop(t *testing.T) {
	defer leaktest.None(t, goleak.IgnoreCurrent())
	srv, err := mongod.Start(t.Context(), mongod.Config{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := mongo.Connect(options.Client().ApplyURI(srv.URI()))
	if err != nil {
		t.Fatal(err)
	}
	c := client.Database("d").Collection("c")
	cs, err := c.Watch(t.Context(), mongo.Pipeline{}, options.ChangeStream().SetMaxAwaitTime(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan struct{})
	remove := srv.OnCommand(func(cmd mongod.Command) error {
		if cmd.Name == "getMore" {
			close(waiting)
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		if cs.Next(ctx) {
			t.Error("an event")
		}
	})
	<-waiting
	remove()
	work.Go(srv.Stop)
	srv.Stop()
	srv.Stop()
	cancel()
	work.Wait()
	if srv.CutConnections() != 0 || srv.KillCursors() != 0 || srv.Expire() != 0 || srv.Databases() != nil {
		t.Error("a stopped server has something left")
	}
	srv.StepDown()
	srv.TruncateOplog()
	if err := client.Disconnect(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		cfg  mongod.Config
		want string // part of the error
	}{
		{mongod.Config{Version: "3.6.0"}, "version"},
		{mongod.Config{Version: "7"}, "version"},
		{mongod.Config{Listen: "0.0.0.0:0"}, "not on loopback"},
		{mongod.Config{Listen: "nowhere"}, "listen"},
		{mongod.Config{Username: "u"}, "Password"},
		{mongod.Config{MaxCursors: -1}, "MaxCursors"},
		{mongod.Config{TTLInterval: -1}, "TTLInterval"},
	} {
		_, err := mongod.Start(t.Context(), tt.cfg)
		if !errors.Is(err, mongod.ErrConfig) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want one about %s", tt.cfg, err, tt.want)
		}
	}
	srv := start(t, mongod.Config{})
	if _, err := mongod.Start(t.Context(), mongod.Config{Listen: srv.Addr()}); err == nil || errors.Is(err, mongod.ErrConfig) {
		t.Errorf("an address that is taken: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := mongod.Start(ctx, mongod.Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled start: %v", err)
	}
}

func TestAuth(t *testing.T) {
	srv := start(t, mongod.Config{Username: "us,er=", Password: "p:w/d"})
	ping := func(uri string, creds *options.Credential) error {
		o := options.Client().ApplyURI(uri).SetServerSelectionTimeout(2 * time.Minute)
		if creds != nil {
			o.SetAuth(*creds)
		}
		client, err := mongo.Connect(o)
		if err != nil {
			return err
		}
		defer func() {
			if err := client.Disconnect(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		_, err = client.Database("d").Collection("c").InsertOne(t.Context(), bson.D{})
		return err
	}
	bare := "mongodb://" + srv.Addr() + "/?replicaSet=rs0"
	for _, tt := range []struct {
		name  string
		uri   string
		creds *options.Credential
		code  int
	}{
		{"of the URI", srv.URI(), nil, 0},
		{"none", bare, nil, 13},
		{"wrong password", bare, &options.Credential{Username: "us,er=", Password: "x"}, 18},
		{"wrong user", bare, &options.Credential{Username: "x", Password: "p:w/d"}, 18},
		{"another mechanism", bare, &options.Credential{Username: "us,er=", Password: "p:w/d", AuthMechanism: "SCRAM-SHA-1"}, 334},
	} {
		err := ping(tt.uri, tt.creds)
		if tt.code == 0 && err != nil || tt.code != 0 && err == nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := code(err); got != 0 && got != tt.code {
			t.Errorf("%s: code %d, want %d", tt.name, got, tt.code)
		}
	}
}

func TestBounds(t *testing.T) {
	r := newRigWith(t, mongod.Config{MaxCursors: 2, MaxConnections: 5, CursorTimeout: 10 * time.Second})
	for i := range 10 {
		r.insert(bson.D{{Key: "_id", Value: i}})
	}
	open := func() (*mongo.Cursor, error) {
		return r.c.Find(r.ctx, bson.D{}, options.Find().SetBatchSize(2))
	}
	first, err := open()
	r.must(err)
	_, err = open()
	r.must(err)
	// The third has no room until the others are given up as idle.
	refused := false
	for range time.Tick(20 * time.Millisecond) {
		_, err := open() // within the time of the first two, for which there is enough
		if err == nil {
			break
		}
		r.wantCode(err, 146)
		refused = true
	}
	if !refused {
		t.Error("more cursors than the limit")
	}
	for first.Next(r.ctx) {
	}
	r.wantCode(first.Err(), 43)
	var conns []net.Conn
	for range 10 {
		c, err := net.Dial("tcp", r.srv.Addr())
		r.must(err)
		defer c.Close()
		conns = append(conns, c)
	}
	r.must(conns[9].SetReadDeadline(time.Now().Add(2 * time.Minute)))
	if _, err := conns[9].Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("a connection over the limit: %v", err)
	}
}

// TestGarbage sends what is no message: the connection is closed and the server
// goes on.
func TestGarbage(t *testing.T) {
	r := newRig(t)
	for _, b := range [][]byte{
		[]byte("GET / HTTP/1.1\r\n\r\n________"),
		append([]byte{16, 0, 0, 0}, make([]byte, 12)...),
		append([]byte{21, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xDD, 7, 0, 0}, make([]byte, 5)...),
		append([]byte{0, 0x6C, 0xDC, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0xDD, 7, 0, 0}, 1),
	} {
		c, err := net.Dial("tcp", r.srv.Addr())
		r.must(err)
		_, err = c.Write(b)
		r.must(err)
		r.must(c.(*net.TCPConn).CloseWrite())
		r.must(c.SetReadDeadline(time.Now().Add(10 * time.Second)))
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%q is answered", b)
		}
		c.Close()
	}
	r.must(r.client.Ping(r.ctx, nil))
}

func TestLogSaysWhatItIs(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	srv := start(t, mongod.Config{Username: "u", Password: "secret", Log: slog.New(slog.NewTextHandler(writer(func(b []byte) {
		mu.Lock()
		defer mu.Unlock()
		out.Write(b)
	}), nil))})
	srv.Stop()
	mu.Lock()
	defer mu.Unlock()
	if s := out.String(); !strings.Contains(s, "no database") || strings.Contains(s, "secret") {
		t.Errorf("log: %s", s)
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}
