//go:build unix

package circle

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/projector/processes"
	"github.com/seed-63e9a637/jetbus/registry"
)

// Processes beat, fall silent and beat again, while who does the work is killed, the
// broker restarts and the MongoDB steps down. In the end the topic has each change of
// the collection once, in the collection's own order, and says what the collection does.
func TestCircle(t *testing.T) {
	r := newRig(t)
	m := r.follow()
	r.early()
	first := r.spawn()
	r.becomes(first, changefeed.Streaming)
	second := r.spawn()
	h := r.beat()
	r.grow(changed, 5*crowd)
	r.violate()
	first.Kill()
	r.grow(processes.DefaultStates, 5*crowd)
	r.ok(r.broker.Restart(t.Context()))
	r.becomes(second, changefeed.Streaming)
	third := r.spawn()
	r.stepDown()
	r.grow(changed, 5*crowd)
	second.Kill()

	h.silence(crowd / 2)
	r.goes(processes.Stale, crowd/2)
	h.silence(0)
	r.goes(processes.Stale, 0)
	r.becomes(third, changefeed.Streaming)
	r.comeAndGo()
	h.end()
	r.goes(processes.Stale, crowd)
	r.settle()
	r.compare(m)
	r.end(third)
}

// goes waits until so many processes have a status in the collection.
func (r *rig) goes(status processes.Status, n int64) {
	r.Helper()
	r.until(func() string {
		now, err := r.db.Collection(collection).CountDocuments(r.Context(), bson.M{"status": status})
		if err == nil && now == n {
			return ""
		}
		return fmt.Sprintf("%d processes are %s, not %d: %v", now, status, n, err)
	})
}

// violate puts something into each part of the circle that breaks its schema. What is
// published is refused; what others wrote becomes a dead letter.
func (r *rig) violate() {
	r.Helper()
	for topic := range owners {
		bad := jetbus.Event{Topic: topic, Key: "bad", Payload: []byte(notOurs)}
		if _, err := r.safe.Publish(r.Context(), bad); !errors.Is(err, jetbus.ErrSchema) {
			r.Errorf("what is none was published to %s: %v", topic, err)
		}
		if topic != changed { // nobody but the feed may publish there
			_, err := r.bus.Publish(r.Context(), bad)
			r.ok(err)
		}
	}
	_, err := r.db.Collection(collection).InsertOne(r.Context(), bson.M{"_id": "bad", "pid": "seven"})
	r.ok(err)
	for topic := range owners {
		r.until(func() string {
			if n := r.dead(topic, "bad"); n != 1 {
				return fmt.Sprintf("%d dead letters of %s, want 1", n, topic)
			}
			return ""
		})
	}
	_, err = r.db.Collection(collection).DeleteOne(r.Context(), bson.M{"_id": "bad"})
	r.ok(err)
}

// early puts a state that is none where a projection meets it when it fills its collection.
func (r *rig) early() {
	r.Helper()
	_, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: processes.DefaultStates, Key: "early", Payload: []byte(notOurs)})
	r.ok(err)
}

// notOurs breaks each of the schemas.
const notOurs = `{"pid":"seven"}`

// owners are who makes dead letters of the topics' events.
var owners = map[string]string{
	processes.DefaultHeartbeats: processes.DefaultGroup, processes.DefaultStates: "processes", changed: "changefeed-processes",
}

// dead counts the dead letters of a topic, those of one key if it is not empty.
func (r *rig) dead(topic, key string) (n int) {
	r.Helper()
	for d, err := range jetbus.DeadLetters(r.Context(), r.bus, jetbus.DeadLetterQuery{Topic: topic, Key: key}) {
		if errors.Is(err, jetbus.ErrNoDeadLetters) {
			return 0
		}
		r.ok(err)
		if d.Group != owners[topic] || string(d.Event.Payload) != notOurs || !strings.Contains(d.Error, "breaks version 1 of its schema") {
			r.Errorf("dead letter %+v: %s", d, d.Event.Payload)
		}
		n++
	}
	return n
}

// comeAndGo has a state that is deleted again.
func (r *rig) comeAndGo() {
	r.Helper()
	_, err := processes.StateTopic.Publish(r.Context(), r.safe, processes.Process{ProcessID: "ghost", Name: "g", Host: "h", Status: processes.Stale})
	r.ok(err)
	r.until(func() string {
		if n, err := r.db.Collection(collection).CountDocuments(r.Context(), bson.M{"_id": "ghost", "status": processes.Stale}); n != 1 {
			return fmt.Sprintf("there is no ghost: %v", err)
		}
		return ""
	})
	_, err = r.safe.Publish(r.Context(), jetbus.Tombstone(processes.DefaultStates, "ghost"))
	r.ok(err)
}

// settle waits until everything that was published has come around.
func (r *rig) settle() {
	r.Helper()
	for _, topic := range []string{processes.DefaultHeartbeats, processes.DefaultStates} { // in the order of the circle
		r.until(func() string {
			groups, err := r.bus.Groups(r.Context(), topic)
			r.ok(err)
			for _, g := range groups {
				if g.Group == owners[topic] && (g.Pending > 0 || g.Held > 0) {
					return fmt.Sprintf("group %s is not done: %+v", g.Group, g)
				}
			}
			return ""
		})
	}
	history := r.history()
	last := history[len(history)-1].Token
	r.until(func() string {
		events := r.log(changed)
		if at := events[len(events)-1].Headers[changefeed.HeaderToken]; at != string(last) {
			return fmt.Sprintf("the feed is at %s, the collection at %s", at, last)
		}
		return ""
	})
}

// change is one change as the collection tells it itself.
type change struct {
	Op, Key string
	Token   changefeed.Token
}

// history is every change that there ever was in the collection.
func (r *rig) history() (all []change) {
	r.Helper()
	until := r.clusterTime()
	cs, err := r.db.Collection(collection).Watch(r.Context(), mongo.Pipeline{}, options.ChangeStream().SetStartAtOperationTime(&r.began))
	r.ok(err)
	defer func() { r.ok(cs.Close(r.Context())) }()
	for {
		if !cs.TryNext(r.Context()) {
			r.ok(cs.Err())
			if token := r.token(cs.ResumeToken()); token.Timestamp().Compare(until) >= 0 {
				return all
			}
			continue
		}
		var c struct {
			Token bson.Raw `bson:"_id"`
			Op    string   `bson:"operationType"`
			Key   struct {
				ID string `bson:"_id"`
			} `bson:"documentKey"`
		}
		r.ok(cs.Decode(&c))
		all = append(all, change{c.Op, c.Key.ID, r.token(c.Token)})
	}
}

func (r *rig) token(doc bson.Raw) changefeed.Token {
	r.Helper()
	t, err := changefeed.ParseToken(doc.Lookup("_data").StringValue())
	r.ok(err)
	return t
}

// compare compares the topic with the collection, now and in its history.
func (r *rig) compare(m *mirror) {
	r.Helper()
	want := slices.DeleteFunc(r.history(), func(c change) bool { return c.Key == "bad" && c.Op == "insert" })
	var got []change
	folded, position := map[string]string{}, map[string]int{}
	ids := map[string]bool{}
	for _, e := range r.log(changed) {
		ids[e.ID] = true
		if e.Headers[registry.HeaderSchemaVersion] != "1" {
			r.Errorf("event %d follows no schema: %+v", e.Seq, e)
		}
		if e.Key == "" {
			if e.Headers[changefeed.HeaderOp] != changefeed.OpCopied || e.Seq != 1 {
				r.Errorf("event %d is %s", e.Seq, e.Payload)
			}
			continue
		}
		got = append(got, change{e.Headers[changefeed.HeaderOp], e.Key, changefeed.Token(e.Headers[changefeed.HeaderToken])})
		if folded[e.Key] = string(e.Payload); e.IsTombstone() {
			delete(folded, e.Key)
		}
		if at, err := strconv.Atoi(e.Headers[stateSeq]); err == nil {
			if at < position[e.Key] {
				r.Errorf("event %d of %s goes back from state %d to %d", e.Seq, e.Key, position[e.Key], at)
			}
			position[e.Key] = at
		} else if e.Key != "bad" {
			r.Errorf("event %d of %s says no state: %v", e.Seq, e.Key, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.Errorf("the topic is not the collection's history:\n%s", diff)
	}
	for topic := range owners {
		if n := r.dead(topic, ""); n != 1 && topic != processes.DefaultStates || n != 2 && topic == processes.DefaultStates {
			r.Errorf("%d dead letters of %s, want 1 of each that breaks its schema", n, topic)
		}
	}
	documents, states := r.documents(), r.states()
	if diff := cmp.Diff(documents, folded); diff != "" {
		r.Errorf("the topic says something else than the collection:\n%s", diff)
	}
	if diff := cmp.Diff(states, documents); diff != "" {
		r.Errorf("the collection says something else than the states:\n%s", diff)
	}
	r.until(func() string {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.wrong) > 0 || !maps.Equal(m.seen, ids) {
			return fmt.Sprintf("the group has %d of %d events, and wrong are %q", len(m.seen), len(ids), m.wrong)
		}
		return cmp.Diff(folded, m.last)
	})
	r.Logf("%d heartbeats, %d states, %d changes of %d documents", r.last(processes.DefaultHeartbeats), r.last(processes.DefaultStates), len(got), len(documents))
}

// documents are the payloads that the documents amount to.
func (r *rig) documents() map[string]string {
	r.Helper()
	cursor, err := r.db.Collection(collection).Find(r.Context(), bson.M{})
	r.ok(err)
	var docs []bson.Raw
	r.ok(cursor.All(r.Context(), &docs))
	all := map[string]string{}
	for _, d := range docs {
		payload, err := state(d)
		r.ok(err)
		if string(payload) != "null" {
			all[d.Lookup("_id").StringValue()] = string(payload)
		}
	}
	return all
}

// states are the last states, in the form of documents' payloads.
func (r *rig) states() map[string]string {
	r.Helper()
	all := map[string]string{}
	for _, e := range r.log(processes.DefaultStates) {
		switch {
		case e.IsTombstone():
			delete(all, e.Key)
			continue
		case e.Key == "bad", e.Key == "early":
			continue
		case e.Headers[registry.HeaderSchemaVersion] != "1":
			r.Errorf("state %d follows no schema: %+v", e.Seq, e)
		}
		var p processes.Process
		r.ok(json.Unmarshal(e.Payload, &p))
		all[e.Key] = string(e.Payload)
	}
	return all
}
