package bustest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// settingsBehaviors are about declarations that race, drift or are refused.
var settingsBehaviors = []Behavior{
	{Name: "processes that declare the same topic at once all succeed, and there is one", Cases: []int{69}, Needs: NeedTopics, play: racingTopics},
	{Name: "processes that declare topics of one stream at once all succeed", Cases: []int{69}, Needs: NeedTopics | NeedMany, play: racingShared},
	{Name: "members that create the same group at once share it", Cases: []int{69}, play: racingGroups},
	{Name: "settings of a group that change at a redeploy become the group's, and others stay", Cases: []int{70}, play: groupDrift},
	{Name: "a group that is declared before its members gets what comes until they do", Cases: []int{69}, Needs: NeedTopics, play: declaredGroup},
	{Name: "a declaration that changes a topic updates it, or is a conflict that says what differs", Cases: []int{70}, Needs: NeedTopics, play: topicDrift},
	{Name: "a declaration keeps of a topic what it does not say, and shrinks it where it may", Cases: []int{70}, Needs: NeedTopics, play: topicKept},
	{Name: "options that contradict each other are refused at the call", Cases: []int{41}, play: badOptions},
}

func racingTopics(r *run) {
	name := r.prefix + ".t"
	var wg sync.WaitGroup
	for i := range 10 {
		topics := []jetbus.Bus{r.A, r.B}[i%2].(jetbus.Topics)
		wg.Go(func() {
			info, err := topics.EnsureTopic(r.ctx, jetbus.TopicConfig{Name: name, Description: "the same"})
			r.wantNil(err)
			if err == nil && info.Config.Name != name {
				r.Errorf("info %+v", info)
			}
		})
	}
	wg.Wait()
	info, err := r.Admin.TopicInfo(r.ctx, name)
	r.must(err)
	if info.Config.Description != "the same" || info.Events != 0 {
		r.Errorf("info %+v", info)
	}
}

// racingShared declares topics of one stream, each of which changes it.
func racingShared(r *run) {
	name := r.prefix + ".t"
	var wg sync.WaitGroup
	for i := range 6 {
		topics := []jetbus.Bus{r.A, r.B}[i%2].(jetbus.Topics)
		wg.Go(func() {
			_, err := topics.EnsureTopic(r.ctx, jetbus.TopicConfig{Name: fmt.Sprint(name, i), Stream: streamOf(r.prefix)})
			r.wantNil(err)
		})
	}
	wg.Wait()
	for i := range 6 {
		r.publish(fmt.Sprint(name, i), "k")
	}
}

func racingGroups(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	var wg sync.WaitGroup
	for i := range 10 {
		bus := []jetbus.Bus{r.A, r.B}[i%2]
		wg.Go(func() {
			_, err := bus.Subscribe(r.ctx, topic, "g", got.handle, jetbus.SubscribeOptions{})
			r.wantNil(err)
		})
	}
	wg.Wait()
	all, err := r.Admin.Groups(r.ctx, topic)
	r.must(err)
	if len(all) != 1 {
		r.Errorf("groups %+v", all)
	}
	events := r.publish(topic, keys(50)...)
	r.settled(topic, "g", events[49].Seq)
	got.exactly(r.T, keys(50)...)
}

func groupDrift(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{AckTimeout: 10 * time.Second})
	r.has(topic, func(g jetbus.GroupInfo) bool { return g.AckTimeout == 10*time.Second }, "an AckTimeout of 10 s")
	first := r.publish(topic, "old")[0]
	r.settled(topic, "g", first.Seq)
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{AckTimeout: time.Minute, GroupMaxInFlight: 10})
	r.has(topic, func(g jetbus.GroupInfo) bool { return g.AckTimeout == time.Minute && g.AckedSeq == first.Seq }, "an AckTimeout of a minute")
	for what, o := range map[string]jetbus.SubscribeOptions{"no AckTimeout": {}, "a shorter AckTimeout": {AckTimeout: time.Second}} {
		r.subscribe(r.B, topic, "g", got.handle, o)
		r.has(topic, func(g jetbus.GroupInfo) bool { return g.AckTimeout == time.Minute }, "an AckTimeout of a minute after a member with "+what)
	}
	events := r.publish(topic, keys(20)...)
	r.settled(topic, "g", events[19].Seq)
	got.exactly(r.T, append(keys(20), "old")...)
}

// declaredGroup declares a group from several processes, and again when it has members.
func declaredGroup(r *run) {
	topic := r.topic("t")
	r.publish(topic, "before")
	declare := func(i int, c jetbus.GroupConfig) jetbus.GroupInfo {
		c.Group = "g"
		g, err := []jetbus.Bus{r.A, r.B}[i%2].(jetbus.Topics).EnsureGroup(r.ctx, topic, c)
		r.wantNil(err)
		return g
	}
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			if g := declare(i, jetbus.GroupConfig{}); g.Group != "g" || g.AckTimeout != jetbus.DefaultAckTimeout {
				r.Errorf("declared: %+v", g)
			}
		})
	}
	wg.Wait()
	r.publish(topic, "waiting")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{From: jetbus.Earliest()})
	if g := declare(1, jetbus.GroupConfig{From: jetbus.Earliest(), AckTimeout: time.Minute, Inactive: time.Hour}); g.AckTimeout != time.Minute || g.Inactive != time.Hour {
		r.Errorf("declared again: %+v", g)
	}
	last := r.publish(topic, "after")[0]
	r.settled(topic, "g", last.Seq)
	got.exactly(r.T, "waiting", "after")
	r.has(topic, func(g jetbus.GroupInfo) bool { return g.AckTimeout == time.Minute && g.Inactive == time.Hour }, "an AckTimeout of a minute, and an hour to be inactive")
	if _, err := r.B.(jetbus.Topics).EnsureGroup(r.ctx, topic, jetbus.GroupConfig{Group: "g", Inactive: 59 * time.Second}); !errors.Is(err, jetbus.ErrInvalidOption) {
		r.Errorf("59 seconds: %v", err)
	}
	if _, err := r.B.(jetbus.Topics).EnsureGroup(r.ctx, r.prefix+".no", jetbus.GroupConfig{Group: "g"}); !errors.Is(err, jetbus.ErrNoTopic) {
		r.Errorf("a topic that is not there: %v", err)
	}
}

func topicDrift(r *run) {
	topics := r.A.(jetbus.Topics)
	c := jetbus.TopicConfig{Name: r.prefix + ".t", Retention: -1, DuplicateWindow: time.Minute, MaxEvents: 1000}
	before, err := topics.EnsureTopic(r.ctx, c)
	r.must(err)
	r.publish(c.Name, keys(3)...)
	c.DuplicateWindow, c.MaxEvents, c.Description = time.Hour, 2000, "changed"
	_, err = r.B.(jetbus.Topics).EnsureTopic(r.ctx, c)
	r.must(err)
	info, err := r.Admin.TopicInfo(r.ctx, c.Name)
	r.must(err)
	if got := info.Config; got.DuplicateWindow != time.Hour || got.MaxEvents != 2000 || got.Description != "changed" || info.Events != 3 {
		r.Errorf("after: %+v", info)
	}
	other := jetbus.MemoryStorage
	if before.Config.Storage == other {
		other = jetbus.FileStorage
	}
	for field, change := range map[string]func(*jetbus.TopicConfig){
		"Storage":      func(c *jetbus.TopicConfig) { c.Storage = other },
		"KeyInSubject": func(c *jetbus.TopicConfig) { c.KeyInSubject = true },
		"Stream":       func(c *jetbus.TopicConfig) { c.Stream = before.Stream },
	} {
		changed := c
		change(&changed)
		_, err := topics.EnsureTopic(r.ctx, changed)
		wantErr(r.T, "a change of "+field, err, jetbus.ErrConflict)
		if ce, ok := errors.AsType[*jetbus.ConflictError](err); !ok || len(ce.Differences) != 1 || ce.Differences[0].Field != field {
			r.Errorf("error %#v does not name %s alone", err, field)
		}
	}
	sameKeys(r.T, "the topic", r.stored(c.Name), keys(3))
}

func topicKept(r *run) {
	topics := r.A.(jetbus.Topics)
	name := r.prefix + ".t"
	before, err := topics.EnsureTopic(r.ctx, jetbus.TopicConfig{Name: name, Description: "kept", Retention: -1, MaxBytes: 1 << 20, MaxEvents: 1000, DuplicateWindow: time.Hour})
	r.must(err)
	r.publish(name, keys(3)...)
	other := r.B.(jetbus.Topics)
	same, err := other.EnsureTopic(r.ctx, jetbus.TopicConfig{Name: name})
	r.must(err)
	if same.Config != before.Config || same.Events != 3 {
		r.Errorf("declared by its name: %+v, before: %+v", same, before)
	}
	less := jetbus.TopicConfig{Name: name, MaxBytes: 2 << 20, MaxEvents: 500, DuplicateWindow: time.Minute}
	_, err = other.EnsureTopic(r.ctx, less)
	wantErr(r.T, "a declaration that shrinks", err, jetbus.ErrConflict)
	conflict, ok := errors.AsType[*jetbus.ConflictError](err)
	if !ok || len(conflict.Differences) != 2 || conflict.Differences[0].Field != "MaxEvents" || conflict.Differences[1].Field != "DuplicateWindow" {
		r.Errorf("error %#v does not name what would shrink", err)
	}
	info, err := r.Admin.TopicInfo(r.ctx, name)
	r.must(err)
	if info.Config != before.Config {
		r.Errorf("after a refusal: %+v", info.Config)
	}
	less.Shrink = true
	want := before.Config
	want.MaxBytes, want.MaxEvents, want.DuplicateWindow = less.MaxBytes, less.MaxEvents, less.DuplicateWindow
	shrunk, err := other.EnsureTopic(r.ctx, less)
	r.must(err)
	if shrunk.Config != want {
		r.Errorf("shrunk: %+v, want %+v", shrunk.Config, want)
	}
	sameKeys(r.T, "the topic", r.stored(name), keys(3))
}

func badOptions(r *run) {
	topic := r.topic("t")
	h := r.newRecord().handle
	for what, o := range map[string]jetbus.SubscribeOptions{
		"a concurrency above MaxInFlight": {Concurrency: 10, MaxInFlight: 5},
		"a short ack timeout":             {AckTimeout: time.Millisecond},
		"a MaxLease below the timeout":    {AckTimeout: time.Minute, MaxLease: time.Second},
		"a start with two positions":      {From: jetbus.Start{Kind: jetbus.FromAfterID, ID: "i", Seq: 1}},
		"the topic twice":                 {Topics: []string{topic}},
		"a backoff upside down":           {Backoff: jetbus.Backoff{Min: time.Hour, Max: time.Second}},
		"a filter that selects nothing":   {Filter: jetbus.Filter{Key: "a", KeyPrefix: "b"}},
	} {
		_, err := r.A.Subscribe(r.ctx, topic, "g", h, o)
		wantErr(r.T, "subscribe with "+what, err, jetbus.ErrInvalidOption)
	}
	_, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic}, jetbus.PublishOptions{TTL: time.Millisecond})
	wantErr(r.T, "publish with a TTL of a millisecond", err, jetbus.ErrInvalidOption)
	_, err = r.A.Publish(r.ctx, jetbus.Event{Topic: topic}, jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour)})
	wantErr(r.T, "publish for later without Delays", err, jetbus.ErrUnsupported)
	if all, err := r.Admin.Groups(r.ctx, topic); err != nil || len(all) != 0 || len(r.stored(topic)) != 0 {
		r.Errorf("refused calls left something behind: %+v, %v", all, err)
	}
}
