package changefeed_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// stored is what the bus holds of the rig's feed.
func (r *rig) stored() changefeed.Stored {
	r.Helper()
	list, err := changefeed.ReadStored(r.Context(), r.bus, nil)
	r.must(err)
	if len(list) != 1 || list[0].Feed != "f" {
		r.Fatalf("stored: %+v, want one feed", list)
	}
	return list[0]
}

// reset resets the rig's feed, once its topic has forgotten the ids of its events.
func (r *rig) reset(start *changefeed.StartPoint) changefeed.Token {
	r.Helper()
	o := r.options()
	var token changefeed.Token
	r.untilEvery(rarely, "the feed can be reset", func() bool {
		var err error
		token, err = changefeed.Reset(r.Context(), r.bus, r.client, changefeed.ResetOptions{
			Name: "f", Start: start, Database: o.Database, Collection: o.Collection, Topic: o.Topic,
		})
		if !errors.Is(err, jetbus.ErrConflict) {
			r.must(err)
		}
		return err == nil
	})
	return token
}

func TestReset(t *testing.T) {
	latest, fromCopy := changefeed.FromLatest(), changefeed.FromCopy()
	for _, tt := range []struct {
		name  string
		start func(before changefeed.Token) *changefeed.StartPoint
		want  string
	}{
		{"position only", func(changefeed.Token) *changefeed.StartPoint { return nil }, "insert a, insert b, insert c, insert d"},
		{"latest", func(changefeed.Token) *changefeed.StartPoint { return &latest }, "insert a, insert b, gap, insert d"},
		{"copy", func(changefeed.Token) *changefeed.StartPoint { return &fromCopy }, "insert a, insert b, gap, copy a, copy b, copy c, copied, insert d"},
		{"earlier token", func(before changefeed.Token) *changefeed.StartPoint {
			p := changefeed.FromToken(before)
			return &p
		}, "insert a, insert b, gap, insert a, insert b, insert c, insert d"},
		{"earlier time", func(before changefeed.Token) *changefeed.StartPoint {
			p := changefeed.FromTimestamp(before.Time().Add(time.Second))
			return &p
		}, "insert a, insert b, gap, insert a, insert b, insert c, insert d"},
	} {
		for _, mode := range []changefeed.Mode{changefeed.Chain, changefeed.Atomic, changefeed.Serial} {
			t.Run(tt.name+"/"+string(mode), func(t *testing.T) {
				r := newRig(t)
				r.mode, r.shared = mode, mode != changefeed.Chain
				r.declare(jetbus.TopicConfig{DuplicateWindow: time.Second})
				f := r.start(r.options())
				r.until("it has a position", func() bool { return f.Status().Token != "" })
				before := f.Status().Token
				if tt.name == "earlier time" { // of seconds, so that what follows has to be in another one
					r.until("it is another second", func() bool { return time.Now().Unix() > before.Time().Unix() })
				}
				r.insert("a", "b")
				r.wants("insert a, insert b")
				r.stop(f)
				r.insert("c")
				r.neighbor("n")

				start := tt.start(before)
				token := r.reset(start)
				s := r.stored()
				if s.Saved.Token != token || s.Holder != "" || len(s.Topics) != 1 {
					t.Errorf("after the reset the bus holds %+v", s)
				}
				if start != nil && (s.Topics[0].Token != token || s.Token(s.Topics[0]) != token) {
					t.Errorf("the topic is at %s, want %s", s.Topics[0].Token, token)
				}
				r.start(r.options())
				if tt.name == "copy" {
					r.wants(strings.TrimSuffix(tt.want, ", insert d")) // what changes during a copy is where it may be
				}
				r.insert("d")
				r.wants(tt.want)
			})
		}
	}
}

// A topic without events leaves the position to the store.
func TestResetWithoutTopic(t *testing.T) {
	r := newRig(t)
	r.insert("a")
	start := changefeed.FromCopy()
	token := r.reset(&start)
	if s := r.stored(); s.Saved.Token != token || s.Saved.Copy == nil || s.Saved.Source != r.server.Database()+".things" || len(s.Topics) != 0 {
		t.Errorf("the bus holds %+v", s)
	}
	r.start(r.options()) // from the latest, if it had no position
	r.wants("copy a, copied")
}

// A feed that watches another collection than before is refused, until it is reset.
func TestResetOtherCollection(t *testing.T) {
	r := newRig(t)
	_, err := r.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: r.topic, DuplicateWindow: time.Second})
	r.must(err)
	f := r.start(r.options())
	r.insert("a")
	r.wants("insert a")
	r.stop(f)
	r.coll = r.client.Database(r.server.Database()).Collection("others")
	r.insert("b")
	if f, err = changefeed.Start(t.Context(), r.bus, r.client, r.options()); err == nil {
		r.ended(f, changefeed.ErrOtherSource)
	} else {
		wantErr(t, err, changefeed.ErrOtherSource)
	}
	start := changefeed.FromCopy()
	r.reset(&start)
	r.start(r.options())
	r.wants("insert a, gap, copy b, copied")
}

func TestResetRefused(t *testing.T) {
	r := newRig(t)
	r.declare(jetbus.TopicConfig{DuplicateWindow: patience}) // which is not over before it is asked for
	f := r.start(r.options())
	r.until("it has a position", func() bool { return f.Status().Token != "" })
	r.insert("a")
	r.wants("insert a")
	latest, fromCopy := changefeed.FromLatest(), changefeed.FromCopy()
	o := changefeed.ResetOptions{Name: "f", Start: &latest, Database: r.server.Database(), Collection: "things", Topic: r.topic}
	try := func(what string, want error, change func(*changefeed.ResetOptions)) {
		t.Helper()
		o := o
		change(&o)
		token, err := changefeed.Reset(t.Context(), r.bus, r.client, o)
		if !errors.Is(err, want) || token != "" {
			t.Errorf("%s: %q, %v, want %v", what, token, err, want)
		}
	}
	try("while it runs", changefeed.ErrRunning, func(o *changefeed.ResetOptions) {})
	try("the position of one that runs", changefeed.ErrRunning, func(o *changefeed.ResetOptions) { o.Start = nil })
	if s := r.stored(); s.Holder == "" || time.Since(s.Renewed) > patience {
		t.Errorf("a feed that runs has the holder %q since %v", s.Holder, s.Renewed)
	}
	r.stop(f)
	before := r.stored()
	if before.Holder != "" || before.Saved.Token == "" || before.Topics[0].Topic != r.topic || before.Topics[0].Seq != 1 {
		t.Errorf("stopped: %+v", before)
	}
	try("no name", jetbus.ErrInvalidOption, func(o *changefeed.ResetOptions) { o.Name = "a b" })
	try("no topic", jetbus.ErrInvalidTopic, func(o *changefeed.ResetOptions) { o.Topic = "" })
	try("no token", jetbus.ErrInvalidOption, func(o *changefeed.ResetOptions) { p := changefeed.FromToken("x"); o.Start = &p })
	later := changefeed.FromTimestamp(r.now().Add(time.Hour))
	try("a time to come", jetbus.ErrInvalidOption, func(o *changefeed.ResetOptions) { o.Start = &later })
	try("copy, too early", jetbus.ErrConflict, func(o *changefeed.ResetOptions) { o.Start = &fromCopy })
	_, err := r.bus.Publish(t.Context(), jetbus.Event{Topic: "others", Payload: []byte("1")})
	wantErr(t, err, jetbus.ErrNoTopic)
	_, err = r.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "others"})
	r.must(err)
	_, err = r.bus.Publish(t.Context(), jetbus.Event{Topic: "others", Payload: []byte("1")})
	r.must(err)
	try("topic of somebody else", changefeed.ErrForeign, func(o *changefeed.ResetOptions) { o.Topic = "others" })
	if _, err := changefeed.Reset(t.Context(), r.bus, nil, o); !errors.Is(err, jetbus.ErrInvalidOption) {
		t.Errorf("without a client: %v", err)
	}
	if after := r.stored(); after.Saved.Token != before.Saved.Token || after.Topics[0] != before.Topics[0] {
		t.Errorf("a refused reset made %+v of %+v", after, before)
	}
}

// A lock that nobody lets go of in time, and a store that is not the bus.
func TestReadStored(t *testing.T) {
	r := newRig(t)
	list, err := changefeed.ReadStored(t.Context(), r.bus, nil)
	if err != nil || len(list) != 0 {
		t.Errorf("an empty bus holds %+v, %v", list, err)
	}
	tokens := r.client.Database("positions").Collection(changefeed.DefaultTokens)
	o := r.options()
	o.TokenStore = changefeed.StoreInMongo(tokens)
	f := r.start(o)
	r.until("it has saved its position", func() bool {
		list, err := changefeed.ReadStored(t.Context(), r.bus, o.TokenStore)
		return err == nil && len(list) == 1 && list[0].Saved.Token != ""
	})
	r.stop(f)
	if list, err = changefeed.ReadStored(t.Context(), r.bus, nil); err != nil || len(list) != 0 {
		t.Errorf("a feed with a position elsewhere and no events is %+v, %v", list, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := changefeed.ReadStored(ctx, r.bus, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	// What somebody else has put into the topics of feeds is theirs.
	_, err = r.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "copied.by.hand"})
	r.must(err)
	_, err = r.bus.Publish(t.Context(), jetbus.Event{Topic: "copied.by.hand", Headers: map[string]string{
		changefeed.HeaderFeed: "f", changefeed.HeaderToken: "826000000000000001",
	}})
	r.must(err)
	if list, err = changefeed.ReadStored(t.Context(), r.bus, nil); err != nil || len(list) != 0 {
		t.Errorf("an event with a feed's headers makes %+v, %v", list, err)
	}
}
