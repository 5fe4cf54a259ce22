package adapter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// Two streams are the bus's own: one for all dead letters, one for the retries of
// all groups. They exist before they are needed: joining a group makes them.
//
//	<prefix>.dlq.<topic>.<key token>                       dead letters of a topic
//	<prefix>.R.<topic token>.<group token>.<name>          retries of a group
//	<prefix>.R.<topic token>.<group token>.S.<name>        the same, waiting for their time
//	<prefix>.R.<topic token>.<group token>.P1.3.<name>     retries of a group in a partition
//
// No topic has a segment in upper case, so that none can be taken for retries.
const (
	deadStream  = "dlq"   // as a topic of that name would have; there can be none
	retryStream = "retry" // the same

	retryToken = "R"
	retryTTL   = 30 * 24 * time.Hour

	memoryDeadBytes = 64 << 20 // the server sets it aside at once
)

// keepStreams makes sure that the bus's own streams exist, for a topic of so many replicas.
func (b *Bus) keepStreams(ctx context.Context, replicas int) error {
	replicas = b.needReplicas(replicas)
	b.mu.Lock()
	kept := b.kept
	b.mu.Unlock()
	if kept >= replicas {
		return nil
	}
	for _, config := range []jetstream.StreamConfig{b.deadConfig(), b.retryConfig()} {
		if err := b.keepStream(ctx, config); err != nil {
			return err
		}
	}
	if err := b.keepAttempts(ctx); err != nil {
		return err
	}
	b.widenAll(ctx, replicas)
	b.mu.Lock()
	b.kept = replicas
	b.mu.Unlock()
	if !b.cfg.NoAdvisories {
		b.watchAdvisories(ctx)
	}
	return nil
}

// joinRetries is joinGroup for a group's retries. Their stream may have gone since
// this bus made sure of it: one in memory goes with its broker.
func (b *Bus) joinRetries(ctx context.Context, rt *topic, group string, set groupSettings) (*jetstream.ConsumerInfo, error) {
	for again := false; ; again = true {
		if err := b.keepStreams(ctx, rt.config.Replicas); err != nil {
			return nil, err
		}
		info, err := b.joinGroup(ctx, rt, group, jetbus.Earliest(), set)
		if again || !errors.Is(err, jetbus.ErrNoTopic) {
			return info, err
		}
		b.lostKept()
	}
}

// joinOne is joinGroup for a topic or its retries.
func (b *Bus) joinOne(ctx context.Context, t *topic, group string, from jetbus.Start, set groupSettings) (*jetstream.ConsumerInfo, error) {
	if t.retries {
		return b.joinRetries(ctx, t, group, set)
	}
	return b.joinGroup(ctx, t, group, from, set)
}

// lostKept notes that one of the bus's own streams was seen to be gone.
func (b *Bus) lostKept() {
	b.mu.Lock()
	b.kept = 0
	b.mu.Unlock()
}

func (b *Bus) keepStream(ctx context.Context, config jetstream.StreamConfig) error {
	op := "stream " + config.Name
	if config.Discard == jetstream.DiscardNew {
		op += " (Config.DeadLetterBytes)"
	}
	_, err := b.streamInfo(ctx, config.Name)
	if err == nil {
		return nil
	}
	if apiCode(err) != jetstream.JSErrCodeStreamNotFound {
		return b.translate(op, b.api+"STREAM.INFO."+config.Name, err)
	}
	ctx, release := b.guard(ctx, b.api+"STREAM.CREATE."+config.Name)
	defer release()
	if _, err = b.js.CreateStream(ctx, config); apiCode(err) == jetstream.JSErrCodeStreamNameInUse {
		return nil // somebody was faster; theirs stands
	}
	return b.translate(op, b.api+"STREAM.CREATE."+config.Name, err)
}

// keptConfig is what both streams have in common.
func (b *Bus) keptConfig(name, description string) jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name: ownStream(b.cfg.Prefix, name), Description: description, Retention: jetstream.LimitsPolicy,
		MaxConsumers: maxConsumers, MaxMsgsPerSubject: -1, MaxMsgSize: -1, MaxMsgs: -1, MaxBytes: -1,
		Replicas: b.needReplicas(0), Storage: jetstream.FileStorage, AllowDirect: true, AllowMsgTTL: true,
	}
	if b.cfg.Storage == jetbus.MemoryStorage {
		config.Storage = jetstream.MemoryStorage
	}
	return config
}

// deadConfig refuses new dead letters when it is full: their events stay where
// they are and are tried again.
func (b *Bus) deadConfig() jetstream.StreamConfig {
	config := b.keptConfig(deadStream, "JetBus: dead letters")
	config.Subjects = []string{b.cfg.Prefix + "." + deadStream + ".>"}
	config.MaxAge, config.MaxBytes, config.Discard = b.cfg.DeadLetterRetention, b.cfg.DeadLetterBytes, jetstream.DiscardNew
	return config
}

// retryConfig has no limit of bytes: what waits here is nowhere else.
func (b *Bus) retryConfig() jetstream.StreamConfig {
	config := b.keptConfig(retryStream, "JetBus: retries")
	config.Subjects = []string{b.cfg.Prefix + "." + retryToken + ".>"}
	config.MaxAge, config.MaxMsgsPerSubject = retryTTL, 1 // a retry takes the place of the one before
	if b.level >= levelBatches {
		config.AllowMsgSchedules, config.AllowRollup = true, true
	}
	return config
}

// deadTopic is the topic of the dead letters of another. It exists when that
// does, or when there are some.
func (b *Bus) deadTopic(ctx context.Context, name string) (*topic, *jetstream.StreamInfo, error) {
	op := "look up topic " + name
	stream := ownStream(b.cfg.Prefix, deadStream)
	info, err := b.streamInfo(ctx, stream)
	if apiCode(err) == jetstream.JSErrCodeStreamNotFound && b.cfg.AutoCreate {
		if err = b.keepStreams(ctx, 0); err == nil {
			info, err = b.streamInfo(ctx, stream)
		}
	}
	if err != nil {
		return nil, nil, b.translate(op, b.api+"STREAM.INFO."+stream, err)
	}
	t := &topic{config: settingsOf(&info.Config), stream: stream, filter: topicFilter(b.cfg.Prefix, name), kept: true}
	t.config.Name, t.config.KeyInSubject, t.config.Stream = name, true, stream
	if _, err := b.findStream(ctx, strings.TrimPrefix(name, "dlq.")); err != nil && !errors.Is(err, jetbus.ErrNoTopic) {
		return nil, nil, err
	} else if err != nil && !b.adoptedHere(strings.TrimPrefix(name, "dlq.")) {
		some := false
		err := b.directGet(ctx, stream, directRequest{Seq: 1, NextBySubject: t.filter, Batch: 1}, func(*nats.Msg, uint64, time.Time) bool { some = true; return false })
		if err != nil {
			return nil, nil, b.translate(op, b.api+"DIRECT.GET."+stream, err)
		}
		if !some {
			return nil, nil, fmt.Errorf("%s: %w, and no dead letters of it", op, jetbus.ErrNoTopic)
		}
	}
	b.mu.Lock()
	b.topics[name] = t
	b.mu.Unlock()
	return t, info, nil
}

// adoptedHere reports whether this bus has adopted a topic.
func (b *Bus) adoptedHere(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[name]
	return t != nil && t.adopted()
}

// retryTopic is what the retries of a group look like to the parts that deliver
// events: the same topic in another place.
func (b *Bus) retryTopic(t *topic, group string) *topic {
	out := *t
	out.stream, out.filter = ownStream(b.cfg.Prefix, retryStream), b.retrySubject(t.name(), group, t.inPart("*"))
	out.config.KeyInSubject, out.kept, out.retries = false, true, true
	return &out
}

// retrySubject is where the retry of that name is stored.
func (b *Bus) retrySubject(topic, group, name string) string {
	return b.cfg.Prefix + "." + retryToken + "." + ce.KeyToken(topic) + "." + ce.KeyToken(group) + "." + name
}

// retriesName marks the durable of a group's retries.
const retriesName = "__retries"
