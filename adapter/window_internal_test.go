package adapter

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// A member of many topics that is done with an event asks for more of its topic, and looks
// at the others only where they starve.
func TestAsksForOneTopic(t *testing.T) {
	_, nc, _ := directStream(t)
	bus := openBus(t, nc, Config{AutoCreate: true})
	var topics []string
	for i := range 6 {
		topics = append(topics, fmt.Sprint("t", i))
	}
	const at = 2 // of the topics, the one that brings events
	for what, c := range map[string]struct {
		manual  bool
		starved []int // pullers
		settle  func(d *jetbus.Delivery) error
		want    []int // pullers that ask
	}{
		"handled":          {want: []int{at}},
		"handled, starved": {starved: []int{1, 9}, want: []int{1, at, 9}},
		"failed":           {settle: func(*jetbus.Delivery) error { return jetbus.RetryIn(10*time.Second, nil) }, want: []int{at}},
		"by hand":          {manual: true, settle: func(d *jetbus.Delivery) error { return d.Ack(t.Context()) }, want: []int{at}},
		"by hand, starved": {manual: true, starved: []int{0}, settle: func(d *jetbus.Delivery) error { return d.Ack(t.Context()) }, want: []int{0, at}},
	} {
		t.Run(what, func(t *testing.T) {
			got, settle := make(chan *jetbus.Delivery), make(chan struct{})
			o := jetbus.SubscribeOptions{Topics: topics[1:], ManualAck: c.manual}
			joined, err := bus.Subscribe(t.Context(), topics[0], jetbus.NewID(), func(ctx context.Context, d *jetbus.Delivery) error {
				got <- d
				<-settle
				if c.settle == nil {
					return nil
				}
				return c.settle(d)
			}, o)
			if err != nil {
				t.Fatal(err)
			}
			s := joined.(*subscription)
			if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: topics[at], Payload: []byte("1")}); err != nil {
				t.Fatal(err)
			}
			<-got
			s.mu.Lock()
			for i, p := range s.pullers { // nobody has asked, and nobody will but for what ends
				p.pulls.reset()
				p.wake.Stop()
				if slices.Contains(c.starved, i) {
					p.starved, s.starved = true, append(s.starved, p)
				}
			}
			s.mu.Unlock()
			close(settle)
			s.work.Wait() // the worker ends when nothing is left to do
			var asked []int
			s.mu.Lock()
			for i, p := range s.pullers {
				if p.pulls.asked > 0 {
					asked = append(asked, i)
				}
			}
			s.mu.Unlock()
			if !slices.Equal(asked, c.want) {
				t.Errorf("of %d pullers %v ask, want %v", len(s.pullers), asked, c.want)
			}
			if err := joined.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
