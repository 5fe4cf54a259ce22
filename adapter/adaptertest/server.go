package adaptertest

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// StartServer starts a server that embedded does not offer: without JetStream,
// or with users and accounts.
func StartServer(t *testing.T, o *server.Options) *server.Server {
	t.Helper()
	o.DontListen, o.NoSigs, o.NoLog = true, true, true
	if o.JetStream {
		o.StoreDir, o.JetStreamMaxStore = t.TempDir(), 1<<50 // not what is free on this disk
	}
	s := Must(server.NewServer(o))(t)
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

// Dial connects to a server until the end of the test.
func Dial(t *testing.T, s *server.Server, o ...nats.Option) *nats.Conn {
	t.Helper()
	o = append([]nats.Option{nats.InProcessServer(s), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})}, o...)
	nc := Must(nats.Connect("", o...))(t)
	t.Cleanup(nc.Close)
	return nc
}

// DenyingServer has the user "a", who may not publish to the given subjects, and
// "root", who may.
func DenyingServer(t *testing.T, deny ...string) *server.Server {
	t.Helper()
	return StartServer(t, &server.Options{JetStream: true, Users: []*server.User{
		{Username: "root", Password: "root"},
		{Username: "a", Password: "a", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{">"}, Deny: deny}}},
	}})
}
