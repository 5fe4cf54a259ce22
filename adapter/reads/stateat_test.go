package reads_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// at is a state by StateAt, as text.
func (r *rig) at(topic string, t time.Time) string {
	r.Helper()
	s := must(r.Bus.StateAt(r.Context(), topic, t))(r.T)
	out := fmt.Sprintf("%s as of %d", words(s.Events), s.AsOf)
	if !s.Exact {
		out += ", not exact"
	}
	return out
}

func TestStateAt(t *testing.T) {
	for what, c := range map[string]jetbus.TopicConfig{
		"by keys":              {KeyInSubject: true},
		"by reading":           {},
		"among others":         {KeyInSubject: true, Stream: "SHARED"},
		"reading among others": {Stream: "SHARED"},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				c.Name, c.Storage = "log", jetbus.MemoryStorage
				info := r.Ensure(c)
				other := c
				other.Name = "other"
				r.Equal("no event yet", r.at("log", time.Now()), " as of 0")
				r.Equal("no event ever", r.at("log", time.Now().Add(-time.Hour)), " as of 0")
				begun := time.Now()
				time.Sleep(time.Minute)
				var times []time.Time
				for i, key := range []string{"a", "b", "a", "c"} {
					e := r.put("log", key, fmt.Sprint(i+1))
					times = append(times, r.StoredAt(info.Stream, e.Seq))
					time.Sleep(time.Minute)
				}
				r.Equal("at the first", r.at("log", times[0]), "a=1 as of 1")
				r.Equal("just before the second", r.at("log", times[1].Add(-1)), "a=1 as of 1")
				r.Equal("at the second", r.at("log", times[1]), "a=1 b=2 as of 2")
				r.Equal("at the third", r.at("log", times[2].Add(time.Second)), "a=3 b=2 as of 3")
				r.Equal("now", r.at("log", time.Now()), "a=3 b=2 c=4 as of 4")
				r.Equal("to come", r.at("log", time.Now().Add(1000*24*time.Hour)), "a=3 b=2 c=4 as of 4")
				s := must(r.Bus.StateAt(r.Context(), "log", times[1].Add(time.Second)))(t)
				if !s.Time.Equal(times[1]) || s.Events["a"].Seq != 1 || s.Events["a"].Topic != "log" {
					t.Errorf("state %+v", s)
				}
				for _, early := range []time.Time{begun, {}, times[0].Add(-1)} {
					_, err := r.Bus.StateAt(r.Context(), "log", early)
					r.WantErr(err, jetbus.ErrBeyondHorizon)
					if err == nil || !strings.Contains(err.Error(), times[0].UTC().Format(time.RFC3339Nano)) {
						t.Errorf("the error does not say since when: %v", err)
					}
				}
				if c.Stream != "" {
					r.Ensure(other)
					r.put("other", "z", "9")
					time.Sleep(time.Second)
					r.Equal("beside another topic", r.at("log", time.Now()), "a=3 b=2 c=4 as of "+fmt.Sprint(map[bool]int{true: 4, false: 4}[c.KeyInSubject]))
				}
				_, err := r.Bus.StateAt(r.Context(), "none", time.Now())
				r.WantErr(err, jetbus.ErrNoTopic)
			})
		})
	}
}

// Events that were stored in one moment are in the state of that moment together.
func TestStateAtOfOneMoment(t *testing.T) {
	for what, c := range map[string]jetbus.TopicConfig{
		"by keys":    {KeyInSubject: true},
		"by reading": {},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				c.Name, c.Storage = "log", jetbus.MemoryStorage
				r.Ensure(c)
				r.put("log", "a", "1")
				time.Sleep(time.Second)
				first := r.put("log", "a", "2") // in a bubble time stands still until somebody waits
				last := r.put("log", "b", "3")
				moment := r.StoredAt("EV_LOG", first.Seq)
				r.Equal("stored at", r.StoredAt("EV_LOG", last.Seq), moment)
				time.Sleep(time.Second)
				r.put("log", "a", "4")
				r.Equal("just before", r.at("log", moment.Add(-1)), "a=1 as of 1")
				r.Equal("in that moment", r.at("log", moment), "a=2 b=3 as of 3")
				r.Equal("just after", r.at("log", moment.Add(1)), "a=2 b=3 as of 3")
			})
		})
	}
}

func TestStateAtOfWhatIsLost(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "log", KeyInSubject: true, Retention: time.Hour, Storage: jetbus.MemoryStorage})
		r.put("log", "a", "1")
		time.Sleep(40 * time.Minute)
		r.put("log", "b", "2")
		then := time.Now()
		r.Equal("whole", r.at("log", then), "a=1 b=2 as of 2")
		time.Sleep(30 * time.Minute)
		r.put("log", "c", "3")
		r.Equal("the first has expired", r.at("log", then), "b=2 as of 2, not exact")
		r.Equal("now", r.at("log", time.Now()), "b=2 c=3 as of 3, not exact")
		time.Sleep(2 * time.Hour)
		r.Equal("all have expired", r.at("log", time.Now()), " as of 0, not exact")
	})
}

func TestStateAtOfCompacted(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "state", Compact: true, History: 2, Storage: jetbus.MemoryStorage})
		var times []time.Time
		for i := range 4 {
			r.put("state", "a", fmt.Sprint(i))
			times = append(times, time.Now())
			time.Sleep(time.Minute)
			if i == 1 {
				r.Equal("within the history", r.at("state", times[0]), "a=0 as of 1")
			}
		}
		_, err := r.Bus.StateAt(r.Context(), "state", times[1])
		r.WantErr(err, jetbus.ErrBeyondHorizon)
		r.Equal("behind the horizon", r.at("state", times[2]), "a=2 as of 3, not exact")
		r.Equal("now", r.at("state", time.Now()), "a=3 as of 4")
		r.bury("state", "a")
		r.put("state", "b", "1")
		deleted := time.Now()
		r.Equal("deleted", r.at("state", deleted), "b=1 as of 6")
		time.Sleep(time.Minute)
		r.put("state", "b", "2")
		r.Equal("before that", r.at("state", deleted), "b=1 as of 6, not exact")
	})
}

// A purge while the topic is read is noticed.
func TestStateAtDuringPurge(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "log", Storage: jetbus.MemoryStorage})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("log", 2000), jetbus.BatchOptions{}))(t)
		r.Equal("all", len(must(r.Bus.StateAt(r.Context(), "log", time.Now()))(t).Events), 2000)
		stream := must(r.JS.Stream(r.Context(), "EV_LOG"))(t)
		sub := must(r.NC.Subscribe("$JS.API.DIRECT.GET.EV_LOG", func(m *nats.Msg) { // at the first request of the scan
			_ = m.Sub.Unsubscribe()
			_ = stream.Purge(r.Context(), jetstream.WithPurgeSequence(1500))
		}))(t)
		defer func() { _ = sub.Unsubscribe() }()
		r.OK(r.NC.Flush())
		s := must(r.Bus.StateAt(r.Context(), "log", time.Now()))(t)
		if s.Exact || len(s.Events) == 2000 {
			t.Errorf("exact %v with %d keys", s.Exact, len(s.Events))
		}
	})
}
