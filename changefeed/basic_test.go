package changefeed_test

import (
	"encoding/json"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

func TestFeed(t *testing.T) {
	r := newRig(t)
	f := r.start(r.options())
	r.insert("a", "b")
	r.update("a", 1)
	_, err := r.coll.ReplaceOne(t.Context(), bson.M{"_id": "b"}, bson.M{"x": "<&>"})
	r.must(err)
	r.remove("a")
	r.wants("insert a, insert b, update a, replace b, delete a")
	r.published(f)
	r.inOrder()
	var payloads []string
	for _, e := range r.events() {
		payloads = append(payloads, string(e.Payload))
		if !json.Valid(e.Payload) || e.Headers[changefeed.HeaderNamespace] != r.server.Database()+".things" || e.Headers[changefeed.HeaderClusterTime] == "" || e.Time.IsZero() {
			t.Errorf("event %+v", e)
		}
	}
	// The update was looked up when MongoDB got to it, before or after the delete.
	if payloads[0] != `{"_id":"a","n":0}` || payloads[3] != `{"_id":"b","x":"<&>"}` || payloads[4] != "null" {
		t.Errorf("payloads %q", payloads)
	}
	if s := f.Stats(); s.Published != 5 || s.Duplicates != 0 || f.Ready() != nil {
		t.Errorf("stats %+v", s)
	}
	info, err := r.bus.TopicInfo(t.Context(), r.topic)
	r.must(err)
	if info.Config.Retention != -1 || info.Config.Discard != jetbus.DiscardNew {
		t.Errorf("declared as %+v", info.Config)
	}
}
