package topics_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

func TestPublishThroughRestartAndKill(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		var wg sync.WaitGroup
		stop := make(chan struct{})
		var stored []string
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				e := adaptertest.Event("a", fmt.Sprint(i))
				if _, err := r.Bus.Publish(r.Context(), e); err != nil {
					r.Errorf("event %d: %v", i, err)
					return
				}
				stored = append(stored, e.Key)
				time.Sleep(time.Millisecond)
			}
		})
		for range 2 {
			time.Sleep(50 * time.Millisecond)
			r.OK(r.Broker.Restart(r.Context()))
			time.Sleep(50 * time.Millisecond)
			r.OK(r.Broker.Kill(r.Context()))
			time.Sleep(time.Second)
			r.OK(r.Broker.Restart(r.Context()))
		}
		close(stop)
		wg.Wait()
		r.Equal("stored", r.Stored("a"), strings.Join(stored, " "))
	})
}

// With the broker away, Publish waits as long as its context allows; what was
// never sent is known not to be stored.
func TestPublishBrokerAway(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.OK(r.Broker.Kill(r.Context()))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		_, err := r.Bus.Publish(ctx, adaptertest.Event("a", "1"))
		r.WantErr(err, jetbus.ErrUnavailable, context.DeadlineExceeded)
		r.Equal("waited", time.Since(began), 3*time.Second)
		p, ok := errors.AsType[*jetbus.PublishError](err)
		if !ok || p.Stored != jetbus.StoredNo || p.Event.ID == "" {
			r.Errorf("got %+v of %v", p, err)
		}
		began = time.Now() // without a deadline Config.Timeout counts
		_, err = r.Bus.Publish(r.Context(), adaptertest.Event("a", "1"))
		r.WantErr(err, jetbus.ErrUnavailable)
		r.Equal("waited", time.Since(began), 10*time.Second)

		canceled, cancel := context.WithCancel(r.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = r.Bus.Publish(canceled, adaptertest.Event("a", "1"))
		r.WantErr(err, context.Canceled)
		_, err = r.Bus.Publish(canceled, adaptertest.Event("a", "1"))
		r.WantErr(err, context.Canceled)
		r.OK(r.Broker.Restart(r.Context()))
		r.Publish("a", "2")
		r.Equal("stored", r.Stored("a"), "2")
	})
}

// A conditional publish that is repeated under its id is a duplicate, as long as nothing came behind it.
func TestConditionalPublishAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		last := r.Publish("a", "k")[0].Seq
		e := adaptertest.Event("a", "k")
		e.ID = "once"
		first := must(r.Bus.Publish(r.Context(), e, jetbus.PublishOptions{ExpectLastSeq: &last}))(r.T)
		again := must(r.Bus.Publish(r.Context(), e, jetbus.PublishOptions{ExpectLastSeq: &last}))(r.T)
		if first.Duplicate || !again.Duplicate || again.Event.Seq != first.Event.Seq {
			r.Errorf("stored as %+v, then as %+v", first, again)
		}
		r.Publish("a", "k")
		_, err := r.Bus.Publish(r.Context(), e, jetbus.PublishOptions{ExpectLastSeq: &last})
		r.WantErr(err, jetbus.ErrWrongSequence)
		r.Equal("text", err.Error(), `publish a once (stored: no): key "k": wrong last sequence: it is 3, not 1`)
	})
}

// An event that was stored while its answer got lost is stored once, and is no
// duplicate; conditional or not.
func TestPublishAnswerLost(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		first := r.Publish("a", "k")[0]
		w, b := r.OpenCabled(adapter.Config{})
		must(b.TopicInfo(r.Context(), "a"))(r.T)
		for _, o := range []jetbus.PublishOptions{{}, {ExpectLastSeq: new(first.Seq + 1)}} {
			w.Deaf.Store(true)
			time.AfterFunc(100*time.Millisecond, w.Cut)
			receipt, err := b.Publish(r.Context(), adaptertest.Event("a", "k"), o)
			r.OK(err)
			if receipt.Duplicate {
				r.Error("its own first try counts as a duplicate")
			}
		}
		r.Equal("stored", r.Stored("a"), "k k k")

		// One that was refused is refused, however often it was tried.
		w.Deaf.Store(true)
		time.AfterFunc(100*time.Millisecond, w.Cut)
		_, err := b.Publish(r.Context(), adaptertest.Event("a", "k"), jetbus.PublishOptions{ExpectLastSeq: &first.Seq})
		r.WantErr(err, jetbus.ErrWrongSequence)

		// When nobody ever answers, the error says that it may be stored.
		w.Deaf.Store(true)
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		_, err = b.Publish(ctx, adaptertest.Event("a", "k"))
		r.WantErr(err, jetbus.ErrUnavailable)
		if p, ok := errors.AsType[*jetbus.PublishError](err); !ok || p.Stored != jetbus.StoredUnknown {
			r.Errorf("got %+v of %v", p, err)
		} else {
			w.Cut()
			synctest.Wait()
			if again := must(b.Publish(r.Context(), p.Event))(r.T); !again.Duplicate {
				r.Error("the same event again was stored again")
			}
		}
		r.Equal("stored", r.Stored("a"), "k k k k")
	})
}

// An event that was stored by an earlier call is a duplicate, also where the answer that says so
// gets lost and the next one would be the same for one's own first try; conditional or not.
func TestDuplicateAnswerLost(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		earlier := must(r.Bus.Publish(r.Context(), adaptertest.Event("a", "k")))(r.T).Event
		w, b := r.OpenCabled(adapter.Config{})
		must(b.TopicInfo(r.Context(), "a"))(r.T)
		for _, o := range []jetbus.PublishOptions{{}, {ExpectLastSeq: new(uint64)}} {
			time.Sleep(time.Second) // by which it is another event
			w.Deaf.Store(true)
			time.AfterFunc(100*time.Millisecond, w.Cut)
			again := jetbus.Event{ID: earlier.ID, Topic: "a", Key: "k", Payload: earlier.Payload}
			receipt := must(b.Publish(r.Context(), again, o))(r.T)
			if !receipt.Duplicate || receipt.Event.Seq != earlier.Seq {
				r.Errorf("stored as %d, duplicate %v", receipt.Event.Seq, receipt.Duplicate)
			}
		}
		r.Equal("stored", r.Stored("a"), "k")
	})
}

// An event that may be stored is sent again only as long as the topic knows its id: one
// Publish stores one event, and says where it cannot know.
func TestPublishPastDuplicateWindow(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true, DuplicateWindow: 500 * time.Millisecond})
		first := r.Publish("a", "k")[0]
		w, b := r.OpenCabled(adapter.Config{})
		must(b.TopicInfo(r.Context(), "a"))(r.T)
		loseAnswers := func(lost time.Duration) {
			w.Deaf.Store(true)
			time.AfterFunc(lost, w.Cut)
		}
		loseAnswers(2 * time.Second)
		_, err := b.Publish(r.Context(), adaptertest.Event("a", "k"))
		r.WantErr(err, jetbus.ErrUnavailable)
		if p, ok := errors.AsType[*jetbus.PublishError](err); !ok || p.Stored != jetbus.StoredUnknown {
			r.Errorf("got %+v of %v", p, err)
		}
		r.Equal("stored", r.Stored("a"), "k k")

		loseAnswers(100 * time.Millisecond) // the id is known
		must(b.Publish(r.Context(), adaptertest.Event("a", "k")))(r.T)
		r.Equal("stored within the window", r.Stored("a"), "k k k")

		loseAnswers(2 * time.Second) // the condition keeps it from being stored twice
		last := first.Seq + 2
		receipt := must(b.Publish(r.Context(), adaptertest.Event("a", "k"), jetbus.PublishOptions{ExpectLastSeq: &last}))(r.T)
		r.Equal("position", receipt.Event.Seq, last+1)
		r.Equal("stored on condition", r.Stored("a"), "k k k k")
	})
}

// What was surely not stored is sent for as long as the caller waits.
func TestPublishUnsentPastDuplicateWindow(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", DuplicateWindow: 500 * time.Millisecond})
		r.OK(r.Broker.Kill(r.Context()))
		synctest.Wait()
		time.AfterFunc(3*time.Second, func() { r.OK(r.Broker.Restart(r.Context())) })
		r.Publish("a", "1")
		r.Equal("stored", r.Stored("a"), "1")
	})
}

// A server that swallows a request without a word is asked again.
func TestPublishSwallowed(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		w, b := r.OpenCabled(adapter.Config{})
		must(b.Publish(r.Context(), adaptertest.Event("a", "0")))(r.T)
		w.Deaf.Store(true)
		time.AfterFunc(time.Second, func() { w.Deaf.Store(false) })
		receipt := must(b.Publish(r.Context(), adaptertest.Event("a", "1")))(r.T)
		r.Equal("duplicate", receipt.Duplicate, false)
		r.Equal("stored", r.Stored("a"), "0 1")
	})
}

// Of writers that build on what they read, none overwrites another.
func TestOptimisticConcurrency(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		const writers, each = 12, 5
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				for done := 0; done < each; {
					latest, err := r.Bus.LatestByKey(r.Context(), "a", "counter")
					if err != nil {
						r.Error(err)
						return
					}
					last, count := latest["counter"], 0
					if last.Seq > 0 {
						if _, err := fmt.Sscan(string(last.Payload), &count); err != nil {
							r.Error(err)
							return
						}
					}
					_, err = r.Bus.Publish(r.Context(), jetbus.Event{Topic: "a", Key: "counter", Payload: fmt.Append(nil, count+1)}, jetbus.PublishOptions{ExpectLastSeq: &last.Seq})
					switch p, _ := errors.AsType[*jetbus.PublishError](err); {
					case err == nil:
						done++
					case !errors.Is(err, jetbus.ErrWrongSequence) || p == nil || p.Stored != jetbus.StoredNo:
						r.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		latest := must(r.Bus.LatestByKey(r.Context(), "a", "counter"))(r.T)
		r.Equal("counter", string(latest["counter"].Payload), writers*each)
		r.Equal("messages", r.Stream("EV_A").State.Msgs, writers*each)
	})
}

func TestPublishOptionsRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "plain"})
		r.Ensure(jetbus.TopicConfig{Name: "rich", KeyInSubject: true, Delays: true})
		soon := time.Now().Add(time.Hour)
		for _, c := range []struct {
			topic string
			o     []jetbus.PublishOptions
			want  error
		}{
			{"plain", []jetbus.PublishOptions{{ExpectLastSeq: new(uint64(0))}}, jetbus.ErrNeedsKeySubject},
			{"plain", []jetbus.PublishOptions{{DeliverAt: soon}}, jetbus.ErrUnsupported},
			{"plain", []jetbus.PublishOptions{{TTL: time.Millisecond}}, jetbus.ErrInvalidOption},
			{"rich", []jetbus.PublishOptions{{DeliverAt: soon, ExpectLastSeq: new(uint64(0))}}, jetbus.ErrInvalidOption},
			{"rich", []jetbus.PublishOptions{{DeliverAt: soon.AddDate(2, 0, 0)}}, jetbus.ErrInvalidOption},
			{"rich", []jetbus.PublishOptions{{}, {}}, jetbus.ErrInvalidOption},
			{"none", nil, jetbus.ErrNoTopic},
			{"No", nil, jetbus.ErrInvalidTopic},
		} {
			_, err := r.Bus.Publish(r.Context(), adaptertest.Event(c.topic, "k"), c.o...)
			r.WantErr(err, c.want)
		}
		for _, e := range []jetbus.Event{
			{Topic: "plain", ID: "a\nb"},
			{Topic: "plain", Key: strings.Repeat("k", 257)},
			{Topic: "plain", Tags: []string{""}},
		} {
			_, err := r.Bus.Publish(r.Context(), e)
			r.WantErr(err, jetbus.ErrInvalidEvent)
		}
		_, err := r.Bus.Publish(r.Context(), jetbus.Event{Topic: "plain", Headers: map[string]string{"Nats-TTL": "1s"}})
		r.WantErr(err, jetbus.ErrInvalidHeader)
		r.Equal("stored", r.Stored("plain")+r.Stored("rich"), "")
	})
}

func TestTTL(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Retention: -1})
		must(r.Bus.Publish(r.Context(), adaptertest.Event("a", "short"), jetbus.PublishOptions{TTL: 10 * time.Second}))(r.T)
		must(r.Bus.Publish(r.Context(), adaptertest.Event("a", "long"), jetbus.PublishOptions{TTL: time.Hour}))(r.T)
		r.Publish("a", "kept")
		time.Sleep(8 * time.Second)
		r.Equal("before", r.Stored("a"), "short long kept")
		time.Sleep(4 * time.Second)
		r.Equal("after", r.Stored("a"), "long kept")
		time.Sleep(time.Hour)
		r.Equal("at last", r.Stored("a"), "kept")
	})
}

func TestDeliverAt(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Delays: true, KeyInSubject: true, Retention: -1})
		at := time.Now().Add(10 * time.Minute)
		e := adaptertest.Event("a", "späte.r")
		e.ID, e.Headers = "id 1", map[string]string{"x-h": "v"}
		receipt := must(r.Bus.Publish(r.Context(), e, jetbus.PublishOptions{DeliverAt: at}))(r.T)
		if !receipt.Scheduled || receipt.Duplicate || receipt.Event.Seq != 0 {
			r.Errorf("receipt %+v", receipt)
		}
		again := must(r.Bus.Publish(r.Context(), e, jetbus.PublishOptions{DeliverAt: at}))(r.T)
		if !again.Scheduled || !again.Duplicate || again.Event.Seq != 0 {
			r.Errorf("receipt of the second %+v", again)
		}
		got := make(chan *jetbus.Delivery, 2)
		sub := must(r.Bus.Subscribe(r.Context(), "a", "g", func(_ context.Context, d *jetbus.Delivery) error {
			got <- d
			return nil
		}, jetbus.SubscribeOptions{From: jetbus.Earliest()}))(r.T)
		time.Sleep(10*time.Minute - time.Second)
		if info := must(r.Bus.TopicInfo(r.Context(), "a"))(r.T); len(got) != 0 || info.Events != 0 || r.Stored("a") != "" {
			r.Errorf("%d events delivered, %d in the topic before their time", len(got), info.Events)
		}
		d := <-got
		if late := time.Since(at); late < 0 || late > 2*time.Second {
			r.Errorf("delivered %v after its time", late)
		}
		if d.ID != e.ID || d.Key != e.Key || d.Headers["x-h"] != "v" || len(d.Headers) != 1 || string(d.Payload) != string(e.Payload) || !d.Time.Equal(receipt.Event.Time) {
			r.Errorf("got %+v", d.Event)
		}
		time.Sleep(time.Hour)
		r.Equal("further deliveries", len(got), 0)
		r.Equal("stored", r.Stored("a"), e.Key)
		// A time that has passed is now.
		now := must(r.Bus.Publish(r.Context(), adaptertest.Event("a", "now"), jetbus.PublishOptions{DeliverAt: at}))(r.T)
		if now.Scheduled || now.Event.Seq == 0 {
			r.Errorf("receipt %+v", now)
		}
		r.Equal("at once", (<-got).Key, "now")
		r.OK(sub.Stop(r.Context()))
	})
}

// What waits for its time does not age meanwhile: it begins to when it is in its topic.
func TestDeliverAtBeyondRetention(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Delays: true, Retention: time.Hour, Storage: jetbus.MemoryStorage})
		for key, ttl := range map[string]time.Duration{"plain": 0, "short": time.Minute} {
			must(r.Bus.Publish(r.Context(), adaptertest.Event("a", key), jetbus.PublishOptions{DeliverAt: time.Now().Add(3 * time.Hour), TTL: ttl}))(r.T)
		}
		time.Sleep(3*time.Hour - time.Minute)
		r.Equal("before its time", r.Stored("a"), "")
		time.Sleep(time.Minute + 10*time.Second)
		r.Equal("in its time", len(strings.Fields(r.Stored("a"))), 2)
		time.Sleep(50 * time.Minute)
		r.Equal("within the retention", r.Stored("a"), "plain")
		time.Sleep(11 * time.Minute)
		r.Equal("behind it", r.Stored("a"), "")
		r.Equal("messages", r.Stream("EV_A").State.Msgs, 0)
	})
}

func TestDeliverAtWithTTLSurvivesRestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Delays: true, Retention: -1})
		must(r.Bus.Publish(r.Context(), adaptertest.Event("a", "k"), jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Minute), TTL: time.Minute}))(r.T)
		r.OK(r.Broker.Restart(r.Context()))
		time.Sleep(65 * time.Second)
		r.Equal("in its time", r.Stored("a"), "k")
		time.Sleep(65 * time.Second)
		r.Equal("after its time", r.Stored("a"), "")
	})
}

func TestTopicFull(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", MaxEvents: 2, Discard: jetbus.DiscardNew})
		r.Ensure(jetbus.TopicConfig{Name: "b", MaxBytes: 1000, Discard: jetbus.DiscardNew})
		r.Ensure(jetbus.TopicConfig{Name: "old", MaxEvents: 2})
		r.Publish("a", "1", "2")
		for topic, e := range map[string]jetbus.Event{"a": adaptertest.Event("a", "3"), "b": {Topic: "b", Payload: make([]byte, 2000)}} {
			began := time.Now()
			_, err := r.Bus.Publish(r.Context(), e)
			r.WantErr(err, jetbus.ErrTopicFull)
			if p, ok := errors.AsType[*jetbus.PublishError](err); !ok || p.Stored != jetbus.StoredNo || time.Since(began) > 0 {
				r.Errorf("%s: got %+v of %v after %v", topic, p, err, time.Since(began))
			}
		}
		r.Publish("old", "1", "2", "3")
		r.Equal("stored", r.Stored("old"), "2 3")
	})
}

// The broker's limit is for headers and payload together. One byte more is
// refused here: the server would close the connection.
func TestPayloadLimit(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		r := &rig{adaptertest.On(t, bustest.Start(t, embedded.Config{MaxPayload: 8 << 10}))}
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		e := jetbus.Event{Topic: "a", ID: "id", SID: "s", Time: time.Now(), Headers: map[string]string{"x-a": "b"}}
		lost := r.NC.Stats().Reconnects
		size, tooLarge := 0, 0
		for step := 4 << 10; step > 0; step /= 2 {
			e.ID, e.Payload = fmt.Sprintf("id%6d", size+step), make([]byte, size+step)
			switch _, err := r.Bus.Publish(t.Context(), e); {
			case err == nil:
				size += step
			case errors.Is(err, jetbus.ErrPayloadTooLarge):
				tooLarge++
			default:
				t.Fatal(err)
			}
		}
		if size < 7<<10 || tooLarge == 0 {
			t.Errorf("the largest payload has %d bytes", size)
		}
		r.Equal("reconnects", r.NC.Stats().Reconnects, lost)
		_, err := r.Bus.PublishBatch(t.Context(), []jetbus.Event{adaptertest.Event("a", "k"), {Topic: "a", Payload: make([]byte, 8<<10)}}, jetbus.BatchOptions{})
		r.WantErr(err, jetbus.ErrPayloadTooLarge)
		if got := r.Stored("a"); strings.Contains(got, "k") {
			t.Error("a part of the refused batch is stored")
		}
	})
}

// As many and as long headers as an event may have reach the other side.
func TestHeaderLimits(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		e := adaptertest.Event("a", strings.Repeat("\u00e4", 128))
		e.Headers = map[string]string{}
		for i := range jetbus.MaxHeaders {
			name := fmt.Sprintf("x-%0*d", jetbus.MaxHeaderNameBytes-2, i)
			e.Headers[name] = strings.Repeat("v", 300)
		}
		must(r.Bus.Publish(r.Context(), e))(r.T)
		for got, err := range r.Bus.Scan(r.Context(), "a", jetbus.ScanQuery{}) {
			r.OK(err)
			r.Equal("headers", got.Headers, e.Headers)
			r.Equal("key", got.Key, e.Key)
		}
		e.Headers["x-more"] = ""
		_, err := r.Bus.Publish(r.Context(), e)
		r.WantErr(err, jetbus.ErrInvalidHeader)
		// The server takes 64 KiB of them, of which 4 are for what it adds itself.
		for name := range e.Headers {
			e.Headers[name] = strings.Repeat("v", 2000)
		}
		delete(e.Headers, "x-more")
		_, err = r.Bus.Publish(r.Context(), e)
		r.WantErr(err, jetbus.ErrPayloadTooLarge)
		r.Publish("a", "after") // the connection lives
	})
}

// A refused publish gets no answer; it is known all the same long before any timeout.
func TestPublishDenied(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		s := adaptertest.DenyingServer(t, "ev.secret.>")
		root := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("root", "root")), adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, root)
		b := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("a", "a")), adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, b)
		for _, name := range []string{"secret", "open"} {
			must(root.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: name}))(t)
		}
		for name, publish := range map[string]func() error{
			"one": func() error { _, err := b.Publish(t.Context(), adaptertest.Event("secret", "k")); return err },
			"batch": func() error {
				_, err := b.PublishBatch(t.Context(), adaptertest.Numbered("secret", 3), jetbus.BatchOptions{})
				return err
			},
			"atomic": func() error {
				_, err := b.PublishBatch(t.Context(), adaptertest.Numbered("secret", 3), jetbus.BatchOptions{Atomic: true})
				return err
			},
		} {
			began := time.Now()
			err := publish()
			adaptertest.WantErr(t, err, jetbus.ErrDenied)
			if took := time.Since(began); took > time.Second {
				t.Errorf("%s: it took %v", name, took)
			}
			if p, ok := errors.AsType[*jetbus.PublishError](err); !ok || p.Stored != jetbus.StoredNo {
				t.Errorf("%s: %v", name, err)
			}
		}
		must(b.Publish(t.Context(), adaptertest.Event("open", "k")))(t)
		must(b.PublishBatch(t.Context(), adaptertest.Numbered("open", 3), jetbus.BatchOptions{}))(t)
	})
}
