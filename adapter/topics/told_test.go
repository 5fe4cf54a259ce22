package topics_test

import (
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// An error says once what was to be done, once with what, and why not; and it names what does
// away with it.
func TestErrorsSayItOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "plain"})
		r.Ensure(jetbus.TopicConfig{Name: "log", KeyInSubject: true})
		r.Ensure(jetbus.TopicConfig{Name: "log.snapshot", SnapshotOf: "log"})
		batch := []jetbus.Event{adaptertest.Event("plain", "k"), adaptertest.Event("nosuch", "k")}
		more := jetbus.SubscribeOptions{Topics: []string{"nosuch"}}
		last := jetbus.ReadOptions{After: map[string]uint64{"plain": 7}}
		for _, c := range []struct {
			err  error
			want string
		}{
			{adaptertest.Last(r.Bus.Publish(ctx, batch[1])), "publish nosuch: no such topic (see EnsureTopic)"},
			{adaptertest.Last(r.Bus.PublishBatch(ctx, batch, jetbus.BatchOptions{})), "publish batch: event 1: topic nosuch: no such topic (see EnsureTopic)"},
			{adaptertest.Last(r.Bus.Subscribe(ctx, "nosuch", "g", adaptertest.Ignore, jetbus.SubscribeOptions{})), "subscribe nosuch/g: no such topic (see EnsureTopic)"},
			{adaptertest.Last(r.Bus.Subscribe(ctx, "plain", "g", adaptertest.Ignore, more)), "subscribe plain/g: topic nosuch: no such topic (see EnsureTopic)"},
			{adaptertest.Last(r.Bus.Receive(ctx, "nosuch", "g", jetbus.ReceiveOptions{Wait: -1})), "receive nosuch/g: no such topic (see EnsureTopic)"},
			{adaptertest.FirstErr(r.Bus.Read(ctx, []string{"nosuch"}, jetbus.ReadOptions{})), "read nosuch: no such topic (see EnsureTopic)"},
			{adaptertest.FirstErr(r.Bus.Read(ctx, []string{"plain", "nosuch"}, jetbus.ReadOptions{})), "read plain, nosuch: topic nosuch: no such topic (see EnsureTopic)"},
			{adaptertest.FirstErr(r.Bus.Read(ctx, []string{"plain"}, last)), "read plain: position unknown: pass the sequence: sequence 7 is behind the end, which is 0"},
			{adaptertest.FirstErr(r.Bus.Read(ctx, nil, jetbus.ReadOptions{})), "read: invalid option: no topics"},
			{adaptertest.FirstErr(r.Bus.Scan(ctx, "nosuch", jetbus.ScanQuery{})), "scan nosuch: no such topic (see EnsureTopic)"},
			{adaptertest.Last(r.Bus.LatestByKey(ctx, "plain", "k")), "latest by key plain: the topic does not keep keys in its subjects (see TopicConfig.KeyInSubject)"},
			{adaptertest.Last(r.Bus.TopicInfo(ctx, "nosuch")), "topic info nosuch: no such topic (see EnsureTopic)"},
			{adaptertest.Last(r.Bus.Groups(ctx, "nosuch")), "groups of nosuch: no such topic (see EnsureTopic)"},
			{adaptertest.Last(r.Bus.GroupPartitions(ctx, "plain", "g")), "partitions of plain/g: the topic has no partitions (see TopicConfig.Partitions)"},
			{adaptertest.Last(r.Bus.Cursor(ctx, "plain", "nobody")), "cursor plain/nobody: no such group"},
			{r.Bus.DeleteGroup(ctx, "plain", "nobody"), "delete plain/nobody: no such group"},
			{r.Bus.DeleteTopic(ctx, "nosuch"), "delete topic nosuch: no such topic (see ListTopics)"}, // which nobody wants to declare for that
			{
				r.Bus.DeleteTopic(ctx, "log"),
				"delete topic log: topic log exists with other settings: its snapshot is log.snapshot, not gone; delete topic log.snapshot first",
			},
			{adaptertest.Last(r.Bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "q", Replicas: 9})), "ensure topic q: invalid option: Replicas is 9, use 1 to 5"},
			{
				adaptertest.Last(r.Bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "s", SnapshotOf: "nosuch"})),
				"ensure topic s: a snapshot of nosuch: no such topic (see EnsureTopic)",
			},
			{
				adaptertest.Last(r.Bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "plain", MaxBytes: 1 << 20})),
				"topic plain exists with other settings: MaxBytes is 10737418240, not 1048576; it would keep less than it does (see TopicConfig.Shrink)",
			},
		} {
			r.Equal("the error", c.err, c.want)
		}
	})
}
