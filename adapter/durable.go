package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// A group is there if one of its durables is, and the server tells of each by its name
// alone. CONSUMER.NAMES is answered from what the cluster has assigned, of one moment and
// at once; CONSUMER.LIST asks the leader of each durable, leaves out those that do not
// answer, for which it waits four seconds, and misses a group that is moved meanwhile. A
// group that is taken to be absent is made anew, at another place: so absence is concluded
// from names alone.

// A stream of more durables than one answer has names of is asked several times, between
// which a group may be moved from one page to another: one that was not seen is looked
// for again.
const (
	namesLooks = 3
	namesPause = 100 * time.Millisecond
)

// durableNow returns the durable that a group, or its part, has now, by the names of all;
// ErrNoGroup where it has none.
func (srv *server) durableNow(ctx context.Context, t *topic, group string) (*jetstream.ConsumerInfo, error) {
	for look := 1; ; look++ {
		names, pages, err := srv.durableNames(ctx, t.stream)
		if err != nil {
			return nil, err
		}
		name, there := presentName(names, epochName(t, group, 0))
		if there {
			c, err := srv.consumer(ctx, t, name)
			switch {
			case err == nil:
				return c.CachedInfo(), nil
			case apiCode(err) != jetstream.JSErrCodeConsumerNotFound:
				return nil, srv.translate("look up consumer "+name, srv.api+"CONSUMER.INFO."+t.stream+"."+name, err)
			}
		} else if pages == 1 || look >= namesLooks {
			return nil, noGroup(t, group, names)
		}
		select { // it was replaced, or may have been
		case <-time.After(namesPause):
		case <-ctx.Done():
			return nil, srv.translate("look for it", "", context.Cause(ctx))
		}
	}
}

// durableNames returns the names of a stream's durables, and in how many pages they came:
// those of one are of one moment. The servers of a cluster may disagree for a while on whether
// there is a stream, as in an election right behind its making: then the one that has the
// names is asked again.
func (srv *server) durableNames(ctx context.Context, stream string) (names []string, pages int, err error) {
	_, err = retriedFor(ctx, srv.js, isUnknown, func() (struct{}, error) {
		if names, pages, err = srv.durableNamesNow(ctx, stream); errors.Is(err, jetbus.ErrNoTopic) {
			_, asked := srv.streamInfo(ctx, stream)
			switch {
			case asked == nil:
				err = errUnknown
			case apiCode(asked) != jetstream.JSErrCodeStreamNotFound:
				err = srv.translate("look for stream "+stream, srv.api+"STREAM.INFO."+stream, asked)
			}
		}
		return struct{}{}, err
	})
	return names, pages, err
}

// errUnknown: one server does not know what another one has.
var errUnknown = fmt.Errorf("%w: the servers of the cluster disagree on whether the stream is there", jetbus.ErrUnavailable)

func isUnknown(err error) bool { return errors.Is(err, errUnknown) }

func (srv *server) durableNamesNow(ctx context.Context, stream string) (names []string, pages int, err error) {
	err = eachPage(ctx, srv, listQuestion{what: "list consumers", subject: srv.api + "CONSUMER.NAMES." + stream, within: askTimeout}, func(page listPage[string]) error {
		names, pages = append(names, page.Consumers...), pages+1
		return nil
	})
	return names, pages, err
}

// presentName returns the name among others of the durable that a group has: of one that
// is being moved the one that is being left, which is there until the next one is. first
// is the name of the one that it began with.
func presentName(names []string, first string) (name string, there bool) {
	lowest := 0
	for _, n := range names {
		if epoch, ok := epochIn(n, first); ok && (!there || epoch < lowest) {
			name, lowest, there = n, epoch, true
		}
	}
	return name, there
}

// maxEpochDigits tells an epoch from the hash that the name of another group may end with.
const maxEpochDigits = 9

// epochIn returns the epoch in the name of a durable of the group that began with first.
func epochIn(name, first string) (epoch int, ok bool) {
	rest, ok := strings.CutPrefix(name, first)
	if !ok || rest == "" {
		return 0, ok
	}
	digits, ok := strings.CutPrefix(rest, "__e")
	epoch, err := strconv.Atoi(digits)
	return epoch, ok && err == nil && epoch > 0 && len(digits) <= maxEpochDigits && strconv.Itoa(epoch) == digits
}

// noGroup is the error for a group that has none of the names: of a group that has
// partitions the topic as a whole has no durable, and the other way around.
func noGroup(t *topic, group string, names []string) error {
	whole := consumerName(t.name(), group)
	switch {
	case t.retries:
	case t.isPart():
		if _, there := presentName(names, whole); there {
			return wholeError(t, group)
		}
	default:
		for _, name := range names {
			if _, ok := partIn(name, whole); ok {
				return newPartitionedError(t, group)
			}
		}
	}
	return jetbus.ErrNoGroup
}

// partSuffix is what follows the name of a group in those of its durables by partition, of
// whatever epoch. Another group's name that begins so ends with a hash, which is longer.
var partSuffix = regexp.MustCompile(`^__p([1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})(__e[1-9][0-9]{0,8})?$`)

// partIn returns the partition in the name of a durable of the group of which whole is the name.
func partIn(name, whole string) (p jetbus.Partition, ok bool) {
	rest, ok := strings.CutPrefix(name, whole)
	if !ok {
		return p, false
	}
	match := partSuffix.FindStringSubmatch(rest)
	if match == nil {
		return p, false
	}
	p.Generation, _ = strconv.Atoi(match[1]) // few digits
	p.Number, _ = strconv.Atoi(match[2])
	return p, true
}

// withdrawLate deletes a group's first durable that was made late: its maker stood still
// on the way, and others have made the group and moved it meanwhile, so that what the
// group has is older than the durable that it began with, or was moved further. errJoined
// says so.
func (srv *server) withdrawLate(ctx context.Context, t *topic, group string, made *jetstream.ConsumerInfo) error {
	names, _, err := srv.durableNames(ctx, t.stream)
	if err != nil {
		return err
	}
	for _, name := range names {
		epoch, ok := epochIn(name, made.Name)
		if !ok || epoch == 0 {
			continue
		}
		c, err := srv.consumer(ctx, t, name)
		switch {
		case err == nil && (epoch > 1 || c.CachedInfo().Created.Before(made.Created)):
			return cmp.Or(srv.withdraw(ctx, &topicGroup{topic: t, group: group}, made), errJoined)
		case err != nil && apiCode(err) != jetstream.JSErrCodeConsumerNotFound:
			return fmt.Errorf("look for its durables: %w", err)
		}
	}
	return nil
}
