package topics_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// A member that may not give the bus's own streams more replicas is a member all the
// same, and says so once.
func TestWideningDenied(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		s := adaptertest.DenyingServer(t, "$JS.API.STREAM.UPDATE.>")
		root := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("root", "root")), adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, root)
		must(root.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"}))(t)
		must(root.Receive(t.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1}))(t)
		var log lockedBuffer
		b := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("a", "a"), nats.InProcessServer(adaptertest.Replicated{InProcessConnProvider: s, Stream: "EV_A"})),
			adapter.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}))(t)
		defer adaptertest.CloseBus(t, b)
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
