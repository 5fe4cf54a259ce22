package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// A group by partition has a durable for each partition of each generation, with a
// filter of one subject. Nothing of it is deleted when a partition changes hands: the
// position is the partition's. Other than with groups of a whole topic no lock says
// whose it is; the caller of SubscribePartition does.

// partOf is what one partition of a topic looks like to the parts that deliver
// events: the same topic, with fewer events.
func (srv *server) partOf(t *topic, p jetbus.Partition) *topic {
	out := *t
	out.part, out.filter = p, partitionFilter(srv.cfg.Prefix, t.name(), p)
	return &out
}

// isPart reports whether this is one partition of the topic.
func (t *topic) isPart() bool { return t.part.Generation > 0 }

// partName names the partition; "" is the whole topic.
func (t *topic) partName() string {
	if !t.isPart() {
		return ""
	}
	return t.part.String()
}

// inPart puts the partition before the last tokens of a subject.
func (t *topic) inPart(tokens string) string {
	if !t.isPart() {
		return tokens
	}
	return t.part.String() + "." + tokens
}

// hasPart reports whether the topic has such a partition, as far as is known.
func (t *topic) hasPart(p jetbus.Partition) bool {
	return slices.ContainsFunc(t.generations, func(g jetbus.Generation) bool {
		return g.Generation == p.Generation && p.Number >= 0 && p.Number < g.Partitions
	})
}

// partitions are all partitions of a topic, oldest generation first.
func (t *topic) partitions() []jetbus.Partition {
	var out []jetbus.Partition
	for _, g := range t.generations {
		for number := range g.Partitions {
			out = append(out, jetbus.Partition{Generation: g.Generation, Number: number})
		}
	}
	return out
}

func comparePartitions(a, b jetbus.Partition) int {
	return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Number, b.Number))
}

// partitionOf is the partition that a durable is for; zero: the whole topic.
func partitionOf(info *jetstream.ConsumerInfo) jetbus.Partition {
	p, _ := parsePartition(info.Config.Metadata[metaPartition] + "._") // as in a subject
	return p
}

// partitionedError says that a group is one by partition where one of the whole topic
// is meant. It is a ConflictError.
type partitionedError struct{ conflict *jetbus.ConflictError }

func newPartitionedError(t *topic, group string) *partitionedError {
	return &partitionedError{&jetbus.ConflictError{
		What: "group " + t.name() + "/" + group, Differences: differ("Partitions", "each", "none"),
		Hint: "its members use partition.Subscribe: do the same, or use another group",
	}}
}

// Error is that of the conflict.
func (e *partitionedError) Error() string { return e.conflict.Error() }

// Unwrap returns the ConflictError.
func (e *partitionedError) Unwrap() error { return e.conflict }

// wholeError is the other way around.
func wholeError(t *topic, group string) error {
	return &jetbus.ConflictError{
		What: "group " + t.name() + "/" + group, Differences: differ("Partitions", "none", "each"),
		Hint: "its members use Subscribe or Receive on the whole topic: do the same, delete it first, or use another group",
	}
}

// errJoined: somebody else has made the group this moment.
var errJoined = errors.New("the group has been made by somebody else")

// joinLock is the lock that keeps a group from being made both ways, and from being
// made and deleted at once.
func joinLock(t *topic, group string) string {
	return "join." + t.stream + "." + consumerName(t.name(), group)
}

// partsAtOnce is how many durables are asked for, or changed, at a time.
const partsAtOnce = 16

// eachPart runs f for many, some at a time, until one fails.
func eachPart[T any](ctx context.Context, all []T, f func(context.Context, T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	room := make(chan struct{}, partsAtOnce)
	for _, one := range all {
		room <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			if err := f(ctx, one); err != nil {
				cancel(err)
			}
			<-room
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// everyPart is eachPart where one that fails keeps none of the others from being done.
func everyPart[T any](ctx context.Context, all []T, f func(context.Context, T) error) error {
	var mu sync.Mutex
	var errs []error
	err := eachPart(ctx, all, func(ctx context.Context, one T) error {
		if err := f(ctx, one); err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// partitionedTopic returns a topic that has partitions, as the server knows it now.
func (st *streams) partitionedTopic(ctx context.Context, name string) (*topic, error) {
	t, err := st.known(ctx, name)
	if err == nil && t.generations == nil {
		err = jetbus.ErrNoPartitions
	}
	return t, err
}

// JoinPartitions implements jetbus.Partitions.
func (b *Bus) JoinPartitions(ctx context.Context, name, group string, o jetbus.SubscribeOptions) error {
	op := fmt.Sprintf("join the partitions of %s/%s", name, group)
	if err := b.enterNew(ctx); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	o, err := partitionOptions(group, o)
	set := groupSettings{ackTimeout: o.AckTimeout, maxInFlight: o.GroupMaxInFlight, order: o.Order}
	if err == nil {
		err = b.tied(ctx, func(ctx context.Context) error { // it may have to wait for members to let go of their events
			have, err := b.makeParts(ctx, name, group, o.From, set)
			if err != nil {
				return err
			}
			return eachPart(ctx, have, func(ctx context.Context, p *topicGroup) error { return b.joinPart(ctx, p, set) })
		})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	b.sweepLater()
	return nil
}

// partitionOptions checks what members of a group by partition ask for.
func partitionOptions(group string, o jetbus.SubscribeOptions) (jetbus.SubscribeOptions, error) {
	o, err := o.Normalize()
	switch {
	case err != nil:
	case o.Order == jetbus.NoOrder:
		err = fmt.Errorf("%w: Order is none, a partition needs %q or %q", jetbus.ErrInvalidOption, jetbus.PerKey, jetbus.Total)
	case len(o.Topics) > 0:
		err = fmt.Errorf("%w: Topics names more topics; partitions are those of one", jetbus.ErrInvalidOption)
	default:
		err = jetbus.ValidGroup(group)
	}
	return o, err
}

// makeParts makes the durables that a group is without, and returns the others.
func (st *streams) makeParts(ctx context.Context, name, group string, from jetbus.Start, set groupSettings) ([]*topicGroup, error) {
	t, have, err := st.findParts(ctx, name, group)
	if err != nil {
		return nil, err
	}
	if err := alignedOrder(t, group, have, set.order); err != nil || len(have) == len(t.partitions()) {
		return have, err
	}
	if _, ok := ctx.Deadline(); !ok { // somebody who moves the group may have to be waited for
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, st.cfg.Timeout+set.over(firstOf(have)).ackTimeout+keptLife)
		defer cancel()
	}
	err = st.lockedAgain(ctx, joinLock(t, group), func(ctx context.Context) error {
		if have, err = st.partsOf(ctx, t, group); err != nil { // somebody may have been faster
			return err
		}
		return st.translateGroup(t, st.createParts(ctx, t, group, have, from, set))
	})
	return have, err
}

// findParts returns a topic with partitions and what there is of a group's durables.
func (st *streams) findParts(ctx context.Context, name, group string) (t *topic, have []*topicGroup, err error) {
	ctx, cancel := st.bound(ctx)
	defer cancel()
	if t, err = st.partitionedTopic(ctx, name); err != nil {
		return nil, nil, err
	}
	if err = st.keepStreams(ctx, t.config.Replicas); err != nil {
		return nil, nil, err
	}
	have, err = st.partsOf(ctx, t, group)
	return t, have, err
}

// firstOf is the first durable of a group, nil where it has none.
func firstOf(have []*topicGroup) *jetstream.ConsumerInfo {
	if len(have) == 0 {
		return nil
	}
	return have[0].info
}

// joinPart brings the settings of a durable up to date, or of that in its place. A move
// under way takes its own time, unless ctx has a deadline.
func (dur *durables) joinPart(ctx context.Context, p *topicGroup, set groupSettings) error {
	for {
		mark, ok := readMoveMark(p.info.Config.Metadata)
		var err error
		if ok { // a mover may have died on its way
			err = dur.finishMove(ctx, p.topic, p.group, p.info, mark)
		} else if _, err = dur.alignGroup(ctx, p.topic, p.group, p.info, set); err == nil {
			return nil
		}
		if err != nil && !errors.Is(err, jetbus.ErrNoGroup) {
			return err
		}
		p.info, err = dur.findGroup(ctx, p.topic, p.group) // its owner, or the mover, has replaced it
		if err != nil {
			return err
		}
	}
}

// alignedOrder refuses another order while there are members: they ask for events.
func alignedOrder(t *topic, group string, parts []*topicGroup, order jetbus.Order) error {
	for _, p := range parts {
		if have := jetbus.Order(p.info.Config.Metadata[metaOrder]); have != order && p.info.NumWaiting > 0 {
			return &jetbus.ConflictError{
				What: "group " + t.name() + "/" + group, Differences: differ("Order", have, order), Hint: "stop its members, or use another group",
			}
		}
	}
	return nil
}

// partsOf are the durables of a group by partition, oldest generation first; none where
// there is no such group. One of the whole topic is an error. What the list has left out,
// since it was being replaced, is found by its name.
func (dur *durables) partsOf(ctx context.Context, t *topic, group string) ([]*topicGroup, error) {
	all, err := dur.durablesOf(ctx, t)
	if err != nil {
		return nil, err
	}
	var parts []*topicGroup
	listed := map[jetbus.Partition]bool{}
	for _, info := range all {
		if info.Config.Metadata[metaGroup] != group {
			continue
		}
		p := partitionOf(info)
		if p.Generation == 0 {
			return nil, wholeError(t, group)
		}
		listed[p], parts = true, append(parts, &topicGroup{topic: dur.partOf(t, p), group: group, info: info})
	}
	names, _, err := dur.durableNames(ctx, t.stream)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		p, ok := partIn(name, consumerName(t.name(), group))
		if !ok || listed[p] {
			continue
		}
		part := dur.partOf(t, p)
		info, err := dur.findGroup(ctx, part, group)
		switch {
		case err == nil:
			listed[p], parts = true, append(parts, &topicGroup{topic: part, group: group, info: info})
		case !errors.Is(err, jetbus.ErrNoGroup): // it was deleted
			return nil, err
		}
	}
	slices.SortFunc(parts, func(a, b *topicGroup) int { return comparePartitions(a.part, b.part) })
	return parts, nil
}

// createParts makes what is missing of a group. The first durable of all says where
// the group begins: whoever goes on after a crash goes by that.
func (dur *durables) createParts(ctx context.Context, t *topic, group string, have []*topicGroup, from jetbus.Start, set groupSettings) error {
	missing := slices.DeleteFunc(t.partitions(), func(p jetbus.Partition) bool {
		return slices.ContainsFunc(have, func(g *topicGroup) bool { return g.part == p })
	})
	first := firstOf(have)
	if first == nil {
		part := dur.partOf(t, missing[0])
		info, made, err := dur.createOrigin(ctx, t, part, group, from, set.over(nil))
		if err != nil {
			return err
		}
		if first = info; !made {
			have = []*topicGroup{{topic: part, group: group, info: info}}
		}
		missing = missing[1:]
	}
	set = set.over(first)
	next, _ := strconv.ParseUint(first.Config.Metadata[metaStart], 10, 64) // none is the beginning
	like := partSettings(set, next, first.Config.Metadata[metaMove])
	until := resumeTime(first)
	for _, p := range have { // the first one may bear the mark of a mover that died
		if other := resumeTime(p.info); other.After(until) {
			until = other
		}
	}
	if until.After(time.Now()) {
		like.PauseUntil = &until
	}
	return eachPart(ctx, missing, func(ctx context.Context, p jetbus.Partition) error {
		part := dur.partOf(t, p)
		if slices.ContainsFunc(have, func(g *topicGroup) bool { return g.part.Generation == p.Generation }) {
			// The others of its generation were made, and so was this one, most likely: its
			// owner replaces it at this moment, and it was in no list.
			if _, err := dur.findGroup(ctx, part, group); !errors.Is(err, jetbus.ErrNoGroup) {
				return err
			}
		}
		_, err := dur.createConsumer(ctx, part, group, 0, next, like)
		switch {
		case isConsumerExists(err): // one whose leader did not tell the list of it
			_, err = dur.findGroup(ctx, part, group)
		case errors.Is(err, errJoined):
			err = nil
		}
		return err
	})
}

// createOrigin makes the first durable of a group. Where there is one by now, of somebody
// whose request took its time, made is false.
func (dur *durables) createOrigin(ctx context.Context, t, part *topic, group string, from jetbus.Start, set groupSettings) (info *jetstream.ConsumerInfo, made bool, err error) {
	next, err := dur.groupStart(ctx, t, from)
	if err != nil {
		return nil, false, err
	}
	info, err = dur.createConsumer(ctx, part, group, 0, next, partSettings(set, next, jetbus.NewID()))
	if isConsumerExists(err) || errors.Is(err, errJoined) {
		info, err = dur.findGroup(ctx, part, group)
		return info, false, err
	}
	return info, true, err
}

// partSettings are the settings of the durables of a group that begins at next, by move.
func partSettings(set groupSettings, next uint64, move string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{AckWait: set.ackTimeout, MaxAckPending: set.maxInFlight, Metadata: map[string]string{
		metaOrder: string(set.order), metaStart: strconv.FormatUint(next, 10), metaMove: cmp.Or(move, jetbus.NewID()),
	}}
}

// GroupPartitions implements jetbus.Partitions.
func (b *Bus) GroupPartitions(ctx context.Context, topic, group string) ([]jetbus.PartitionInfo, error) {
	op := fmt.Sprintf("partitions of %s/%s", topic, group)
	if err := b.enter(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	err := jetbus.ValidGroup(group)
	var parts []*topicGroup
	if err == nil {
		parts, err = b.existingParts(ctx, topic, group)
	}
	var out []jetbus.PartitionInfo
	if err == nil {
		out, err = b.describeParts(ctx, parts)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return out, nil
}

func (st *streams) existingParts(ctx context.Context, topic, group string) ([]*topicGroup, error) {
	t, err := st.partitionedTopic(ctx, topic)
	if err != nil {
		return nil, err
	}
	parts, err := st.partsOf(ctx, t, group)
	if err == nil && len(parts) == 0 {
		err = jetbus.ErrNoGroup
	}
	return parts, err
}

// describeParts adds to the durables what is known of their retries, and how old the
// oldest event of each is that is not settled.
func (dur *durables) describeParts(ctx context.Context, parts []*topicGroup) ([]jetbus.PartitionInfo, error) {
	retries := map[jetbus.Partition]uint64{}
	rt := dur.retryTopic(parts[0].topic, parts[0].group)
	all, err := dur.durablesOf(ctx, rt)
	if err != nil && !errors.Is(err, jetbus.ErrNoTopic) { // no group has joined since the stream went
		return nil, err
	}
	for _, info := range all {
		if info.Config.Metadata[metaGroup] == parts[0].group {
			retries[partitionOf(info)] = info.NumPending + uint64(max(info.NumAckPending, 0))
		}
	}
	out := make([]jetbus.PartitionInfo, len(parts))
	for i, p := range parts {
		out[i] = jetbus.PartitionInfo{
			Partition: p.part, Pending: p.info.NumPending, Held: p.info.NumAckPending, AckedSeq: settledSeq(p.info), Retries: retries[p.part],
			Move: p.info.Config.Metadata[metaMove],
		}
		if p.info.AckFloor.Last != nil {
			out[i].LastAck = p.info.AckFloor.Last.UTC()
		}
	}
	if err := dur.confirmDrained(ctx, parts, out); err != nil {
		return nil, err
	}
	return out, dur.findOldest(ctx, parts, out)
}

// confirmDrained asks the stream's leader about the partitions of older generations
// that seem to be drained: a durable is counted by its own leader, whose copy of the
// stream may be behind, and the next generation waits for nothing but this.
func (srv *server) confirmDrained(ctx context.Context, parts []*topicGroup, infos []jetbus.PartitionInfo) error {
	var drained []int
	for i, p := range parts {
		if infos[i].Drained() && p.part.Generation < p.present().Generation {
			drained = append(drained, i)
		}
	}
	return eachPart(ctx, drained, func(ctx context.Context, i int) error {
		more, err := srv.hasAfter(ctx, parts[i].topic, infos[i].AckedSeq)
		if more {
			infos[i].Pending = 1 // at least
		}
		return err
	})
}

// findOldest looks at the first event that is left in each partition.
func (srv *server) findOldest(ctx context.Context, parts []*topicGroup, infos []jetbus.PartitionInfo) error {
	var behind []int
	for i := range infos {
		if !infos[i].Drained() {
			behind = append(behind, i)
		}
	}
	return eachPart(ctx, behind, func(ctx context.Context, i int) error {
		request := directRequest{Seq: infos[i].AckedSeq + 1, NextBySubject: parts[i].filter, Batch: 1}
		err := srv.directGet(ctx, parts[i].stream, request, func(_ *nats.Msg, _ uint64, stored time.Time) bool {
			infos[i].Oldest = stored.UTC()
			return false
		})
		return srv.translate("read the oldest event of "+parts[i].partName(), srv.api+"DIRECT.GET."+parts[i].stream, err)
	})
}
