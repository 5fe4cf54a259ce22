package mongobox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// startBus is a bus with the topic orders.
func (r *rig) startBus() *adapter.Bus {
	r.Helper()
	bus := bustest.Open(r.T, bustest.Start(r.T, embedded.Config{}), adapter.Config{Timeout: time.Minute})
	_, err := bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "orders"})
	r.ok(err)
	return bus
}

// TestWatch publishes what is added to an outbox at which nobody looks by himself.
func TestWatch(t *testing.T) {
	r := newRig(t)
	bus := r.startBus()
	d, err := jetbus.NewDrainer(r.box, bus, jetbus.DrainOptions{PollMin: time.Hour, PollMax: time.Hour})
	r.ok(err)
	r.run(d.Run)
	stop := r.run(func(ctx context.Context) error { return r.box.Watch(ctx, d.Kick) })
	for i, id := range []string{"1", "2", "3"} {
		r.ok(r.box.Add(r.Context(), order(id, "a")))
		r.until("it is published", func() bool { return d.Stats().Published == uint64(i+1) })
	}
	stop()
	r.wantErr("nothing to call", r.box.Watch(r.Context(), nil), jetbus.ErrInvalidOption)
}

// TestWatchSurvives what ends a change stream.
func TestWatchSurvives(t *testing.T) {
	r, server := newFaultyRig(t)
	var kicks atomic.Int64
	r.run(func(ctx context.Context) error { return r.box.Watch(ctx, func() { kicks.Add(1) }) })
	r.until("it watches", func() bool { return kicks.Load() >= 1 })
	for name, fault := range map[string]func(){
		"cut connections": func() { server.CutConnections() },
		"killed cursors":  func() { server.KillCursors() },
		"step-down": func() {
			server.StepDown()
			server.StepUp()
		},
		"lost history": func() {
			remove := server.OnCommand(func(c mongod.Command) error {
				if c.Name == "getMore" {
					return &mongod.CommandError{Code: 286, Name: "ChangeStreamHistoryLost", Message: "gone"}
				}
				return nil
			})
			defer remove()
			before := kicks.Load()
			r.until("the stream is opened again", func() bool { return kicks.Load() > before })
		},
		"drop": func() {
			before := kicks.Load()
			r.ok(r.coll.Drop(r.Context()))
			r.until("the stream is opened again", func() bool { return kicks.Load() > before })
			r.open(mongobox.Options{})
		},
	} {
		before := kicks.Load()
		fault()
		r.until("it is told of rows behind "+name, func() bool {
			r.ok(r.box.Add(r.Context(), jetbus.Event{Topic: "orders"}))
			return kicks.Load() > before
		})
		before = kicks.Load()
		r.ok(r.box.Add(r.Context(), jetbus.Event{Topic: "orders"}))
		r.until("and of more", func() bool { return kicks.Load() > before })
	}
}

// TestWatchRefuses ends for what does not pass.
func TestWatchRefuses(t *testing.T) {
	r, server := newFaultyRig(t)
	for _, c := range []struct {
		code int32
		want error
	}{{13, mongobox.ErrPrivilege}, {40573, jetbus.ErrUnsupported}} {
		remove := server.OnCommand(func(cmd mongod.Command) error {
			if cmd.Name == "aggregate" {
				return &mongod.CommandError{Code: c.code, Message: "no"}
			}
			return nil
		})
		r.wantErr("refused", r.box.Watch(r.Context(), func() {}), c.want)
		remove()
	}
	ctx, cancel := context.WithCancel(r.Context())
	cancel()
	if err := r.box.Watch(ctx, func() { r.Error(errors.New("kicked")) }); err != nil {
		r.Errorf("the end of the context is %v", err)
	}
}

// TestWatchTimeout watches with a client whose Timeout is shorter than the server's wait.
func TestWatchTimeout(t *testing.T) {
	r, server := newFaultyRig(t)
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI()).SetTimeout(400 * time.Millisecond))
	r.ok(err)
	defer func() { _ = client.Disconnect(context.Background()) }()
	// A context with a deadline goes before the client's Timeout, in which a busy machine may not even dial.
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	b, err := mongobox.Open(ctx, client.Database("shop").Collection("outbox"), mongobox.Options{})
	r.ok(err)
	var kicks, opened atomic.Int64
	remove := server.OnCommand(func(c mongod.Command) error {
		if c.Name == "getMore" && c.Collection == "outbox" {
			opened.Add(1)
		}
		return nil
	})
	defer remove()
	stop := r.run(func(ctx context.Context) error { return b.Watch(ctx, func() { kicks.Add(1) }) })
	r.until("it waits for shorter", func() bool { return opened.Load() > 10 })
	before := kicks.Load()
	r.ok(r.box.Add(r.Context(), order("1", "a")))
	r.until("it is told", func() bool { return kicks.Load() > before })
	stop()
}
