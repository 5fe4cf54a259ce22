package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/internal/link"
)

// patient is a JetStream that waits for the end of elections. It retries requests that a cluster
// refuses because it has no leader, until the context's deadline or, if the context has none,
// for up to most. It also retries unanswered requests that may safely be made twice. It does not
// retry lists, except in consumersOf: the callers of lists do.
type patient struct {
	jetstream.JetStream

	most   time.Duration
	elects bool       // the server is part of a cluster
	link   *link.Link // of the connection; nil: the connection is never lost
}

// absentAgain is how long a cluster has before it is asked once more for a stream that it
// does not have: whoever has just become its leader, and has not done yet what was agreed on
// before, says so of each that was made last.
const absentAgain = 250 * time.Millisecond

// orAbsent is f, where what is said to be absent is looked for once more.
func orAbsent[T any](ctx context.Context, p *patient, f func() (T, error)) (T, error) {
	v, err := f()
	if !p.elects || !errors.Is(err, jetstream.ErrStreamNotFound) {
		return v, err
	}
	select {
	case <-time.After(absentAgain):
		return f()
	case <-ctx.Done():
		return v, err
	}
}

// retried runs f until it is not refused for the lack of a leader.
func retried[T any](ctx context.Context, p *patient, f func() (T, error)) (T, error) {
	return retriedFor(ctx, p, isElecting, f)
}

func retriedFor[T any](ctx context.Context, p *patient, again func(error) bool, f func() (T, error)) (T, error) {
	until, ok := ctx.Deadline()
	if !ok {
		until = time.Now().Add(p.most)
	}
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		v, err := f()
		if !again(err) || ctx.Err() != nil || time.Now().After(until) {
			return v, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return v, err
		}
	}
}

// AccountInfo is that of JetStream.
func (p *patient) AccountInfo(ctx context.Context) (*jetstream.AccountInfo, error) {
	return asked(ctx, p, p.JetStream.AccountInfo)
}

// Stream is that of JetStream, as a server tells it that knows of a leader: what is purged, say,
// goes up to where it says that the stream ends.
func (p *patient) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	return orAbsent(ctx, p, func() (jetstream.Stream, error) {
		return asked(ctx, p, func(ctx context.Context) (jetstream.Stream, error) {
			s, err := p.JetStream.Stream(ctx, name)
			if err == nil && isHeadless(s.CachedInfo()) {
				return nil, nats.ErrTimeout
			}
			return s, err
		})
	})
}

// StreamNameBySubject is that of JetStream.
func (p *patient) StreamNameBySubject(ctx context.Context, subject string) (string, error) {
	return orAbsent(ctx, p, func() (string, error) {
		return asked(ctx, p, func(ctx context.Context) (string, error) {
			return p.JetStream.StreamNameBySubject(ctx, subject)
		})
	})
}

// CreateStream is that of JetStream.
func (p *patient) CreateStream(ctx context.Context, c jetstream.StreamConfig) (jetstream.Stream, error) {
	return created(ctx, p, func(ctx context.Context) (jetstream.Stream, error) { return p.JetStream.CreateStream(ctx, c) })
}

// created is retried for what makes a stream. It is asked again, too, where the server
// has just deleted the account's last stream: it tidies that one's folders up when it
// has answered, and may take the next one's away with them. Nothing was made then. A
// disk that refuses for good looks the same, so that it is not asked for long.
func created[T any](ctx context.Context, p *patient, f func(context.Context) (T, error)) (T, error) {
	tries := storeTries
	again := func(err error) bool {
		if !isStoreFailed(err) {
			return isNotMade(err)
		}
		tries--
		return tries > 0
	}
	return tried(ctx, p, tryTimeout, again, f)
}

// storeTries is how often a stream is created whose store the server cannot make.
const storeTries = 3

// isStoreFailed reports whether a stream was not created since the server could not make
// its store. It has no code for that, and hides what the disk said.
func isStoreFailed(err error) bool {
	if apiCode(err) != codeStreamCreate {
		return false
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && strings.Contains(api.Description, "creating store")
}

// UpdateStream is that of JetStream. It is not repeated for long: others wait for the
// stream's lock, which its caller has.
func (p *patient) UpdateStream(ctx context.Context, c jetstream.StreamConfig) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, p.most)
	defer cancel()
	return retried(ctx, p, func() (jetstream.Stream, error) { return p.JetStream.UpdateStream(ctx, c) })
}

// change is UpdateStream for a stream that was looked up. If an answer is lost, change first
// checks whether the stream has the wanted configuration: in a cluster, the leader that makes
// the change may be gone before it answers. See longer for when the change is requested again.
func (p *patient) change(ctx context.Context, have *jetstream.StreamInfo, c jetstream.StreamConfig) (jetstream.Stream, error) {
	maybe := false
	return longer(ctx, p, isOfCluster(have), func(ctx context.Context) (jetstream.Stream, error) {
		if maybe {
			if s := p.changed(ctx, c); s != nil {
				return s, nil
			}
		}
		s, err := p.UpdateStream(ctx, c)
		maybe = maybe || isLost(err)
		return s, err
	})
}

// changed returns a stream that is as it is to be; nil where it is not, or nobody says so in half
// of the time that there is.
func (p *patient) changed(ctx context.Context, c jetstream.StreamConfig) jetstream.Stream {
	within := askTimeout
	if until, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(until)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s, err := p.JetStream.Stream(ctx, c.Name)
	if err != nil || isHeadless(s.CachedInfo()) || !sameConfig(s.CachedInfo().Config, c) {
		return nil
	}
	return s
}

// sameConfig reports whether two configurations of a stream are the same, but for what the
// server notes among the metadata.
func sameConfig(a, b jetstream.StreamConfig) bool {
	text := func(c jetstream.StreamConfig) string {
		c.Metadata = maps.Clone(c.Metadata)
		maps.DeleteFunc(c.Metadata, func(k, _ string) bool { return strings.HasPrefix(k, "_nats.") })
		b, err := json.Marshal(c)
		if err != nil {
			return err.Error() // no configuration is that
		}
		return string(b)
	}
	return text(a) == text(b)
}

// isOfCluster reports whether a server that is one of a cluster says so of a stream.
func isOfCluster(info *jetstream.StreamInfo) bool {
	return info.Cluster != nil && info.Cluster.Name != ""
}

// DeleteStream implements jetstream.JetStream. It retries as change does, and deletes only the
// stream that it found first: a stream that was created in the meantime stays.
func (p *patient) DeleteStream(ctx context.Context, name string) error {
	s, err := p.Stream(ctx, name)
	if err != nil {
		return err
	}
	cluster := isOfCluster(s.CachedInfo())
	if !cluster {
		empty(ctx, s)
	}
	made, maybe := s.CachedInfo().Created, false
	_, err = longer(ctx, p, cluster, func(ctx context.Context) (struct{}, error) {
		if maybe {
			if is, err := p.isAnew(ctx, name, made); err != nil || is {
				return struct{}{}, err
			}
		}
		err := p.JetStream.DeleteStream(ctx, name)
		if maybe && apiCode(err) == jetstream.JSErrCodeStreamNotFound {
			err = nil // by a request that was not answered
		}
		maybe = maybe || isLost(err)
		return struct{}{}, err
	})
	return err
}

// empty removes the messages of a stream that is about to be deleted, if the server lets it. A
// server (2.15.2, filestore.go, Delete) puts the files of a deleted stream aside under a name,
// and removes them behind its answer. While those of an earlier stream of that name are there
// it cannot, leaves them where they are without a word, and the next stream of the name begins
// with what they hold: the position of the last message now, and none of them. What is fed by
// another stream would begin behind that position, and keeps its own.
func empty(ctx context.Context, s jetstream.Stream) {
	config := s.CachedInfo().Config
	if config.Storage != jetstream.FileStorage || config.Sources != nil || config.Mirror != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	_ = s.Purge(ctx)
}

// isAnew reports whether there is another stream of a name than the one that was made at that
// time. That there is none it cannot know: one that has just come up says so of those
// that it does not have yet.
func (p *patient) isAnew(ctx context.Context, name string, made time.Time) (bool, error) {
	s, err := p.Stream(ctx, name)
	if apiCode(err) == jetstream.JSErrCodeStreamNotFound {
		return false, nil
	}
	return err == nil && !s.CachedInfo().Created.Equal(made), err
}

// longest is how long one try may take at most.
const longest = 4 * tryTimeout

// longer is repeated for changes that are made under a lock and may take long. In a cluster, a
// request can be lost with its leader: longer sends it again and doubles the time to answer each
// time, up to longest. A single server loses no request while the connection holds, and a second
// request could undo what others changed after the first: longer sends it again only after the
// connection breaks. All tries together take no longer than p.most.
func longer[T any](ctx context.Context, p *patient, cluster bool, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, p.most)
	defer cancel()
	within := p.most
	again := func(err error) bool { return isElecting(err) || errors.Is(err, errLost) }
	if cluster {
		within, again = min(tryTimeout, p.most/3), isUnanswered
	}
	return retriedFor(ctx, p, again, func() (T, error) {
		v, err := try(ctx, p, within, f)
		if isLost(err) {
			within = min(2*within, max(within, longest))
		}
		return v, err
	})
}

// purge removes the messages of a subject that a stream had when it was looked up: a
// repetition must not take what has come since.
func (p *patient) purge(ctx context.Context, s jetstream.Stream, subject string) error {
	end := s.CachedInfo().State.LastSeq + 1
	_, err := repeated(ctx, p, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(end))
	})
	return err
}

// Consumer is that of JetStream.
func (p *patient) Consumer(ctx context.Context, stream, name string) (jetstream.Consumer, error) {
	return asked(ctx, p, func(ctx context.Context) (jetstream.Consumer, error) {
		return p.JetStream.Consumer(ctx, stream, name)
	})
}

// repeated is retried for changes that have the same effect when they are made twice. A leader
// that is lost with a request does not answer it; then the next leader is asked again.
func repeated[T any](ctx context.Context, p *patient, f func(context.Context) (T, error)) (T, error) {
	return tried(ctx, p, tryTimeout, isUnanswered, f)
}

// asked is repeated for queries. They cost the server little, so a try without an answer ends
// sooner: a leader may lead for a few seconds only.
func asked[T any](ctx context.Context, p *patient, f func(context.Context) (T, error)) (T, error) {
	return tried(ctx, p, askTimeout, isUnanswered, f)
}

func tried[T any](ctx context.Context, p *patient, within time.Duration, again func(error) bool, f func(context.Context) (T, error)) (T, error) {
	return retriedFor(ctx, p, again, func() (T, error) { return try(ctx, p, within, f) })
}

// try runs f once, for no longer than within. It first waits for a connection, and fails with
// errLost if that connection breaks: nats.go would wait the full time for an answer that cannot
// arrive.
func try[T any](ctx context.Context, p *patient, within time.Duration, f func(context.Context) (T, error)) (v T, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if p.link == nil {
		return f(ctx)
	}
	lost, err := p.link.Wait(ctx)
	if err != nil {
		return v, err
	}
	ctx, release := untilLost(ctx, lost)
	defer release()
	if v, err = f(ctx); errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), errLost) {
		err = errLost
	}
	return v, err
}

func isUnanswered(err error) bool { return isElecting(err) || isLost(err) }

// isLost reports whether no answer came, so that nobody knows what was done.
func isLost(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, errLost)
}

// isNotMade reports whether what was to be made may be asked for again.
func isNotMade(err error) bool {
	return isUnanswered(err) || apiCode(err) == codeNoPeers || errors.Is(err, errNoPeers)
}

func isElecting(err error) bool { return apiCode(err) == codeNoLeader }

// CreateConsumer is that of JetStream. One that is there as it is to be is no error.
func (p *patient) CreateConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	return tried(ctx, p, tryTimeout, isNotMade, func(ctx context.Context) (jetstream.Consumer, error) {
		return p.placeConsumer(ctx, stream, c)
	})
}

// createConsumerOnce is a single try of CreateConsumer.
func (p *patient) createConsumerOnce(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	return try(ctx, p, tryTimeout, func(ctx context.Context) (jetstream.Consumer, error) {
		return p.placeConsumer(ctx, stream, c)
	})
}

// placeConsumer creates a consumer. What a cluster that finds too few servers for it says of a
// consumer are the words for a full store, and not those that it has for a stream (server
// 2.15.2, jetstream_cluster.go:12597).
func (p *patient) placeConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	made, err := p.JetStream.CreateConsumer(ctx, stream, c)
	if apiCode(err) == codeStoreFull {
		return nil, &meantError{errNoPeers, err}
	}
	return made, err
}

// UpdateConsumer is that of JetStream.
func (p *patient) UpdateConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	return repeated(ctx, p, func(ctx context.Context) (jetstream.Consumer, error) {
		return p.JetStream.UpdateConsumer(ctx, stream, c)
	})
}

// DeleteConsumer is that of JetStream. To its callers one that is not there is no error. It
// is not repeated for long: somebody may have made it anew.
func (p *patient) DeleteConsumer(ctx context.Context, stream, name string) error {
	ctx, cancel := context.WithTimeout(ctx, p.most)
	defer cancel()
	_, err := repeated(ctx, p, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.JetStream.DeleteConsumer(ctx, stream, name)
	})
	return err
}

// PauseConsumer is that of JetStream.
func (p *patient) PauseConsumer(ctx context.Context, stream, name string, until time.Time) (*jetstream.ConsumerPauseResponse, error) {
	return repeated(ctx, p, func(ctx context.Context) (*jetstream.ConsumerPauseResponse, error) {
		return p.JetStream.PauseConsumer(ctx, stream, name, until)
	})
}

// KeyValue is that of JetStream.
func (p *patient) KeyValue(ctx context.Context, bucket string) (jetstream.KeyValue, error) {
	return asked(ctx, p, func(ctx context.Context) (jetstream.KeyValue, error) { return p.JetStream.KeyValue(ctx, bucket) })
}
