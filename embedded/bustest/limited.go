package bustest

import (
	"context"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// limitedBehaviors are about brokers that let a client do little, or nothing.
var limitedBehaviors = []Behavior{
	{Name: "what the broker's permissions forbid is an error that says so", Cases: []int{71}, Needs: NeedOpen | NeedTopics, play: permissions},
	{Name: "a broker without JetStream is an error that says so", Cases: []int{62}, Needs: NeedOpen, play: noJetStream},
}

// server starts a server of its own, without listeners, until the end of the test.
func (r *run) server(o *server.Options) *server.Server {
	r.Helper()
	o.DontListen, o.NoSigs, o.NoLog, o.StoreDir = true, true, true, r.TempDir()
	o.JetStreamMaxStore = 1 << 50 // not what is free on this disk
	s, err := server.NewServer(o)
	r.must(err)
	s.Start()
	r.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(awhile()) {
		r.Fatal("the server did not start")
	}
	return s
}

// openAs opens an instance as one of the server's users.
func (r *run) openAs(s *server.Server, user string) (ClosingBus, error) {
	r.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserInfo(user, user), quiet)
	r.must(err)
	r.Cleanup(nc.Close)
	bus, err := r.Open(r.ctx, nc)
	if err == nil {
		r.Cleanup(func() { r.wantNil(bus.Close(context.Background())) })
	}
	return bus, err
}

func permissions(r *run) {
	may := func(subjects ...string) *server.Permissions {
		return &server.Permissions{Publish: &server.SubjectPermission{Allow: append(subjects, "none")}}
	}
	s := r.server(&server.Options{JetStream: true, Users: []*server.User{
		{Username: "all", Password: "all"},
		{Username: "look", Password: "look", Permissions: may("$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.NAMES")},
		{Username: "nothing", Password: "nothing", Permissions: may()},
	}})
	all, err := r.openAs(s, "all")
	r.must(err)
	info, err := all.(jetbus.Topics).EnsureTopic(r.ctx, jetbus.TopicConfig{Name: "t"})
	r.must(err)
	_, err = r.openAs(s, "nothing")
	wantErr(r.T, "open", err, jetbus.ErrDenied)
	look, err := r.openAs(s, "look")
	r.must(err)
	for what, call := range map[string]func() error{
		"publish": func() error { _, err := look.Publish(r.ctx, jetbus.Event{Topic: "t"}); return err },
		"subscribe": func() error {
			_, err := look.Subscribe(r.ctx, "t", "g", r.newRecord().handle, jetbus.SubscribeOptions{})
			return err
		},
		"declare": func() error {
			_, err := look.(jetbus.Topics).EnsureTopic(r.ctx, jetbus.TopicConfig{Name: "u"})
			return err
		},
	} {
		began := time.Now()
		wantErr(r.T, what, call(), jetbus.ErrDenied)
		if d := time.Since(began); d > 2*time.Second {
			r.Errorf("%s took %v to be denied", what, d)
		}
	}
	after, err := all.(jetbus.Topics).TopicInfo(r.ctx, "t")
	r.must(err)
	if after.Events != info.Events || after.Groups != 0 {
		r.Errorf("what was denied was done: %+v", after)
	}
}

func noJetStream(r *run) {
	s := r.server(&server.Options{Users: []*server.User{{Username: "all", Password: "all"}}})
	began := time.Now()
	_, err := r.openAs(s, "all")
	wantErr(r.T, "open", err, jetbus.ErrUnavailable)
	r.waited(began, time.Now(), 0)
}
