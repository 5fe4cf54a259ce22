package adapter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
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

// streams are those of topics, as they are declared at the server, and those that the bus
// keeps for them: of dead letters and of retries.
type streams struct {
	*durables

	kept   atomic.Int64          // how many replicas the bus's own streams have if they can; 0: whether they exist is not known
	onKept func(context.Context) // called when they exist; see Bus.watchAdvisories
}

// keepStreams makes sure that the bus's own streams exist, for a topic of so many replicas.
func (st *streams) keepStreams(ctx context.Context, replicas int) error {
	replicas = st.needReplicas(replicas)
	if int(st.kept.Load()) >= replicas {
		return nil
	}
	for _, config := range []jetstream.StreamConfig{st.deadConfig(), st.retryConfig()} {
		if err := st.keepStream(ctx, config); err != nil {
			return err
		}
	}
	if err := st.keepAttempts(ctx); err != nil {
		return err
	}
	st.widenAll(ctx, replicas)
	st.kept.Store(int64(replicas))
	if !st.cfg.NoAdvisories {
		st.onKept(ctx)
	}
	return nil
}

// joinRetries is joinGroup for a group's retries. Their stream may have gone since
// this bus made sure of it: one in memory goes with its broker.
func (st *streams) joinRetries(ctx context.Context, rt *topic, group string, set groupSettings) (*jetstream.ConsumerInfo, error) {
	for again := false; ; again = true {
		if err := st.keepStreams(ctx, rt.config.Replicas); err != nil {
			return nil, err
		}
		info, err := st.joinGroup(ctx, rt, group, jetbus.Earliest(), set)
		if again || !errors.Is(err, jetbus.ErrNoTopic) {
			return info, err
		}
		st.lostKept()
	}
}

// joinOne is joinGroup for a topic or its retries.
func (st *streams) joinOne(ctx context.Context, t *topic, group string, from jetbus.Start, set groupSettings) (*jetstream.ConsumerInfo, error) {
	if t.retries {
		return st.joinRetries(ctx, t, group, set)
	}
	return st.joinGroup(ctx, t, group, from, set)
}

// lostKept notes that one of the bus's own streams was seen to be gone.
func (st *streams) lostKept() {
	st.kept.Store(0)
}

func (srv *server) keepStream(ctx context.Context, config jetstream.StreamConfig) error {
	op := "stream " + config.Name
	if config.Discard == jetstream.DiscardNew {
		op += " (Config.DeadLetterBytes)"
	}
	ctx, cancel := srv.bound(ctx)
	defer cancel()
	_, err := srv.streamInfo(ctx, config.Name)
	if err == nil {
		return nil
	}
	if apiCode(err) != jetstream.JSErrCodeStreamNotFound {
		return srv.translate(op, srv.api+"STREAM.INFO."+config.Name, err)
	}
	ctx, release := srv.guard(ctx, srv.api+"STREAM.CREATE."+config.Name)
	defer release()
	if _, err = srv.js.CreateStream(ctx, config); apiCode(err) == jetstream.JSErrCodeStreamNameInUse {
		return nil // somebody was faster; theirs stands
	}
	return withoutCluster(srv.translate(op, srv.api+"STREAM.CREATE."+config.Name, err))
}

// keptConfig is what both streams have in common.
func (st *streams) keptConfig(name, description string) jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name: ownStream(st.cfg.Prefix, name), Description: description, Retention: jetstream.LimitsPolicy,
		MaxConsumers: maxConsumers, MaxMsgsPerSubject: -1, MaxMsgSize: -1, MaxMsgs: -1, MaxBytes: -1,
		Replicas: st.needReplicas(0), Storage: jetstream.FileStorage, AllowDirect: true, AllowMsgTTL: true,
	}
	if st.cfg.Storage == jetbus.MemoryStorage {
		config.Storage = jetstream.MemoryStorage
	}
	return config
}

// deadConfig refuses new dead letters when it is full: their events stay where
// they are and are tried again.
func (st *streams) deadConfig() jetstream.StreamConfig {
	config := st.keptConfig(deadStream, "JetBus: dead letters")
	config.Subjects = []string{st.cfg.Prefix + "." + deadStream + ".>"}
	config.MaxAge, config.MaxBytes, config.Discard = st.cfg.DeadLetterRetention, st.cfg.DeadLetterBytes, jetstream.DiscardNew
	return config
}

// retryConfig has no limit of bytes: what waits here is nowhere else.
func (st *streams) retryConfig() jetstream.StreamConfig {
	config := st.keptConfig(retryStream, "JetBus: retries")
	config.Subjects = []string{st.cfg.Prefix + "." + retryToken + ".>"}
	config.MaxAge, config.MaxMsgsPerSubject = retryTTL, 1 // a retry takes the place of the one before
	if st.level >= levelBatches {
		config.AllowMsgSchedules, config.AllowRollup = true, true
	}
	return config
}

// deadTopic is the topic of the dead letters of another. It exists when that
// does, or when there are some. If create is set, deadTopic creates a missing stream of dead letters.
func (st *streams) deadTopic(ctx context.Context, name string, create bool) (*topic, *jetstream.StreamInfo, error) {
	stream := ownStream(st.cfg.Prefix, deadStream)
	info, err := st.streamInfo(ctx, stream)
	if apiCode(err) == jetstream.JSErrCodeStreamNotFound && create {
		if err = st.keepStreams(ctx, 0); err == nil {
			info, err = st.streamInfo(ctx, stream)
		}
	}
	if err != nil {
		return nil, nil, st.translate("", st.api+"STREAM.INFO."+stream, err)
	}
	t := &topic{config: settingsOf(&info.Config), stream: stream, filter: topicFilter(st.cfg.Prefix, name), kept: true}
	t.config.Name, t.config.KeyInSubject, t.config.Stream = name, true, stream
	if _, err := st.findStream(ctx, strings.TrimPrefix(name, "dlq.")); err != nil && !errors.Is(err, jetbus.ErrNoTopic) {
		return nil, nil, err
	} else if err != nil && !st.isAdopted(strings.TrimPrefix(name, "dlq.")) {
		some := false
		err := st.directGet(ctx, stream, directRequest{Seq: 1, NextBySubject: t.filter, Batch: 1}, func(*nats.Msg, uint64, time.Time) bool { some = true; return false })
		if err != nil {
			return nil, nil, st.translate("", st.api+"DIRECT.GET."+stream, err)
		}
		if !some {
			return nil, nil, &jetbus.RemedyError{Err: fmt.Errorf("%w, and no dead letters of it", jetbus.ErrNoTopic), See: "ListTopics"}
		}
	}
	st.put(t)
	return t, info, nil
}

// retryTopic is what the retries of a group look like to the parts that deliver
// events: the same topic in another place.
func (srv *server) retryTopic(t *topic, group string) *topic {
	out := *t
	out.stream, out.filter = ownStream(srv.cfg.Prefix, retryStream), srv.retrySubject(t.name(), group, t.inPart("*"))
	out.config.KeyInSubject, out.kept, out.retries, out.origin = false, true, true, t
	return &out
}

// retrySubject is where the retry of that name is stored.
func (srv *server) retrySubject(topic, group, name string) string {
	return srv.cfg.Prefix + "." + retryToken + "." + ce.KeyToken(topic) + "." + ce.KeyToken(group) + "." + name
}

// retriesName marks the durable of a group's retries.
const retriesName = "__retries"
