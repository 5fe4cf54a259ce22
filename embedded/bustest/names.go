package bustest

import (
	"context"
	"fmt"
	"strings"

	"github.com/seed-63e9a637/jetbus"
)

// nameBehaviors are about the names of topics and groups.
var nameBehaviors = []Behavior{
	{Name: "names that are not valid are refused at the call", Cases: []int{41}, play: badNames},
	{Name: "names that look alike are different topics and groups", Cases: []int{41, 68}, Needs: NeedPower, play: alikeNames},
	{Name: "many topics with a group of the same name do not touch each other", Cases: []int{68}, Needs: NeedMany | NeedPower, play: manyTopics},
}

// streamOf is the name of a stream that topics of a behavior share.
func streamOf(prefix string) string { return "SHARED-" + strings.ReplaceAll(prefix, ".", "-") }

func badNames(r *run) {
	topic := r.topic("t")
	h := r.newRecord().handle
	for _, name := range []string{
		"", ".", "a.", ".a", "a..b", "a b", "a*", "*", ">", "a.>", "$JS", "$", "A", "Orders", "\u00e9", "a/b", "a\x00", "a\nb",
		"v0", "a.v01", strings.Repeat("a", jetbus.MaxTopicBytes+1), strings.Repeat("a.", 200) + "a",
	} {
		for what, call := range map[string]func(context.Context) error{
			"publish": func(ctx context.Context) error { _, err := r.A.Publish(ctx, jetbus.Event{Topic: name}); return err },
			"subscribe": func(ctx context.Context) error {
				_, err := r.A.Subscribe(ctx, name, "g", h, jetbus.SubscribeOptions{})
				return err
			},
			"subscribe to a second": func(ctx context.Context) error {
				_, err := r.A.Subscribe(ctx, topic, "g", h, jetbus.SubscribeOptions{Topics: []string{name}})
				return err
			},
			"cursor": func(ctx context.Context) error { _, err := r.A.Cursor(ctx, name, "g"); return err },
			"set cursor": func(ctx context.Context) error {
				return r.A.SetCursor(ctx, name, "g", jetbus.Cursor{}, jetbus.SeekOptions{})
			},
		} {
			wantErr(r.T, fmt.Sprintf("%s, topic %.40q", what, name), call(r.ctx), jetbus.ErrInvalidTopic)
		}
	}
	for _, name := range []string{"", ".", "a.", ".a", "a b", "a*", ">", "a/b", "\u00e9", "a\n", strings.Repeat("g", jetbus.MaxGroupBytes+1)} {
		_, err := r.A.Subscribe(r.ctx, topic, name, h, jetbus.SubscribeOptions{})
		wantErr(r.T, fmt.Sprintf("subscribe, group %.40q", name), err, jetbus.ErrInvalidGroup)
		_, err = r.A.Cursor(r.ctx, topic, name)
		wantErr(r.T, fmt.Sprintf("cursor, group %.40q", name), err, jetbus.ErrInvalidGroup)
	}
	if all, err := r.Admin.Groups(r.ctx, topic); err != nil || len(all) != 0 {
		r.Errorf("refused calls left groups behind: %+v, %v", all, err)
	}
}

// apart publishes an event into each topic and checks that each group of each
// topic gets that one event.
func (r *run) apart(topics, groups []string) {
	r.Helper()
	type place struct{ topic, group string }
	got := map[place]*record{}
	for i, topic := range topics {
		for _, group := range groups {
			p := place{topic, group}
			got[p] = r.newRecord()
			r.subscribe([]jetbus.Bus{r.A, r.B}[i%2], topic, group, got[p].handle, jetbus.SubscribeOptions{})
		}
	}
	for _, topic := range topics {
		r.publish(topic, topic)
	}
	for p, c := range got {
		c.wait(r.T, 1)
		r.reaches(p.topic, p.group, func(g jetbus.GroupInfo) bool { return g.Held == 0 && g.Pending == 0 && g.AckedSeq > 0 }, "its event settled")
		c.exactly(r.T, p.topic)
	}
}

func alikeNames(r *run) {
	long := strings.Repeat("x", jetbus.MaxTopicBytes-len(r.prefix)-2)
	var topics []string
	for _, name := range []string{"a.b", "a_b", "a-b", "a.b.c", "a.b_c", "a_b.c", "a", "p1", "s", long + "a", long + "b"} {
		topics = append(topics, r.topic(name))
	}
	wide := strings.Repeat("y", jetbus.MaxGroupBytes-1)
	r.apart(topics[:6], []string{"g", "G", "a.b", "a_b", "A_b"})
	r.apart(topics[6:], []string{wide + "a", wide + "b", wide + "B"})
}

func manyTopics(r *run) {
	var topics []string
	for i := range r.sized(30, 100) {
		topics = append(topics, r.topic(fmt.Sprintf("a%d", i)))
	}
	r.apart(topics, []string{"same"})
}
