package cluster

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// unheard is a way to a node on which no answer comes to a change of a stream.
type unheard struct{ nats.InProcessConnProvider }

func (w unheard) InProcessConn() (net.Conn, error) {
	inner, err := w.InProcessConnProvider.InProcessConn()
	return unheardConn{inner}, err
}

type unheardConn struct{ net.Conn }

func (c unheardConn) Write(p []byte) (int, error) {
	return c.Conn.Write(bytes.ReplaceAll(p, []byte("STREAM.UPDATE.EV_A _INBOX"), []byte("STREAM.UPDATE.EV_A _NOBOX")))
}

// A change that a cluster makes without an answer, as it does when the stream has no leader at
// that moment, is seen to be made.
func TestChangeWithoutAnAnswer(t *testing.T) {
	c, bus := onCluster(t, jetbus.TopicConfig{Description: "old", Retention: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	deaf, err := adapter.Open(ctx, bustest.Connect(t, c.Node(0), nats.InProcessServer(unheard{c.Node(0)})), adapter.Config{Replicas: 3, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := deaf.Close(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}()
	made, err := deaf.EnsureTopic(ctx, jetbus.TopicConfig{Name: "a", Description: "new", Retention: 2 * time.Hour})
	if err != nil || made.Config.Description != "new" || made.Config.Retention != 2*time.Hour {
		t.Errorf("%v, the topic: %+v", err, made)
	}
	topics, err := bus.ListTopics(ctx)
	if err != nil || len(topics) != 1 || topics[0].Config.Description != "new" {
		t.Errorf("%v, the topics: %+v", err, topics)
	}
}
