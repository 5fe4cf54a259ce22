package adapter_test

import (
	"bytes"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// replicated is a way to a server that says of a stream that it has three replicas, as
// none can have on one server, and takes streams that are to have as many.
type replicated struct {
	nats.InProcessConnProvider
	stream string
}

func (w replicated) InProcessConn() (net.Conn, error) {
	inner, err := w.InProcessConnProvider.InProcessConn()
	return replicatedConn{inner, regexp.MustCompile(`("name":"` + w.stream + `",.*?"num_replicas":)1`)}, err
}

type replicatedConn struct {
	net.Conn
	one *regexp.Regexp
}

func (c replicatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	copy(p, c.one.ReplaceAll(p[:n], []byte("${1}3")))
	return n, err
}

func (c replicatedConn) Write(p []byte) (int, error) {
	return c.Conn.Write(bytes.ReplaceAll(p, []byte(`"num_replicas":3`), []byte(`"num_replicas":1`)))
}

// A member that may not give the bus's own streams more replicas is a member all the
// same, and says so once.
func TestWideningDenied(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		s := denyingServer(t, "$JS.API.STREAM.UPDATE.>")
		root := must(adapter.Open(t.Context(), dial(t, s, nats.UserInfo("root", "root")), adapter.Config{}))(t)
		defer closeBus(t, root)
		must(root.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"}))(t)
		must(root.Receive(t.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1}))(t)
		var log lockedBuffer
		b := must(adapter.Open(t.Context(), dial(t, s, nats.UserInfo("a", "a"), nats.InProcessServer(replicated{s, "EV_A"})),
			adapter.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}))(t)
		defer closeBus(t, b)
		for _, group := range []string{"g", "h"} {
			must(b.Receive(t.Context(), "a", group, jetbus.ReceiveOptions{Wait: -1}))(t)
		}
		if got := log.String(); strings.Count(got, "fewer replicas") != 1 || !strings.Contains(got, "no permission") {
			t.Errorf("the log says %s", got)
		}
	})
}

// lockedBuffer is a buffer for several writers.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
