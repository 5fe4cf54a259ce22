package groups_test

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// belated is a way to the broker on which the first request of a kind takes its time, while
// others overtake it.
type belated struct {
	*adaptertest.Cable
	request *regexp.Regexp // finds one, and its size
	takes   time.Duration
	sent    chan struct{} // closed when there was one
	once    sync.Once
}

func (w *belated) InProcessConn() (net.Conn, error) {
	c, err := w.Cable.InProcessConn()
	return &belatedConn{c, w}, err
}

type belatedConn struct {
	net.Conn
	w *belated
}

func (c *belatedConn) Write(p []byte) (int, error) {
	m := c.w.request.FindSubmatchIndex(p)
	if m == nil {
		return c.Conn.Write(p)
	}
	size, err := strconv.Atoi(string(p[m[2]:m[3]]))
	if err != nil {
		return 0, err
	}
	first := false
	c.w.once.Do(func() { first = true })
	if !first {
		return c.Conn.Write(p)
	}
	end := m[1] + size + len("\r\n")
	late := slices.Clone(p[m[0]:end])
	time.AfterFunc(c.w.takes, func() { _, _ = c.Conn.Write(late) }) // it may be closed by then
	close(c.w.sent)
	_, err = c.Conn.Write(slices.Concat(p[:m[0]], p[end:]))
	return len(p), err
}

// openBelated opens a patient bus whose first request to a part of the server's API takes
// that long.
func (r *rig) openBelated(request string, takes time.Duration) (*belated, *adapter.Bus) {
	r.Helper()
	w := &belated{
		Cable: &adaptertest.Cable{Broker: r.Broker}, takes: takes, sent: make(chan struct{}),
		request: regexp.MustCompile(`H?PUB \$JS\.API\.` + regexp.QuoteMeta(request) + `[^\r\n]* (\d+)\r\n`),
	}
	_, b := r.Open(adapter.Config{Timeout: patience}, nats.InProcessServer(w))
	return w, b
}

const (
	patience = 5 * time.Minute
	longer   = 50 * time.Second // than a lock lives without its holder
)

// shared lists the topics that a stream says it has, sorted.
func (r *rig) shared(stream string) []string {
	r.Helper()
	var names []string
	for key := range r.Stream(stream).Config.Metadata {
		if name, ok := strings.CutPrefix(key, "jetbus.topic."); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// However long a change of a stream takes, another waits for its end, and neither undoes
// the other.
func TestStreamChangesOneByOne(t *testing.T) {
	const shared = "SHARED"
	add := func(name string) func(*rig, *adapter.Bus) error {
		return func(r *rig, b *adapter.Bus) error {
			return adaptertest.Last(b.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: name, Stream: shared}))
		}
	}
	added := func(name string) func(*rig) bool {
		return func(r *rig) bool { return slices.Contains(r.shared(shared), name) }
	}
	describe := func(name string) func(*rig, *adapter.Bus) error {
		return func(r *rig, b *adapter.Bus) error {
			return adaptertest.Last(b.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: name, Description: "another"}))
		}
	}
	described := func(name string) func(*rig) bool {
		return func(r *rig) bool {
			return must(r.Bus.TopicInfo(r.Context(), name))(r.T).Config.Description == "another"
		}
	}
	for what, c := range map[string]struct {
		stream        string
		change, other func(*rig, *adapter.Bus) error
		changed, both func(*rig) bool
	}{
		"EnsureTopic": {shared, add("new"), add("another"), added("new"), added("another")},
		"DeleteTopic": {
			shared, func(r *rig, b *adapter.Bus) error { return b.DeleteTopic(r.Context(), "old") }, add("another"),
			func(r *rig) bool { return !added("old")(r) }, added("another"),
		},
		"DeleteTopic of the one whose stream it is": {
			"EV_HOST", func(r *rig, b *adapter.Bus) error { return b.DeleteTopic(r.Context(), "host") },
			func(r *rig, b *adapter.Bus) error {
				return adaptertest.Last(b.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "another", Stream: "EV_HOST"}))
			},
			func(r *rig) bool { return !slices.Contains(r.shared("EV_HOST"), "host") },
			func(r *rig) bool { return slices.Contains(r.shared("EV_HOST"), "another") },
		},
		"Repartition": {
			"EV_PARTED", func(r *rig, b *adapter.Bus) error { return adaptertest.Last(b.Repartition(r.Context(), "parted", 3)) }, describe("parted"),
			func(r *rig) bool { return len(must(r.Bus.Generations(r.Context(), "parted"))(r.T)) == 2 }, described("parted"),
		},
		"a snapshot": {
			"EV_KEYED", func(r *rig, b *adapter.Bus) error {
				return adaptertest.Last(b.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "keyed.snapshot", SnapshotOf: "keyed"}))
			}, describe("keyed"),
			func(r *rig) bool {
				return r.Stream("EV_KEYED").Config.Metadata["jetbus.snapshots.keyed"] == `["keyed.snapshot"]`
			}, described("keyed"),
		},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "old", Stream: shared})
				r.Ensure(jetbus.TopicConfig{Name: "kept", Stream: shared})
				r.Ensure(jetbus.TopicConfig{Name: "host"})
				r.Ensure(jetbus.TopicConfig{Name: "guest", Stream: "EV_HOST"})
				r.Ensure(jetbus.TopicConfig{Name: "parted", Partitions: 2})
				r.Ensure(jetbus.TopicConfig{Name: "keyed", KeyInSubject: true})
				way, slow := r.openBelated("STREAM.UPDATE."+c.stream, longer)
				_, other := r.Open(adapter.Config{Timeout: patience})
				changed := make(chan error, 1)
				go func() { changed <- c.change(r, slow) }()
				<-way.sent
				began := time.Now()
				r.OK(c.other(r, other))
				if took := time.Since(began); took < longer {
					r.Errorf("another change was made after %v, in the midst of one that takes %v", took, longer)
				}
				r.OK(<-changed)
				if !c.changed(r) || !c.both(r) {
					r.Errorf("one change undid the other: %v %v", c.changed(r), c.both(r))
				}
			})
		})
	}
}

// Likewise those of a group, also where one takes longer than its lock lives unrenewed.
func TestGroupChangesOneByOne(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1}))(r.T)
		way := &adaptertest.Forgetful{Broker: r.Broker, Lasts: longer, Question: regexp.MustCompile(`H?PUB (\$JS\.API\.CONSUMER\.PAUSE)\S* [^\r\n]*?(\d+)\r\n`)}
		_, slow := r.Open(adapter.Config{Timeout: patience}, nats.InProcessServer(way))
		_, other := r.Open(adapter.Config{Timeout: patience})
		way.Forget(true)
		paused := make(chan error, 1)
		began := time.Now()
		go func() { paused <- slow.PauseGroup(r.Context(), "a", "g", time.Now().Add(time.Hour)) }()
		time.Sleep(time.Second)
		r.OK(other.ResumeGroup(r.Context(), "a", "g"))
		if took := time.Since(began); took < longer {
			r.Errorf("a group was changed after %v, in the midst of a change that takes %v", took, longer)
		}
		r.OK(<-paused)
		r.Equal("paused, and resumed after that", r.Group("a", "g").Paused, false)
	})
}

// Who changes a stream and is cut off for longer than its lock lives keeps nobody from going on,
// and makes its change over theirs when it is back, or ends with an error.
func TestStreamChangerCutOff(t *testing.T) {
	for comesBack, topics := range map[bool][]string{true: {"new", "old", "others"}, false: {"old", "others"}} {
		t.Run(fmt.Sprint("comes back ", comesBack), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				const stream = "SHARED"
				r.Ensure(jetbus.TopicConfig{Name: "old", Stream: stream})
				way, slow := r.openBelated("STREAM.UPDATE."+stream, time.Hour)
				_, other := r.Open(adapter.Config{Timeout: patience})
				changed := make(chan error, 1)
				go func() {
					changed <- adaptertest.Last(slow.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "new", Stream: stream}))
				}()
				<-way.sent
				way.Deaf.Store(true)
				began := time.Now()
				must(other.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "others", Stream: stream}))(r.T)
				if took := time.Since(began); took > 30*time.Second {
					r.Errorf("another change was made after %v", took)
				}
				if comesBack {
					way.Cut()
					r.OK(<-changed)
				} else {
					r.WantErr(<-changed, jetbus.ErrUnavailable)
					way.Cut()
				}
				r.Equal("topics", r.shared(stream), topics)
			})
		})
	}
}

// What is published while its topic is taken out of a stream goes with it.
func TestDeletedWithWhatComesMeanwhile(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, name := range []string{"old", "kept"} {
			r.Ensure(jetbus.TopicConfig{Name: name, Stream: "SHARED", Retention: -1})
			r.Publish(name, "early")
		}
		way, slow := r.openBelated("STREAM.UPDATE.SHARED", longer)
		deleted := make(chan error, 1)
		go func() { deleted <- slow.DeleteTopic(r.Context(), "old") }()
		<-way.sent
		r.Publish("old", "late")
		r.OK(<-deleted)
		r.Ensure(jetbus.TopicConfig{Name: "old", Stream: "SHARED", Retention: -1})
		for name, want := range map[string]uint64{"old": 0, "kept": 1} {
			r.Equal("events of "+name, must(r.Bus.TopicInfo(r.Context(), name))(r.T).Events, want)
		}
	})
}
