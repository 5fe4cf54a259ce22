//go:build unix

package changefeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// change is one of a collection, as MongoDB has it or as the topic has it.
type change struct {
	token   changefeed.Token
	op, key string
	n       int // that the document has then; gone where it has none
}

const gone = -1

// history reads the changes behind a token, up to the insert of the document last, with
// a change stream that nothing disturbs.
func history(ctx context.Context, coll *mongo.Collection, from bson.Raw, last string) (out []change, err error) {
	cs, err := coll.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetStartAfter(from))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cs.Close(context.WithoutCancel(ctx))) }()
	type document struct{ N *int }
	for cs.Next(ctx) {
		var d struct {
			Token struct {
				Data string `bson:"_data"`
			} `bson:"_id"`
			Op  string `bson:"operationType"`
			Key struct {
				ID string `bson:"_id"`
			} `bson:"documentKey"`
			Full   document `bson:"fullDocument"`
			Update struct {
				Fields document `bson:"updatedFields"`
			} `bson:"updateDescription"`
		}
		if err := cs.Decode(&d); err != nil {
			return nil, err
		}
		c := change{changefeed.Token(strings.ToUpper(d.Token.Data)), d.Op, d.Key.ID, gone}
		for _, n := range []*int{d.Full.N, d.Update.Fields.N} {
			if n != nil {
				c.n = *n
			}
		}
		out = append(out, c)
		if c.key == last && c.op == "insert" {
			return out, nil
		}
	}
	return nil, fmt.Errorf("the history ends before %s: %w", last, cs.Err())
}

// stored reads the topic. In a stream of its own nothing else may ever have been.
func stored(ctx context.Context, bus *adapter.Bus, own bool) (out []change, err error) {
	for e, err := range bus.Scan(ctx, topic, jetbus.ScanQuery{}) {
		if err != nil {
			return nil, err
		}
		if own && e.Seq != uint64(len(out))+1 {
			return nil, fmt.Errorf("event %d of the stream is number %d", e.Seq, len(out)+1)
		}
		var doc *struct{ N *int }
		if err := json.Unmarshal(e.Payload, &doc); err != nil {
			return nil, fmt.Errorf("event %d: %w", e.Seq, err)
		}
		c := change{changefeed.Token(e.Headers[changefeed.HeaderToken]), e.Headers[changefeed.HeaderOp], e.Key, gone}
		if doc != nil && doc.N != nil {
			c.n = *doc.N
		}
		out = append(out, c)
	}
	return out, nil
}

// differences says how a topic differs from the history: not at all, if it holds every
// change once and in the same order.
func differences(history, topic []change) []string {
	found := map[string][]string{}
	note := func(kind string, c change) {
		found[kind] = append(found[kind], fmt.Sprintf("%s %s %d %s", c.op, c.key, c.n, c.token))
	}
	place := map[changefeed.Token]int{}
	for i, c := range history {
		place[c.token] = i
	}
	seen := map[changefeed.Token]bool{}
	newest, newestOf := -1, map[string]int{}
	for _, c := range topic {
		i, known := place[c.token]
		switch {
		case !known:
			note("not in the history", c)
			continue
		case seen[c.token]:
			note("twice", c)
			continue
		}
		seen[c.token] = true
		if h := history[i]; c.op != h.op || c.key != h.key || !mayCarry(h, c.n) {
			note("other than in the history", c)
		}
		if i < newest {
			note("out of order", c)
		}
		if at, before := newestOf[c.key]; before && i < at {
			note("out of order in their document", c)
		}
		newest, newestOf[c.key] = max(newest, i), i
	}
	for _, c := range history {
		if !seen[c.token] {
			note("missing", c)
		}
	}
	var out []string
	for kind, list := range found {
		out = append(out, fmt.Sprintf("%d changes are %s: %s", len(list), kind, strings.Join(list[:min(len(list), 5)], ", ")))
	}
	slices.Sort(out)
	return out
}

// mayCarry reports whether the event of a change may have a document with n. That of an
// update may be a newer one, or none, when it was looked up too late.
func mayCarry(c change, n int) bool {
	return n == c.n || c.op == "update" && (n > c.n || n == gone)
}

// state is what the last event of each key says.
func state(topic []change) map[string]int {
	out := map[string]int{}
	for _, c := range topic {
		if out[c.key] = c.n; c.n == gone {
			delete(out, c.key)
		}
	}
	return out
}

// documents is what the collection holds.
func documents(ctx context.Context, coll *mongo.Collection) (map[string]int, error) {
	cursor, err := coll.Find(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	var docs []struct {
		ID string `bson:"_id"`
		N  int
	}
	err = cursor.All(ctx, &docs)
	out := map[string]int{}
	for _, d := range docs {
		out[d.ID] = d.N
	}
	return out, err
}

// The account must notice what it is there for.
func TestDifferences(t *testing.T) {
	t.Parallel()
	a, b, a2, gonA := change{"01", "insert", "a", 1}, change{"02", "insert", "b", 1}, change{"03", "update", "a", 2}, change{"04", "delete", "a", gone}
	all := []change{a, b, a2, gonA}
	later, early, other, alien := a2, a2, b, b
	later.n, early.n, other.op, alien.token = 7, 1, "replace", "09"
	for name, c := range map[string]struct {
		topic []change
		want  string
	}{
		"the same":                  {all, ""},
		"a newer document":          {[]change{a, b, later, gonA}, ""},
		"an older document":         {[]change{a, b, early, gonA}, "other than in the history"},
		"one is missing":            {[]change{a, a2, gonA}, "missing"},
		"the last one is missing":   {[]change{a, b, a2}, "missing"},
		"one is there twice":        {[]change{a, b, b, a2, gonA}, "twice"},
		"two changed places":        {[]change{b, a, a2, gonA}, "out of order:"},
		"two of one document did":   {[]change{a2, a, b, gonA}, "in their document"},
		"one has another operation": {[]change{a, other, a2, gonA}, "other than in the history"},
		"one is of elsewhere":       {[]change{a, b, alien, a2, gonA}, "not in the history"},
	} {
		got := strings.Join(differences(all, c.topic), "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestExplains(t *testing.T) {
	t.Parallel()
	insert, update, remove := change{op: "insert", n: 1}, change{op: "update", n: 2}, change{op: "delete", n: gone}
	for name, c := range map[string]struct {
		log     []write
		history []change
		ok      bool
	}{
		"all done":                 {[]write{{"insert", 1, done}, {"update", 2, done}, {"delete", 3, done}}, []change{insert, update, remove}, true},
		"one is missing":           {[]write{{"insert", 1, done}, {"update", 2, done}, {"delete", 3, done}}, []change{insert, remove}, false},
		"the last one is missing":  {[]write{{"insert", 1, done}, {"update", 2, done}}, []change{insert}, false},
		"one was not asked for":    {[]write{{"insert", 1, done}}, []change{insert, remove}, false},
		"one was refused":          {[]write{{"insert", 1, done}, {"update", 2, nothing}}, []change{insert, update}, false},
		"unknown, and done":        {[]write{{"insert", 1, done}, {"update", 2, unknown}}, []change{insert, update}, true},
		"unknown, and not done":    {[]write{{"insert", 1, unknown}, {"insert", 1, done}}, []change{insert}, true},
		"the first delete was not": {[]write{{"insert", 1, done}, {"delete", 2, unknown}, {"delete", 3, done}}, []change{insert, remove}, true},
	} {
		if err := explains(c.log, c.history); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
