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

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// What a group's durable consumer carries in its metadata.
const (
	metaGroupTopic = "jetbus.topic"
	metaGroup      = "jetbus.group"
	metaEpoch      = "jetbus.epoch" // how often the group was moved; part of the consumer's name
	metaMark       = "jetbus.seek"  // a move under way: see moveMark
	metaOrder      = "jetbus.order" // SubscribeOptions.Order; absent: none
	// What that of a partition carries besides: which it is, and where the group began,
	// which is the same in all of them, and which move of it, or making, that was.
	metaPartition = "jetbus.partition"
	metaStart     = "jetbus.start"
	metaMove      = "jetbus.move"
	// What an owner of an ordered group writes: how far the durables before this
	// one had delivered, and who made it.
	metaDelivered = "jetbus.delivered"
	metaBy        = "jetbus.by"
)

// maxWaiting is how many pull requests may be open at a durable. The server's
// default of 512 is used up by 50 busy members, and cannot be raised later.
const maxWaiting = 10_000

// groupSettings are what members of a group share, as one of them asks for them.
type groupSettings struct {
	ackTimeout  time.Duration // 0: the group's
	maxInFlight int           // 0: the group's
	inactive    time.Duration // 0: the group's; -1: for ever
	order       jetbus.Order
	anyOrder    bool // whatever the group has
	receive     bool // for Receive, which keeps no order
	locked      bool // the caller has the group's lock, and has looked since: see changeGroup

	of *jetstream.ConsumerInfo // of retries: the durable whose they are, as it was looked up
}

// settingsOfGroup are those that a durable has, for the others of its group.
func settingsOfGroup(info *jetstream.ConsumerInfo) groupSettings {
	return groupSettings{
		ackTimeout: info.Config.AckWait, maxInFlight: info.Config.MaxAckPending, inactive: cmp.Or(info.Config.InactiveThreshold, -1), of: info,
	}
}

// over resolves the settings for a group that has a durable already, or none (nil). They
// never make its ack timeout shorter: members count on it, and would run on after the
// server has given up on them. Whether one is there at this moment nobody can tell.
func (set groupSettings) over(have *jetstream.ConsumerInfo) groupSettings {
	was := groupSettings{ackTimeout: jetbus.DefaultAckTimeout, maxInFlight: jetbus.DefaultGroupMaxInFlight, inactive: -1}
	if have != nil {
		was = settingsOfGroup(have)
		set.ackTimeout = max(set.ackTimeout, was.ackTimeout)
		if set.anyOrder {
			set.order = jetbus.Order(have.Config.Metadata[metaOrder])
		}
	}
	set.ackTimeout = cmp.Or(set.ackTimeout, was.ackTimeout)
	set.maxInFlight = cmp.Or(set.maxInFlight, was.maxInFlight)
	set.inactive = cmp.Or(set.inactive, was.inactive)
	return set
}

// threshold is inactive as the server has it, where 0 is for ever. The durable of the retries
// stays for as long as their stream remembers those that are done: one made anew would
// begin with them.
func (set groupSettings) threshold(t *topic) time.Duration {
	if t.retries && set.inactive > 0 {
		return max(set.inactive, retryTTL)
	}
	return max(set.inactive, 0)
}

// durables are the groups at the server: a durable each, one for each partition, and those
// of their retries. What is said of them here holds for all processes; who works on them in
// this one is the bus's.
type durables struct {
	*records
	*catalog

	present present
}

func newDurables(srv *server) *durables {
	return &durables{records: &records{buckets: &buckets{server: srv}}, catalog: newCatalog(srv)}
}

// joinGroup returns the group's durable, creating it at start, and brings its
// settings up to date. Without a deadline each of its requests is bounded by itself: whoever
// moves the group may have to be waited for, and takes his own time.
func (dur *durables) joinGroup(ctx context.Context, t *topic, group string, start jetbus.Start, set groupSettings) (*jetstream.ConsumerInfo, error) {
	if of := t.config.SnapshotOf; of != "" { // its retries, dead letters and positions would be those of the other topic
		return nil, fmt.Errorf("%w: it is a snapshot, which has no groups: read it, then follow %s", jetbus.ErrUnsupported, of)
	}
	for {
		info, err := dur.findGroup(ctx, t, group)
		switch {
		case errors.Is(err, jetbus.ErrNoGroup):
			info, err = dur.createGroup(ctx, t, group, start, set)
			if isConsumerExists(err) || errors.Is(err, errJoined) {
				continue // somebody was faster; theirs stands
			}
			return info, dur.translateGroup(t, err)
		case err != nil:
			return nil, err
		}
		if mark, ok := readMoveMark(info.Config.Metadata); ok {
			if err := dur.finishMove(ctx, t, group, info, mark); err != nil {
				return nil, err
			}
			continue
		}
		info, err = dur.alignGroup(ctx, t, group, info, set)
		if err == nil && set.of != nil {
			err = dur.alignPause(ctx, t, group, info, set.of)
		}
		return info, err
	}
}

func (srv *server) translateGroup(t *topic, err error) error {
	return srv.translate("", srv.api+"CONSUMER.CREATE."+t.stream+".", err)
}

// createGroup creates the durable in one request, so that a crash leaves either
// no group or a whole one.
func (dur *durables) createGroup(ctx context.Context, t *topic, group string, start jetbus.Start, set groupSettings) (info *jetstream.ConsumerInfo, err error) {
	if err := dur.stillDeclared(ctx, t); err != nil {
		return nil, err
	}
	switch {
	case t.origin != nil:
		return dur.createRetries(ctx, t, group, start, set)
	case t.generations == nil || t.isPart():
		return dur.createNew(ctx, t, group, start, set)
	}
	err = dur.lockedAgain(ctx, joinLock(t, group), func(ctx context.Context) error {
		info, err = dur.createNew(ctx, t, group, start, set)
		return err
	})
	return info, err
}

// createRetries is createGroup for the retries of a group, which are paused as that is. Who
// pauses or resumes it at this moment either finds them, or has done so before it is looked at
// again.
func (dur *durables) createRetries(ctx context.Context, t *topic, group string, start jetbus.Start, set groupSettings) (*jetstream.ConsumerInfo, error) {
	info, err := dur.createNew(ctx, t, group, start, set)
	if err != nil {
		return nil, err
	}
	of, err := dur.findGroup(ctx, t.origin, group)
	if err == nil {
		err = dur.alignPause(ctx, t, group, info, of)
	}
	return info, err
}

// alignPause pauses the retries of a group as that is, or resumes them. While the group is
// being moved its mover has the lock for that; the next member to join looks again.
func (dur *durables) alignPause(ctx context.Context, t *topic, group string, retries, of *jetstream.ConsumerInfo) error {
	if _, moving := readMoveMark(of.Config.Metadata); moving || isAlike(resumeTime(retries), resumeTime(of)) {
		return nil
	}
	g := &topicGroup{topic: t.origin, group: group}
	return dur.changeGroup(ctx, g, func(ctx context.Context) error {
		return dur.pauseOne(ctx, &topicGroup{topic: t, group: group, info: retries}, resumeTime(g.info))
	})
}

// isAlike reports whether two pauses end at one time, or have ended.
func isAlike(a, b time.Time) bool {
	now := time.Now()
	return a.Equal(b) || !a.After(now) && !b.After(now)
}

// createNew is createGroup unless there is the group by now.
func (dur *durables) createNew(ctx context.Context, t *topic, group string, start jetbus.Start, set groupSettings) (*jetstream.ConsumerInfo, error) {
	if _, err := dur.findGroup(ctx, t, group); !errors.Is(err, jetbus.ErrNoGroup) {
		return nil, cmp.Or(err, errJoined)
	}
	next, err := dur.groupStart(ctx, t, start)
	if err != nil {
		return nil, err
	}
	set = set.over(nil)
	like := jetstream.ConsumerConfig{AckWait: set.ackTimeout, MaxAckPending: set.maxInFlight, InactiveThreshold: set.threshold(t)}
	if set.order != jetbus.NoOrder {
		like.Metadata = map[string]string{metaOrder: string(set.order)}
	}
	if set.of != nil {
		if until := resumeTime(set.of); until.After(time.Now()) {
			like.PauseUntil = &until
		}
	}
	return dur.createConsumer(ctx, t, group, 0, next, like)
}

// createConsumer makes the durable of a group's epoch, delivering from next on.
// like carries the settings.
func (dur *durables) createConsumer(ctx context.Context, t *topic, group string, epoch int, next uint64, like jetstream.ConsumerConfig) (*jetstream.ConsumerInfo, error) {
	config := jetstream.ConsumerConfig{
		Durable: epochName(t, group, epoch), FilterSubject: t.filter, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: like.AckWait, MaxAckPending: like.MaxAckPending, MaxDeliver: -1, PauseUntil: like.PauseUntil,
		DeliverPolicy: jetstream.DeliverAllPolicy, MaxWaiting: maxWaiting, InactiveThreshold: like.InactiveThreshold,
		Metadata: map[string]string{metaGroupTopic: t.name(), metaGroup: group, metaEpoch: strconv.Itoa(epoch)},
	}
	if t.isPart() {
		config.Metadata[metaPartition] = t.part.String()
	}
	for _, name := range []string{metaOrder, metaStart, metaMove, metaDelivered, metaBy} {
		if value := like.Metadata[name]; value != "" {
			config.Metadata[name] = value
		}
	}
	if next > 1 {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, next
	}
	ctx, cancel := dur.bound(ctx)
	defer cancel()
	ctx, release := dur.guard(ctx, dur.api+"CONSUMER.CREATE."+t.stream+"."+config.Durable+"."+config.FilterSubject)
	defer release()
	var c jetstream.Consumer
	var err error
	if epoch == 0 {
		if c, err = dur.createFirst(ctx, t, group, config); err == nil {
			err = dur.withdrawLate(ctx, t, group, c.CachedInfo())
		}
	} else {
		c, err = dur.js.CreateConsumer(ctx, t.stream, config) // again, it is the same one: its maker has the group's lock
	}
	if err != nil {
		return nil, err
	}
	return c.CachedInfo(), nil
}

// createFirst makes a durable that a group begins with. The answer to a try may be lost,
// others may join what it has made, and replace it, before the next try comes: that would
// bring it back, and with it all that the group has handled. So whoever got no answer
// looks first, and errJoined says that the group is there.
func (dur *durables) createFirst(ctx context.Context, t *topic, group string, config jetstream.ConsumerConfig) (c jetstream.Consumer, err error) {
	lost := false
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		if lost {
			_, err = dur.findGroup(ctx, t, group)
		}
		switch {
		case lost && err == nil:
			return nil, errJoined
		case !lost || errors.Is(err, jetbus.ErrNoGroup):
			c, err = dur.js.createConsumerOnce(ctx, t.stream, config)
			lost = lost || isUnanswered(err) && !isElecting(err)
		}
		if !isNotMade(err) || ctx.Err() != nil || dur.link.IsOver() {
			return c, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// isConsumerExists reports whether a durable could not be created because there
// is one of that name with another configuration.
func isConsumerExists(err error) bool {
	code := apiCode(err)
	return code == jetstream.JSErrCodeConsumerAlreadyExists || code == jetstream.JSErrCodeConsumerExists || code == jetstream.JSErrCodeConsumerNameExists
}

// groupName is what all names of a group begin with, or of its part in a partition.
func groupName(t *topic, group string) string {
	name := consumerName(t.name(), group)
	if t.isPart() {
		name += "__p" + strconv.Itoa(t.part.Generation) + "_" + strconv.Itoa(t.part.Number)
	}
	return name
}

// epochName is the durable's name. A group that was moved gets a new one, so
// that acknowledgements from before the move have no target.
func epochName(t *topic, group string, epoch int) string {
	name := groupName(t, group)
	if t.retries {
		name += retriesName
	}
	if epoch > 0 {
		name += "__e" + strconv.Itoa(epoch)
	}
	return name
}

// findGroup returns the group's present durable, or ErrNoGroup. Of a group that has
// partitions the topic as a whole has none: see partitionedError.
func (dur *durables) findGroup(ctx context.Context, t *topic, group string) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := dur.bound(ctx)
	defer cancel()
	first := epochName(t, group, 0)
	was := dur.present.last(t.stream, first)
	for _, name := range slices.Compact([]string{cmp.Or(was.name, first), first}) {
		c, err := dur.consumer(ctx, t, name)
		switch {
		case err == nil && (name == first || c.CachedInfo().Created.Equal(was.created)):
			return c.CachedInfo(), nil
		case err != nil && apiCode(err) != jetstream.JSErrCodeConsumerNotFound:
			return nil, dur.translate("", dur.api+"CONSUMER.INFO."+t.stream+"."+name, err)
		}
	}
	info, err := dur.durableNow(ctx, t, group)
	if err != nil {
		return nil, err
	}
	dur.present.see(t.stream, first, info)
	return info, nil
}

// consumer looks a durable up. A server of a cluster that has just come up may answer with
// what a durable is to be, and zeros for where it is: that is no answer.
func (srv *server) consumer(ctx context.Context, t *topic, name string) (jetstream.Consumer, error) {
	return ask(ctx, srv, srv.api+"CONSUMER.INFO."+t.stream+"."+name, func(ctx context.Context) (jetstream.Consumer, error) {
		c, err := srv.js.Consumer(ctx, t.stream, name)
		if err != nil || !t.elects || c.CachedInfo().Cluster != nil {
			return c, err
		}
		select {
		case <-time.After(publishRetry):
		case <-ctx.Done():
		}
		return nil, nats.ErrTimeout
	})
}

// groupsOf lists the durables of a topic's groups that have no partitions, one each.
func (dur *durables) groupsOf(ctx context.Context, t *topic) ([]*jetstream.ConsumerInfo, error) {
	all, err := dur.durablesOf(ctx, t)
	return slices.DeleteFunc(all, func(info *jetstream.ConsumerInfo) bool { return info.Config.Metadata[metaPartition] != "" }), err
}

// durablesOf lists the durables of a topic's groups, one for each, or one for each of
// its partitions: of a group that is being moved the one that is being left.
func (dur *durables) durablesOf(ctx context.Context, t *topic) ([]*jetstream.ConsumerInfo, error) {
	all, err := dur.listed(ctx, t.stream)
	if err != nil {
		return nil, err
	}
	found := map[[2]string]*jetstream.ConsumerInfo{}
	for _, info := range all {
		m := info.Config.Metadata
		if m[metaGroupTopic] != t.name() || m[metaGroup] == "" {
			continue
		}
		name := [2]string{m[metaGroup], m[metaPartition]}
		if other := found[name]; other == nil || epochOf(info) < epochOf(other) {
			found[name] = info
		}
	}
	for _, info := range found {
		dur.present.see(t.stream, firstName(info), info)
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *jetstream.ConsumerInfo) int {
		return cmp.Or(cmp.Compare(a.Config.Metadata[metaGroup], b.Config.Metadata[metaGroup]), comparePartitions(partitionOf(a), partitionOf(b)))
	}), nil
}

func epochOf(info *jetstream.ConsumerInfo) int {
	n, _ := strconv.Atoi(info.Config.Metadata[metaEpoch]) // none is 0, the first
	return n
}

// alignGroup brings the settings that members share to those that the newest member
// asks for.
func (dur *durables) alignGroup(ctx context.Context, t *topic, group string, info *jetstream.ConsumerInfo, set groupSettings) (*jetstream.ConsumerInfo, error) {
	c, given := info.Config, set
	if c.AckPolicy != jetstream.AckExplicitPolicy || c.FilterSubject != t.filter {
		return nil, &jetbus.ConflictError{
			What: "group " + t.name() + "/" + group,
			Differences: slices.Concat(
				differ("AckPolicy", c.AckPolicy, jetstream.AckExplicitPolicy), differ("FilterSubject", c.FilterSubject, t.filter)),
			Hint: "delete the consumer " + info.Name + " or use another group",
		}
	}
	set = set.over(info)
	reorder, err := dur.alignOrder(ctx, t, group, info, set)
	if err != nil {
		return nil, err
	}
	if c.AckWait == set.ackTimeout && c.MaxAckPending == set.maxInFlight && c.InactiveThreshold == set.threshold(t) && !reorder {
		return info, nil
	}
	if !set.locked {
		return dur.alignUnderLock(ctx, t, group, given)
	}
	if reorder {
		if c.Metadata = maps.Clone(c.Metadata); c.Metadata == nil {
			c.Metadata = map[string]string{}
		}
		c.Metadata[metaOrder] = string(set.order)
		if set.order == jetbus.NoOrder {
			delete(c.Metadata, metaOrder)
		}
	}
	c.AckWait, c.MaxAckPending, c.InactiveThreshold = set.ackTimeout, set.maxInFlight, set.threshold(t)
	updated, err := dur.js.UpdateConsumer(ctx, t.stream, c)
	if err != nil {
		return nil, dur.translateGroup(t, err)
	}
	return updated.CachedInfo(), nil
}

// alignOrder reports whether the group's order is to be changed to the member's,
// which it may be where nobody else is there.
func (dur *durables) alignOrder(ctx context.Context, t *topic, group string, info *jetstream.ConsumerInfo, set groupSettings) (change bool, err error) {
	have := jetbus.Order(info.Config.Metadata[metaOrder])
	if have == set.order || t.retries || t.isPart() { // of a partition JoinPartitions has looked
		return have != set.order && !t.retries, nil
	}
	unused := have != jetbus.NoOrder // its members hold events under a lock only
	if !unused {
		unused = info.NumAckPending == 0 && info.NumWaiting == 0
	}
	if !set.receive && unused {
		owned, err := dur.isOwned(ctx, t, group)
		if err != nil || !owned {
			return err == nil, err
		}
	}
	hint := "stop its members, or use another group"
	if set.receive {
		hint = "Receive keeps no order: use Subscribe, or another group"
	}
	return false, &jetbus.ConflictError{
		What: "group " + t.name() + "/" + group, Differences: differ("Order", orderWord(have), orderWord(set.order)), Hint: hint,
	}
}

func orderWord(o jetbus.Order) string { return cmp.Or(string(o), "none") }

// moveMark says that a group is being moved: the durable that carries it is to
// be replaced by the next epoch, starting at seq. It is written before anything
// else is done, so that whoever meets it after a crash can finish the move.
type moveMark struct {
	seq   uint64
	until time.Time // after that its writer is taken to be dead
	pause time.Time // until when the group is paused besides, and stays so; zero: it is not
}

// String writes the mark as seq@until, and @pause where the group is paused, in milliseconds
// since the epoch.
func (m moveMark) String() string {
	text := strconv.FormatUint(m.seq, 10) + "@" + strconv.FormatInt(m.until.UnixMilli(), 10)
	if !m.pause.IsZero() {
		text += "@" + strconv.FormatInt(m.pause.UnixMilli(), 10)
	}
	return text
}

func readMoveMark(metadata map[string]string) (moveMark, bool) {
	seq, rest, ok := strings.Cut(metadata[metaMark], "@")
	if !ok {
		return moveMark{}, false
	}
	until, pause, isPaused := strings.Cut(rest, "@")
	n, err1 := strconv.ParseUint(seq, 10, 64)
	ms, err2 := strconv.ParseInt(until, 10, 64)
	m := moveMark{seq: n, until: time.UnixMilli(ms)}
	if isPaused {
		end, err := strconv.ParseInt(pause, 10, 64)
		if err != nil {
			return moveMark{}, false
		}
		m.pause = time.UnixMilli(end)
	}
	return m, err1 == nil && err2 == nil
}
