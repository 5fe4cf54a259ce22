package adapter

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// lostLeader is a server whose answer to the first changes of a stream is lost, or which has
// lost the changes themselves.
type lostLeader struct {
	jetstream.JetStream

	cluster  string // its name; "": it is a single server
	silent   int    // so many changes are not answered
	done     bool   // the first one is
	late     bool   // and only behind the question whether it is
	made     int64  // when the stream was, in seconds; 0: there is none
	anew     int64  // when somebody makes it once more, behind its deletion; 0: nobody does
	mute     bool   // nobody tells how the stream is
	changes  int
	describe string
}

type streamMade struct {
	jetstream.Stream

	info *jetstream.StreamInfo
}

func (streamMade) Purge(context.Context, ...jetstream.StreamPurgeOpt) error { return nil }

func (s streamMade) CachedInfo() *jetstream.StreamInfo { return s.info }

func (l *lostLeader) info() *jetstream.StreamInfo {
	c := jetstream.StreamConfig{Name: "S", Description: l.describe, Metadata: map[string]string{"_nats.ver": "2"}}
	return &jetstream.StreamInfo{Config: c, Created: time.Unix(l.made, 0), Cluster: &jetstream.ClusterInfo{Name: l.cluster, Leader: l.cluster}}
}

func (l *lostLeader) Stream(ctx context.Context, _ string) (jetstream.Stream, error) {
	if l.mute {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if l.made == 0 {
		return nil, jetstream.ErrStreamNotFound
	}
	s := streamMade{info: l.info()}
	if l.late && l.changes > 0 {
		l.made = l.anew
	}
	return s, nil
}

// answer is that to a change, which is made with it.
func (l *lostLeader) answer(ctx context.Context, change func()) error {
	l.changes++
	if l.changes == 1 && l.done && !l.late {
		change()
	}
	if l.changes <= l.silent {
		<-ctx.Done()
		return ctx.Err()
	}
	if l.made == 0 {
		return jetstream.ErrStreamNotFound
	}
	change()
	return nil
}

func (l *lostLeader) DeleteStream(ctx context.Context, _ string) error {
	return l.answer(ctx, func() { l.made = l.anew })
}

func (l *lostLeader) UpdateStream(ctx context.Context, c jetstream.StreamConfig) (jetstream.Stream, error) {
	return streamMade{info: l.info()}, l.answer(ctx, func() { l.describe = c.Description })
}

func TestDeletionIsRepeated(t *testing.T) {
	for what, c := range map[string]struct {
		js      lostLeader
		changes int
		left    int64
		failed  bool
	}{
		"answered":                          {lostLeader{cluster: "C", made: 1}, 1, 0, false},
		"not there":                         {lostLeader{cluster: "C"}, 0, 0, true},
		"lost":                              {lostLeader{cluster: "C", made: 1, silent: 1}, 2, 0, false},
		"done without an answer":            {lostLeader{cluster: "C", made: 1, silent: 1, done: true}, 2, 0, false},
		"done behind the question":          {lostLeader{cluster: "C", made: 1, silent: 1, done: true, late: true}, 2, 0, false},
		"done, and the next is there":       {lostLeader{cluster: "C", made: 1, silent: 1, done: true, anew: 2}, 1, 2, false},
		"never answered":                    {lostLeader{cluster: "C", made: 1, silent: 1000}, 2, 1, true},
		"never answered by a single server": {lostLeader{made: 1, silent: 1000}, 1, 1, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				js, began := c.js, time.Now()
				err := (&patient{JetStream: &js, most: 8 * time.Second}).DeleteStream(ctx, "S")
				if (err != nil) != c.failed || js.changes != c.changes || js.made != c.left || time.Since(began) > 10*time.Second {
					t.Errorf("%v after %d requests and %v; there is the one of %d", err, js.changes, time.Since(began), js.made)
				}
			})
		})
	}
}

func TestChangeIsRepeated(t *testing.T) {
	for what, c := range map[string]struct {
		js      lostLeader
		changes int
		failed  bool
	}{
		"answered":                {lostLeader{cluster: "C", made: 1}, 1, false},
		"lost":                    {lostLeader{cluster: "C", made: 1, silent: 2}, 3, false},
		"never answered":          {lostLeader{cluster: "C", made: 1, silent: 1000}, 5, true},
		"done without an answer":  {lostLeader{cluster: "C", made: 1, silent: 1000, done: true}, 1, false},
		"lost by a single server": {lostLeader{made: 1, silent: 1}, 1, true},
		"deleted":                 {lostLeader{cluster: "C"}, 1, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				js, began := c.js, time.Now()
				_, err := (&patient{JetStream: &js, most: time.Minute}).change(t.Context(), js.info(), jetstream.StreamConfig{Name: "S", Description: "changed"})
				if (err != nil) != c.failed || js.changes != c.changes || !c.failed && js.describe != "changed" || time.Since(began) > time.Minute {
					t.Errorf("%v after %d requests and %v; described %q", err, js.changes, time.Since(began), js.describe)
				}
			})
		})
	}
}

// The look at the stream leaves time to ask for the change again.
func TestChangeIsRepeatedBehindALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		js := lostLeader{cluster: "C", made: 1, silent: 1, mute: true}
		_, err := (&patient{JetStream: &js, most: 3 * time.Second}).change(t.Context(), js.info(), jetstream.StreamConfig{Name: "S", Description: "changed"})
		if err != nil || js.changes != 2 || js.describe != "changed" {
			t.Errorf("%v after %d requests; described %q", err, js.changes, js.describe)
		}
	})
}

// starting is a cluster in which a server that has just come up answers first, so many times:
// it knows what a durable is to be, and nothing of where it is, and of a stream what it has itself.
type starting struct {
	jetstream.JetStream

	hollow, calls int
}

type consumerSeen struct {
	jetstream.Consumer

	info jetstream.ConsumerInfo
}

func (c consumerSeen) CachedInfo() *jetstream.ConsumerInfo { return &c.info }

func (s *starting) Consumer(context.Context, string, string) (jetstream.Consumer, error) {
	if s.calls++; s.calls <= s.hollow {
		return consumerSeen{}, nil
	}
	return consumerSeen{info: jetstream.ConsumerInfo{NumAckPending: 7, Cluster: &jetstream.ClusterInfo{}}}, nil
}

func (s *starting) Stream(context.Context, string) (jetstream.Stream, error) {
	info := &jetstream.StreamInfo{Config: jetstream.StreamConfig{Name: "S", Replicas: 3}, Cluster: &jetstream.ClusterInfo{}}
	if s.calls++; s.calls > s.hollow {
		info.State.LastSeq, info.Cluster.Leader = 7, "n1"
	}
	return streamMade{info: info}, nil
}

// behindLeader is a cluster whose leader, when it is asked first, so many times, has not done yet
// what was agreed on before.
type behindLeader struct {
	jetstream.JetStream

	behind, calls int
}

func (b *behindLeader) Stream(context.Context, string) (jetstream.Stream, error) {
	if b.calls++; b.calls <= b.behind {
		return nil, jetstream.ErrStreamNotFound
	}
	return streamMade{info: &jetstream.StreamInfo{}}, nil
}

func (b *behindLeader) StreamNameBySubject(context.Context, string) (string, error) {
	if b.calls++; b.calls <= b.behind {
		return "", jetstream.ErrStreamNotFound
	}
	return "S", nil
}

// What a cluster does not have it is asked for twice; a server that is alone, once.
func TestAbsentIsSaidTwice(t *testing.T) {
	for what, look := range map[string]func(context.Context, *patient) error{
		"stream":  func(ctx context.Context, p *patient) error { _, err := p.Stream(ctx, "S"); return err },
		"subject": func(ctx context.Context, p *patient) error { _, err := p.StreamNameBySubject(ctx, "s"); return err },
	} {
		for _, c := range []struct {
			elects        bool
			behind, calls int
			err           error
		}{
			{true, 0, 1, nil},
			{true, 1, 2, nil},
			{true, 9, 2, jetstream.ErrStreamNotFound},
			{false, 1, 1, jetstream.ErrStreamNotFound},
		} {
			synctest.Test(t, func(t *testing.T) {
				js := &behindLeader{behind: c.behind}
				err := look(t.Context(), &patient{JetStream: js, most: time.Minute, elects: c.elects})
				if !errors.Is(err, c.err) || js.calls != c.calls {
					t.Errorf("%s, %+v: %v after %d questions", what, c, err, js.calls)
				}
			})
		}
	}
}

func TestEndIsNotTakenFromHeadless(t *testing.T) {
	bus, _, js := internalBus(t)
	defer func(was jetstream.JetStream) { bus.js.JetStream = was }(js)
	s := &starting{JetStream: js, hollow: 2}
	bus.js.JetStream = s
	if info, err := bus.streamInfo(t.Context(), "S"); err != nil || info.State.LastSeq != 7 {
		t.Errorf("%+v, %v after %d questions, want the end that a leader knows, 7", info, err, s.calls)
	}
	s.calls = 0
	if there, err := bus.js.Stream(t.Context(), "S"); err != nil || there.CachedInfo().State.LastSeq != 7 {
		t.Errorf("%v after %d questions, want the end that a leader knows, 7", err, s.calls)
	}
}

func TestHollowAnswerIsNone(t *testing.T) {
	bus, _, js := internalBus(t)
	defer func(was jetstream.JetStream) { bus.js.JetStream = was }(js)
	for elects, want := range map[bool]int{false: 0, true: 7} {
		s := &starting{JetStream: js, hollow: 2}
		bus.js.JetStream = s
		c, err := bus.consumer(t.Context(), &topic{stream: "S", elects: elects}, "c")
		if err != nil || c.CachedInfo().NumAckPending != want {
			t.Errorf("where leaders are elected %v: %+v, %v after %d questions, want %d held", elects, c, err, s.calls, want)
		}
	}
}

// While a cluster elects, nobody can say where a topic goes on: it is asked again, and what
// is not there is told from what nobody answers.
func TestFirstFromInElection(t *testing.T) {
	const electing = `{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`
	for what, c := range map[string]struct {
		answers []string
		want    uint64
		fails   error
	}{
		"at once":          {answers: []string{`{"message":{"subject":"d.a","seq":5}}`}, want: 5},
		"after elections":  {answers: []string{electing, electing, `{"message":{"subject":"d.a","seq":5}}`}, want: 5},
		"none":             {answers: []string{electing, `{"error":{"code":404,"err_code":10037,"description":"no message found"}}`}},
		"no stream either": {answers: []string{electing, `{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`}, fails: jetbus.ErrNoTopic},
	} {
		t.Run(what, func(t *testing.T) {
			bus, nc, _ := internalBus(t)
			left := c.answers
			if _, err := nc.Subscribe("fake.STREAM.MSG.GET.D", func(m *nats.Msg) {
				text := left[0]
				left = left[min(1, len(left)-1):]
				if err := m.Respond([]byte(text)); err != nil {
					t.Error(err)
				}
			}); err != nil {
				t.Fatal(err)
			}
			bus.api = "fake."
			seq, err := bus.firstFrom(t.Context(), &topic{stream: "D", filter: "d.>"}, 1)
			if seq != c.want || !errors.Is(err, c.fails) {
				t.Errorf("%d, %v; want %d, %v", seq, err, c.want, c.fails)
			}
		})
	}
}
