package bustest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// endBehaviors are about instances that are opened and closed, and what goes
// away under them.
var endBehaviors = []Behavior{
	{Name: "closing a bus stops its subscriptions and leaves the connection open", Cases: []int{55, 58}, Needs: NeedOpen, play: closeBus},
	{Name: "closing the connection under a bus ends its subscriptions with an error", Cases: []int{58}, Needs: NeedOpen, play: connectionClosed},
	{Name: "a group deleted under its members ends them with the reason", Cases: []int{59}, play: groupDeleted},
	{Name: "a topic deleted under its members ends them with the reason, and publishing fails", Cases: []int{59}, play: topicDeleted},
	{Name: "nothing of an instance runs after Close", Cases: []int{61}, Needs: NeedOpen, play: nothingRuns},
	{Name: "an instance is not opened where no broker answers, and says so", Cases: []int{62}, Needs: NeedOpen | NeedRestart, play: brokerNotReady},
}

// process opens an instance with a connection of its own, as a process has it.
func (r *run) process() (ClosingBus, *nats.Conn) {
	r.Helper()
	nc, err := r.Broker.Connect()
	r.must(err)
	r.Cleanup(nc.Close)
	bus, err := r.Open(r.ctx, nc)
	r.must(err)
	r.Cleanup(func() { _ = bus.Close(context.Background()) }) // tests that close it themselves check the error
	return bus, nc
}

func closeBus(r *run) {
	topic := r.topic("t")
	bus, nc := r.process()
	g := r.newGate()
	s, err := bus.Subscribe(r.ctx, topic, "g", g.handle, jetbus.SubscribeOptions{})
	r.must(err)
	e := r.publish(topic, "k")[0]
	receive(r.T, "the handler's start", g.entered)
	closed := make(chan error, 3)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { closed <- bus.Close(r.ctx) })
	}
	r.pause(100 * time.Millisecond)
	g.leave <- nil
	for range 3 {
		r.must(receive(r.T, "the end of Close", closed))
	}
	wg.Wait()
	<-s.Done()
	r.settled(topic, "g", e.Seq)
	_, err = bus.Publish(r.ctx, jetbus.Event{Topic: topic})
	wantErr(r.T, "publish on a closed bus", err, jetbus.ErrClosed)
	_, err = bus.Subscribe(r.ctx, topic, "g", g.handle, jetbus.SubscribeOptions{})
	wantErr(r.T, "subscribe on a closed bus", err, jetbus.ErrClosed)
	if !nc.IsConnected() || nc.FlushTimeout(awhile()) != nil {
		r.Error("Close did not leave the connection as it was")
	}
}

func connectionClosed(r *run) {
	topic := r.topic("t")
	bus, nc := r.process()
	s, err := bus.Subscribe(r.ctx, topic, "g", r.newRecord().handle, jetbus.SubscribeOptions{})
	r.must(err)
	nc.Close()
	receive(r.T, "Done", s.Done())
	wantErr(r.T, "the subscription's error", s.Err(), jetbus.ErrClosed)
	_, err = bus.Publish(r.ctx, jetbus.Event{Topic: topic})
	wantErr(r.T, "publish", err, jetbus.ErrClosed)
	r.stop(s)
	r.must(bus.Close(r.ctx))
}

func groupDeleted(r *run) {
	topic := r.topic("t")
	g := r.newGate()
	s := r.subscribe(r.A, topic, "g", g.handle, jetbus.SubscribeOptions{})
	other := r.newRecord()
	r.subscribe(r.A, topic, "other", other.handle, jetbus.SubscribeOptions{})
	r.publish(topic, "k")
	receive(r.T, "the handler's start", g.entered)
	r.must(r.Admin.DeleteGroup(r.ctx, topic, "g"))
	g.leave <- nil
	receive(r.T, "Done", s.Done())
	wantErr(r.T, "the subscription's error", s.Err(), jetbus.ErrNoGroup)
	_, err := r.A.Cursor(r.ctx, topic, "g")
	wantErr(r.T, "cursor", err, jetbus.ErrNoGroup)
	e := r.publish(topic, "more")[0]
	r.settled(topic, "other", e.Seq)
}

func topicDeleted(r *run) {
	topic := r.topic("t")
	s := r.subscribe(r.A, topic, "g", r.newRecord().handle, jetbus.SubscribeOptions{})
	r.publish(topic, "k")
	r.must(r.Admin.DeleteTopic(r.ctx, topic))
	receive(r.T, "Done", s.Done())
	r.again(0) // what the member got until then was of the topic that is gone
	if err := s.Err(); !errors.Is(err, jetbus.ErrNoTopic) && !errors.Is(err, jetbus.ErrNoGroup) {
		r.Errorf("the subscription's error: %v", err)
	}
	_, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic})
	wantErr(r.T, "publish", err, jetbus.ErrNoTopic)
	_, err = r.A.Subscribe(r.ctx, topic, "g", r.newRecord().handle, jetbus.SubscribeOptions{})
	wantErr(r.T, "subscribe", err, jetbus.ErrNoTopic)
	again := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, again, "g", got.handle, jetbus.SubscribeOptions{})
	e := r.publish(again, "new")[0]
	r.settled(again, "g", e.Seq)
	got.exactly(r.T, "new")
}

func nothingRuns(r *run) {
	topic := r.topic("t")
	before := ours()
	bus, nc := r.process()
	got := r.newRecord()
	for i := range 3 {
		_, err := bus.Subscribe(r.ctx, topic, fmt.Sprint("g", i), got.then(failing(1)), jetbus.SubscribeOptions{Backoff: jetbus.Backoff{Max: time.Millisecond}})
		r.must(err)
	}
	r.publish(topic, keys(10)...)
	got.wait(r.T, 60)
	r.must(bus.Close(r.ctx))
	// Goroutines of the connection end a moment after it is closed.
	nc.Close()
	r.eventually("the goroutines of a closed instance end", func() error {
		if now := ours(); now > before {
			return fmt.Errorf("%d goroutines more than before", now-before)
		}
		return nil
	})
}

// ours counts the goroutines that run code of JetBus.
func ours() int {
	stacks := make([]byte, 8<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	n := 0
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, "seed-63e9a637/jetbus/") && !strings.Contains(stack, "/embedded") {
			n++
		}
	}
	return n
}

func brokerNotReady(r *run) {
	r.must(r.Broker.Kill(r.ctx))
	nc, err := r.Broker.Connect(nats.RetryOnFailedConnect(true))
	if err == nil {
		defer nc.Close()
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		_, err = r.Open(ctx, nc)
		wantErr(r.T, "open without a broker", err, jetbus.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	_, err = r.Admin.ListTopics(ctx)
	wantErr(r.T, "a call without a broker", err, jetbus.ErrUnavailable)
	r.must(r.Broker.Restart(r.ctx))
	topic := r.topic("t")
	bus, _ := r.process()
	_, err = bus.Publish(r.ctx, jetbus.Event{Topic: topic})
	r.must(err)
}
