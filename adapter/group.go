package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// What a group's durable consumer carries in its metadata.
const (
	metaGroupTopic = "jetbus.topic"
	metaGroup      = "jetbus.group"
	metaEpoch      = "jetbus.epoch" // how often the group was moved; part of the consumer's name
	metaSeek       = "jetbus.seek"  // a move under way: see seekMark
)

// maxWaiting is how many pull requests may be open at a durable. The server's
// default of 512 is used up by 50 busy members, and cannot be raised later.
const maxWaiting = 10_000

// groupSettings are what members of a group share.
type groupSettings struct {
	ackTimeout  time.Duration
	maxInFlight int
}

// joinGroup returns the group's durable, creating it at start, and brings its
// settings up to date.
func (b *Bus) joinGroup(ctx context.Context, t *topic, group string, start jetbus.Start, set groupSettings) (*jetstream.ConsumerInfo, error) {
	for {
		info, err := b.findGroup(ctx, t, group)
		switch {
		case errors.Is(err, jetbus.ErrNoGroup):
			info, err = b.createGroup(ctx, t, group, start, set)
			if isConsumerExists(err) {
				continue // somebody was faster; theirs stands
			}
			return info, b.translateGroup(t, group, err)
		case err != nil:
			return nil, err
		}
		if mark, ok := readSeekMark(info.Config.Metadata); ok {
			if err := b.completeSeek(ctx, t, group, info, mark); err != nil {
				return nil, err
			}
			continue
		}
		return b.alignGroup(ctx, t, group, info, set)
	}
}

func (b *Bus) translateGroup(t *topic, group string, err error) error {
	return b.translate("group "+t.name()+"/"+group, b.api+"CONSUMER.CREATE."+t.stream+".", err)
}

// createGroup creates the durable in one request, so that a crash leaves either
// no group or a whole one.
func (b *Bus) createGroup(ctx context.Context, t *topic, group string, start jetbus.Start, set groupSettings) (*jetstream.ConsumerInfo, error) {
	if err := b.stillDeclared(ctx, t); err != nil {
		return nil, err
	}
	next, err := b.startSequence(ctx, t, start)
	if err != nil {
		return nil, err
	}
	return b.createConsumer(ctx, t, group, 0, next, jetstream.ConsumerConfig{AckWait: set.ackTimeout, MaxAckPending: cmp.Or(set.maxInFlight, jetbus.DefaultGroupMaxInFlight)})
}

// createConsumer makes the durable of a group's epoch, delivering from next on.
// like carries the settings.
func (b *Bus) createConsumer(ctx context.Context, t *topic, group string, epoch int, next uint64, like jetstream.ConsumerConfig) (*jetstream.ConsumerInfo, error) {
	config := jetstream.ConsumerConfig{
		Durable: epochName(t, group, epoch), FilterSubject: t.filter, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: like.AckWait, MaxAckPending: like.MaxAckPending, MaxDeliver: -1, PauseUntil: like.PauseUntil,
		DeliverPolicy: jetstream.DeliverAllPolicy, MaxWaiting: maxWaiting,
		Metadata: map[string]string{metaGroupTopic: t.name(), metaGroup: group, metaEpoch: strconv.Itoa(epoch)},
	}
	if next > 1 {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, next
	}
	ctx, release := b.guard(ctx, b.api+"CONSUMER.CREATE."+t.stream+"."+config.Durable)
	defer release()
	c, err := b.js.CreateConsumer(ctx, t.stream, config)
	if err != nil {
		return nil, err
	}
	return c.CachedInfo(), nil
}

// isConsumerExists reports whether a durable could not be created because there
// is one of that name with another configuration.
func isConsumerExists(err error) bool {
	code := apiCode(err)
	return code == jetstream.JSErrCodeConsumerAlreadyExists || code == jetstream.JSErrCodeConsumerExists || code == jetstream.JSErrCodeConsumerNameExists
}

// epochName is the durable's name. A group that was moved gets a new one, so
// that acknowledgements from before the move have no target.
func epochName(t *topic, group string, epoch int) string {
	name := consumerName(t.name(), group)
	if epoch > 0 {
		name += "__e" + strconv.Itoa(epoch)
	}
	return name
}

// findGroup returns the group's present durable, or ErrNoGroup.
func (b *Bus) findGroup(ctx context.Context, t *topic, group string) (*jetstream.ConsumerInfo, error) {
	op := "group " + t.name() + "/" + group
	name := epochName(t, group, 0)
	c, err := b.consumer(ctx, t, name)
	if err == nil {
		return c.CachedInfo(), nil
	}
	if apiCode(err) != jetstream.JSErrCodeConsumerNotFound {
		return nil, b.translate(op, b.api+"CONSUMER.INFO."+t.stream+"."+name, err)
	}
	all, err := b.groupsOf(ctx, t)
	if err != nil {
		return nil, err
	}
	for _, info := range all {
		if info.Config.Metadata[metaGroup] == group {
			return info, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", op, jetbus.ErrNoGroup)
}

func (b *Bus) consumer(ctx context.Context, t *topic, name string) (jetstream.Consumer, error) {
	return ask(ctx, b, b.api+"CONSUMER.INFO."+t.stream+"."+name, func(ctx context.Context) (jetstream.Consumer, error) {
		return b.js.Consumer(ctx, t.stream, name)
	})
}

// groupsOf lists the durables of a topic's groups, one each: of a group that is
// being moved the one that is being left.
func (b *Bus) groupsOf(ctx context.Context, t *topic) ([]*jetstream.ConsumerInfo, error) {
	op := "groups of " + t.name()
	s, err := b.js.Stream(ctx, t.stream)
	if err != nil {
		return nil, b.translate(op, b.api+"STREAM.INFO."+t.stream, err)
	}
	found := map[string]*jetstream.ConsumerInfo{}
	list := s.ListConsumers(ctx)
	for info := range list.Info() {
		group := info.Config.Metadata[metaGroup]
		if info.Config.Metadata[metaGroupTopic] != t.name() || group == "" {
			continue
		}
		if other := found[group]; other == nil || epochOf(info) < epochOf(other) {
			found[group] = info
		}
	}
	if err := list.Err(); err != nil {
		return nil, b.translate(op, b.api+"CONSUMER.LIST."+t.stream, err)
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *jetstream.ConsumerInfo) int {
		return cmp.Compare(a.Config.Metadata[metaGroup], b.Config.Metadata[metaGroup])
	}), nil
}

func epochOf(info *jetstream.ConsumerInfo) int {
	n, _ := strconv.Atoi(info.Config.Metadata[metaEpoch]) // none is 0, the first
	return n
}

// alignGroup brings the settings that members share to those of the newest
// member; a shorter ack timeout only where nobody else is there.
func (b *Bus) alignGroup(ctx context.Context, t *topic, group string, info *jetstream.ConsumerInfo, set groupSettings) (*jetstream.ConsumerInfo, error) {
	c := info.Config
	if c.AckPolicy != jetstream.AckExplicitPolicy || c.FilterSubject != t.filter {
		return nil, fmt.Errorf("subscribe: %w", &jetbus.ConflictError{
			What: "group " + t.name() + "/" + group,
			Differences: slices.Concat(
				differ("AckPolicy", c.AckPolicy, jetstream.AckExplicitPolicy), differ("FilterSubject", c.FilterSubject, t.filter)),
			Hint: "delete the consumer " + info.Name + " or use another group",
		})
	}
	if set.maxInFlight == 0 {
		set.maxInFlight = c.MaxAckPending
	}
	if set.ackTimeout < c.AckWait && (info.NumAckPending > 0 || info.NumWaiting > 0) {
		set.ackTimeout = c.AckWait // others count on it, and would run on after the server has given up on them
	}
	if c.AckWait == set.ackTimeout && c.MaxAckPending == set.maxInFlight {
		return info, nil
	}
	c.AckWait, c.MaxAckPending = set.ackTimeout, set.maxInFlight
	updated, err := b.js.UpdateConsumer(ctx, t.stream, c)
	if err != nil {
		return nil, b.translateGroup(t, group, err)
	}
	return updated.CachedInfo(), nil
}

// Groups implements jetbus.Topics.
func (b *Bus) Groups(ctx context.Context, name string) ([]jetbus.GroupInfo, error) {
	if err := b.enter(ctx); err != nil {
		return nil, fmt.Errorf("groups of %s: %w", name, err)
	}
	defer b.calls.Done()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	t, err := b.known(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("groups: %w", err)
	}
	all, err := b.groupsOf(ctx, t)
	if err != nil {
		return nil, err
	}
	out := make([]jetbus.GroupInfo, len(all))
	for i, info := range all {
		out[i] = describeGroup(t, info)
	}
	return out, nil
}

// known is lookup without AutoCreate: questions and removals create nothing.
func (b *Bus) known(ctx context.Context, name string) (*topic, error) {
	t, _, err := b.inspect(ctx, name)
	return t, err
}

func describeGroup(t *topic, info *jetstream.ConsumerInfo) jetbus.GroupInfo {
	g := jetbus.GroupInfo{
		Topic: t.name(), Group: info.Config.Metadata[metaGroup], Created: info.Created.UTC(), AckTimeout: info.Config.AckWait,
		Pending: info.NumPending, Held: info.NumAckPending, Retrying: info.NumRedelivered, AckedSeq: settledSeq(info),
		Waiting: info.NumWaiting, Paused: info.Paused,
	}
	if info.AckFloor.Last != nil {
		g.LastAck = info.AckFloor.Last.UTC()
	}
	return g
}

// settledSeq is the sequence up to which everything is settled. The server's ack
// floor lags behind where nothing is pending; then all that was delivered is.
func settledSeq(info *jetstream.ConsumerInfo) uint64 {
	settled := info.AckFloor.Stream
	if info.NumAckPending == 0 {
		settled = max(settled, info.Delivered.Stream)
	}
	if info.Config.OptStartSeq > 0 {
		settled = max(settled, info.Config.OptStartSeq-1)
	}
	return settled
}

// DeleteGroup implements jetbus.Topics.
func (b *Bus) DeleteGroup(ctx context.Context, topic, group string) error {
	return b.onGroup(ctx, "delete", topic, group, func(ctx context.Context, t *topicGroup) error {
		for { // a move that was left half done has left two durables
			err := b.js.DeleteConsumer(ctx, t.stream, t.info.Name)
			if err != nil && apiCode(err) != jetstream.JSErrCodeConsumerNotFound {
				return b.translate("delete group", b.api+"CONSUMER.DELETE."+t.stream+"."+t.info.Name, err)
			}
			if t.info, err = b.findGroup(ctx, t.topic, group); err != nil {
				if errors.Is(err, jetbus.ErrNoGroup) {
					return nil
				}
				return err
			}
		}
	})
}

// PauseGroup implements jetbus.Topics.
func (b *Bus) PauseGroup(ctx context.Context, topic, group string, until time.Time) error {
	return b.onGroup(ctx, "pause", topic, group, func(ctx context.Context, t *topicGroup) error {
		if !until.After(time.Now()) {
			return fmt.Errorf("%w: until %v has passed", jetbus.ErrInvalidOption, until)
		}
		_, err := b.js.PauseConsumer(ctx, t.stream, t.info.Name, until)
		return b.translate("pause group", b.api+"CONSUMER.PAUSE."+t.stream+"."+t.info.Name, err)
	})
}

// ResumeGroup implements jetbus.Topics.
func (b *Bus) ResumeGroup(ctx context.Context, topic, group string) error {
	return b.onGroup(ctx, "resume", topic, group, func(ctx context.Context, t *topicGroup) error {
		_, err := b.js.ResumeConsumer(ctx, t.stream, t.info.Name)
		return b.translate("resume group", b.api+"CONSUMER.PAUSE."+t.stream+"."+t.info.Name, err)
	})
}

// topicGroup is a group that exists.
type topicGroup struct {
	*topic
	group string
	info  *jetstream.ConsumerInfo
}

// onGroup runs f on a group that exists, within a call's bounds.
func (b *Bus) onGroup(ctx context.Context, verb, topic, group string, f func(context.Context, *topicGroup) error) error {
	op := verb + " " + topic + "/" + group
	if err := b.enter(ctx); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.Done()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	err := jetbus.ValidGroup(group)
	if err == nil {
		var t *topicGroup
		if t, err = b.findTopicGroup(ctx, topic, group); err == nil {
			err = f(ctx, t)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func (b *Bus) findTopicGroup(ctx context.Context, topic, group string) (*topicGroup, error) {
	t, err := b.known(ctx, topic)
	if err != nil {
		return nil, err
	}
	info, err := b.findGroup(ctx, t, group)
	if err != nil {
		return nil, err
	}
	return &topicGroup{topic: t, group: group, info: info}, nil
}

// seekMark says that a group is being moved: the durable that carries it is to
// be replaced by the next epoch, starting at seq. It is written before anything
// else is done, so that whoever meets it after a crash can complete the move.
type seekMark struct {
	seq   uint64
	until time.Time // after that its writer is taken to be dead
}

func (m seekMark) String() string {
	return strconv.FormatUint(m.seq, 10) + "@" + strconv.FormatInt(m.until.UnixMilli(), 10)
}

func readSeekMark(metadata map[string]string) (seekMark, bool) {
	seq, until, ok := strings.Cut(metadata[metaSeek], "@")
	if !ok {
		return seekMark{}, false
	}
	n, err1 := strconv.ParseUint(seq, 10, 64)
	ms, err2 := strconv.ParseInt(until, 10, 64)
	return seekMark{seq: n, until: time.UnixMilli(ms)}, err1 == nil && err2 == nil
}
