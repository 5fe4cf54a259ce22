package changefeed_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus/changefeed"
)

// Documents and collections may have names that no header can have.

// unprintable are ids of documents, in MongoDB's order, the last one an ordinary one.
var unprintable = []string{"a\x7f", "a\x7f\u0085", "b\u0085", "c\uffff", "d\U0001fffe", "e\n", "f"}

// A copy has documents whose ids have control characters or noncharacters, and ends.
func TestCopyOfUnprintableIDs(t *testing.T) {
	for _, batch := range []int{1, 1000} {
		t.Run(fmt.Sprint("batches of ", batch), func(t *testing.T) {
			r := newRig(t)
			r.insertMany(unprintable)
			o := r.options()
			o.Start, o.CopyBatch = changefeed.FromCopy(), batch
			f := r.start(o)
			r.must(f.Err())
			r.published(f)
			r.same()
			r.copiedOnce(len(unprintable))
			if s := f.Stats(); s.Poisoned > 0 || s.Duplicates > 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// Such a copy goes on where the last event of the topic says.
func TestCopyOfUnprintableIDsGoesOn(t *testing.T) {
	r := newRig(t)
	r.insertMany(unprintable)
	o := r.options()
	o.Start, o.CopyBatch, o.TokenStore = changefeed.FromCopy(), 1, forgetful{}
	for n := range len(unprintable) - 1 { // each feed copies one more, and ends at the one behind it
		taken := 0
		o.Filter = func(*changefeed.Change) bool {
			if taken++; taken > 1 {
				panic("enough")
			}
			return true
		}
		f := r.startOn(r.bus, o)
		r.until("it has ended", func() bool { return f.Status().State == changefeed.Failed })
		if got := len(r.events()); got != n+1 {
			t.Fatalf("%d events, want %d: %v", got, n+1, f.Err())
		}
	}
	o.Filter = nil
	r.published(r.start(o))
	r.same()
	r.copiedOnce(len(unprintable))
}

// copiedOnce fails unless the topic is a copy of so many documents that is complete.
func (r *rig) copiedOnce(n int) {
	r.Helper()
	seen := map[string]bool{}
	for _, e := range r.events() {
		seen[e.ID] = true
	}
	ops := r.ops()
	if got := strings.Count(ops, changefeed.OpCopy+" "); got != n || len(seen) != n+1 || !strings.HasSuffix(ops, ", "+changefeed.OpCopied) {
		r.Errorf("%d documents are copied, want %d, each once, and the copy complete: %s", got, n, ops)
	}
	r.dead(0)
}

// A feed of a database has the documents of collections whatever their names are, and
// says of which one each is.
func TestUnprintableCollections(t *testing.T) {
	r := newRig(t)
	db := r.client.Database(r.server.Database())
	names := []string{"a\nb", "c\u0085", "d ", "plain"}
	for _, name := range names {
		_, err := db.Collection(name).InsertOne(t.Context(), bson.M{"_id": "before"})
		r.must(err)
	}
	o := r.options()
	o.Collection, o.Start, o.CopyBatch = "", changefeed.FromCopy(), 1
	f := r.start(o)
	r.must(f.Err())
	for _, name := range names {
		_, err := db.Collection(name).InsertOne(t.Context(), bson.M{"_id": "later"})
		r.must(err)
	}
	r.until("all have come", func() bool { return len(r.events()) == 2*len(names)+1 })
	got := map[string]int{}
	for _, e := range r.events() {
		got[e.Headers[changefeed.HeaderNamespace]]++
	}
	for _, want := range []string{`"` + db.Name() + `.a\nb"`, `"` + db.Name() + `.c\u0085"`, `"` + db.Name() + `.d "`, db.Name() + `.plain`} {
		if got[want] != 2 {
			t.Errorf("%d events of %s: %v", got[want], want, got)
		}
	}
	r.dead(0)
}
