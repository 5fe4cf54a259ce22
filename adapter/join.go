package adapter

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// join makes sure that the group exists on all topics and prepares a puller for each.
func (s *subscription) join(ctx context.Context, names []string) error {
	topics := make([]*topic, len(names))
	for i, name := range names {
		var err error
		if topics[i], err = s.lookup(ctx, name); err != nil {
			return ofOne(len(names), name, err)
		}
	}
	s.topics = len(topics)
	infos := make([]*jetstream.ConsumerInfo, len(topics))
	for i, t := range topics {
		var err error
		if infos[i], err = s.attach(ctx, t, s.o.From, s.settings()); err != nil {
			return ofOne(len(topics), t.name(), err)
		}
	}
	for i, t := range topics {
		if err := s.attachRetries(ctx, t, infos[i]); err != nil {
			return ofOne(len(topics), t.name(), err)
		}
	}
	for _, p := range s.pullers {
		p.setExpiry()
	}
	if s.o.Order != jetbus.NoOrder {
		for i := range topics {
			s.owners = append(s.owners, s.newOwner(s.pullers[i], s.pullers[i+s.topics]))
		}
	}
	return nil
}

// settings are those of the group that this member asks for.
func (s *subscription) settings() groupSettings {
	return groupSettings{ackTimeout: s.o.AckTimeout, maxInFlight: s.o.GroupMaxInFlight, order: s.o.Order}
}

// attach joins the group on one topic, or on the retries of one.
func (s *subscription) attach(ctx context.Context, t *topic, from jetbus.Start, set groupSettings) (*jetstream.ConsumerInfo, error) {
	info, err := s.b.joinOne(ctx, t, s.group, from, set)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.adoptLocked(info)
	s.mu.Unlock()
	p := s.newPuller(t, info.Name)
	s.pullers = append(s.pullers, p)
	if s.o.Order != jetbus.NoOrder { // its owner opens it
		return info, nil
	}
	return info, p.open()
}

// attachRetries joins the group on the retries of a topic, with the settings that it has
// on that.
func (s *subscription) attachRetries(ctx context.Context, t *topic, info *jetstream.ConsumerInfo) error {
	set := settingsOfGroup(info)
	set.order = s.o.Order
	_, err := s.attach(ctx, s.b.retryTopic(t, s.group), jetbus.Earliest(), set)
	return err
}

// lookup finds a topic, and checks that the group exists on it or can be
// created, so that a topic that is wrong leaves no group on those before it.
func (s *subscription) lookup(ctx context.Context, name string) (*topic, error) {
	ctx, cancel := s.b.bound(ctx)
	defer cancel()
	for try := 0; ; try++ {
		t, err := s.b.lookup(ctx, name)
		if err != nil {
			return nil, err
		}
		_, err = s.b.findGroup(ctx, t, s.group)
		if errors.Is(err, jetbus.ErrNoGroup) {
			_, err = s.b.groupStart(ctx, t, s.o.From)
		}
		if errors.Is(err, jetbus.ErrNoTopic) && try == 0 { // remembered, but gone since
			s.b.forget(t)
			continue
		}
		return t, err
	}
}

// abandon undoes join.
func (s *subscription) abandon() {
	for _, p := range s.pullers {
		p.end(s.life)
	}
	s.die(jetbus.ErrStopped)
}
