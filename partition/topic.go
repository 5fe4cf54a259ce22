package partition

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
)

// GroupOf is the name under which the members of a topic's group meet for one
// generation of its partitions, as [jetbus.Partitions] tells it: what [Join] and [Lookup]
// call a group. It has the topic's stream, which buses of other prefixes do not share, in
// the place of the topic.
func GroupOf(topic, group string, g jetbus.Generation) string {
	name := fmt.Sprintf("%s/%s/g%d", cmp.Or(g.Stream, topic), group, g.Generation)
	if len(name) > maxGroupBytes { // the head is for people, the rest tells it from others
		tail := fmt.Sprintf("~%016x", hashOf(name))
		name = name[:maxGroupBytes-len(tail)] + tail
	}
	return name
}

// TopicAssignment is who has what of a topic, as the broker has it.
type TopicAssignment struct {
	Topic       string                 `json:"topic"`
	Group       string                 `json:"group"`
	Generations []GenerationAssignment `json:"generations"` // oldest first
}

// GenerationAssignment is who has what in one generation.
type GenerationAssignment struct {
	Generation int `json:"generation"`
	// Assignment has no members where the generation is drained: nobody needs it.
	Assignment
}

// LookupTopic reads who has what in the group of a topic, over all generations.
// bucket "" is DefaultBucket. The error wraps [jetbus.ErrNoGroup] where nobody ever
// subscribed by partition ([Subscribe]), [jetbus.ErrNoPartitions], [jetbus.ErrNoTopic], or is one of the
// broker.
func LookupTopic(ctx context.Context, bus Bus, bucket, topic, group string) (TopicAssignment, error) {
	a := TopicAssignment{Topic: topic, Group: group}
	known := false
	err := eachGeneration(ctx, bus, topic, func(g jetbus.Generation) error {
		there, err := lookup(ctx, bus, cmp.Or(bucket, DefaultBucket), GroupOf(topic, group, g))
		if errors.Is(err, jetbus.ErrNoGroup) { // drained before anybody came
			there, err = newView().assignment(GroupOf(topic, group, g), g.Partitions), nil
		} else {
			known = true
		}
		a.Generations = append(a.Generations, GenerationAssignment{g.Generation, there})
		return err
	})
	if err == nil && !known {
		err = jetbus.ErrNoGroup
	}
	if err != nil {
		return TopicAssignment{}, fmt.Errorf("assignment of group %s/%s: %w", topic, group, err)
	}
	return a, nil
}

func eachGeneration(ctx context.Context, bus Bus, topic string, f func(jetbus.Generation) error) error {
	all, err := bus.Generations(ctx, topic)
	for _, g := range all {
		if err == nil {
			err = f(g)
		}
	}
	return err
}

// ErrNoMember says that the group has no such member.
var ErrNoMember = errors.New("no such member")

// Kick ends the session of a member of a group: the others share out what it had at
// once. It is for one that hangs. One that works notices when it hears of it, stops what
// it does (the cause is [ErrExpelled]) and joins anew; until then two may have a
// partition, which [Turn].Epoch tells apart. bucket "" is DefaultBucket. The error wraps [ErrNoMember]
// where there is none of that name, or is one of the broker.
func Kick(ctx context.Context, k jetbus.Keys, bucket, group, member string) error {
	if err := kick(ctx, k, cmp.Or(bucket, DefaultBucket), group, member); err != nil {
		return fmt.Errorf("kick member %s of group %s: %w", member, group, err)
	}
	return nil
}

func kick(ctx context.Context, k jetbus.Keys, bucket, group, member string) error {
	err := validName(group)
	if err == nil {
		err = jetbus.ValidGroup(member)
	}
	for err == nil {
		var entry jetbus.KeyEntry
		entry, err = k.KeyGet(ctx, bucket, group+memberPrefix+member)
		switch {
		case err != nil:
		case entry.Revision == 0:
			err = ErrNoMember
		default:
			err = k.KeyDelete(ctx, bucket, group+memberPrefix+member, entry.Revision)
			if !errors.Is(err, jetbus.ErrWrongSequence) { // otherwise it was renewed just now
				return err
			}
			err = nil
		}
	}
	return err
}

// KickTopic is Kick for a member of the group of a topic ([Subscribe]), in all
// generations in which it has a part.
func KickTopic(ctx context.Context, bus Bus, bucket, topic, group, member string) error {
	found := false
	err := eachGeneration(ctx, bus, topic, func(g jetbus.Generation) error {
		err := kick(ctx, bus, cmp.Or(bucket, DefaultBucket), GroupOf(topic, group, g), member)
		if errors.Is(err, ErrNoMember) {
			return nil
		}
		found = true
		return err
	})
	if err == nil && !found {
		err = ErrNoMember
	}
	if err != nil {
		return fmt.Errorf("kick member %s of group %s/%s: %w", member, topic, group, err)
	}
	return nil
}
