package link_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/internal/link"
)

// A link says that the connection is there, gone, there again, and closed.
func TestLink(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		broker := bustest.Start(t, embedded.Config{})
		nc := bustest.Connect(t, broker)
		l := link.New(nc)
		defer l.Stop()
		calls, unwatched := 0, 0
		l.Watch(func() { calls++ })
		unwatch := l.Watch(func() { unwatched++ })
		unwatch()
		lost, err := l.Wait(t.Context())
		if err != nil || !l.IsUp() {
			t.Fatalf("up %v: %v", l.IsUp(), err)
		}

		if err := broker.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-lost
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := l.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || l.IsUp() || l.IsClosed() {
			t.Errorf("up %v, closed %v: %v", l.IsUp(), l.IsClosed(), err)
		}

		if err := broker.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if calls != 1 || unwatched != 0 {
			t.Errorf("%d and %d calls after a reconnect", calls, unwatched)
		}

		nc.Close()
		<-l.Closed()
		synctest.Wait()
		if _, err := l.Wait(t.Context()); !errors.Is(err, jetbus.ErrClosed) || !l.IsClosed() || !l.IsOver() || calls != 2 {
			t.Errorf("closed %v, over %v, %d calls: %v", l.IsClosed(), l.IsOver(), calls, err)
		}
	})
}

// Who gives up waits for nothing any more, whether or not there is a connection.
func TestGiveUp(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		l := link.New(bustest.Connect(t, bustest.Start(t, embedded.Config{})))
		defer l.Stop()
		lost, err := l.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l.GiveUp()
		<-lost
		if _, err := l.Wait(t.Context()); !errors.Is(err, jetbus.ErrClosed) || !l.IsOver() || l.IsClosed() {
			t.Errorf("over %v, closed %v: %v", l.IsOver(), l.IsClosed(), err)
		}
	})
}

// A connection that breaks so often that nats.go drops statuses, while those who
// watch take their time, ends up as what it is.
func TestLinkThatLags(t *testing.T) {
	for breaks := 1; breaks <= 12; breaks++ {
		bustest.Run(t, func(t *testing.T) {
			pipes := &pipes{Broker: bustest.Start(t, embedded.Config{})}
			nc := bustest.Connect(t, pipes.Broker, nats.InProcessServer(pipes))
			l := link.New(nc)
			defer l.Stop()
			entered, release := make(chan struct{}, 100), make(chan struct{})
			l.Watch(func() { entered <- struct{}{}; <-release })
			cut := func() {
				before := nc.Stats().Reconnects
				_ = pipes.last.Close() // what is gone is gone
				for nc.Stats().Reconnects == before || !nc.IsConnected() {
					time.Sleep(time.Millisecond)
				}
			}
			cut()
			<-entered
			lost, err := l.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for range breaks {
				cut()
			}
			close(release)
			synctest.Wait()
			if !l.IsUp() {
				t.Errorf("after %d breaks it is down, and the connection is up", breaks)
			}
			select {
			case <-lost:
			default:
				t.Errorf("%d breaks were not noticed", breaks)
			}
			if len(entered) == 0 {
				t.Errorf("nobody was told of %d breaks", breaks)
			}
		})
	}
}

// A flush waits for a slow server as long as it may, and for none that is lost, also
// when nats.go knows of the loss and the link does not yet.
func TestFlush(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		pipes := &pipes{Broker: bustest.Start(t, embedded.Config{})}
		nc := bustest.Connect(t, pipes.Broker, nats.InProcessServer(pipes))
		l := link.New(nc)
		defer l.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		flush := func(what string, ctx context.Context, took time.Duration, want error) {
			t.Helper()
			began := time.Now()
			if err := l.Flush(ctx); !errors.Is(err, want) || time.Since(began).Round(time.Second) != took {
				t.Errorf("%s: %v after %v, want %v after %v", what, err, time.Since(began), want, took)
			}
		}
		flush("connected", ctx, 0, nil)

		entered, release := make(chan struct{}, 100), make(chan struct{})
		l.Watch(func() { entered <- struct{}{}; <-release })
		_ = pipes.last.Close()
		<-entered
		if err := pipes.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if nc.IsConnected() || !l.IsUp() {
			t.Fatalf("connected %v, up %v: the test shows nothing", nc.IsConnected(), l.IsUp())
		}
		brief, over := context.WithTimeout(t.Context(), time.Second)
		defer over()
		flush("up by hearsay", brief, time.Second, context.DeadlineExceeded)
		time.AfterFunc(5*time.Second, func() { close(release) })
		flush("lost meanwhile", ctx, 5*time.Second, nil)
		flush("away", ctx, 0, nil)
		nc.Close()
		flush("closed", ctx, 0, nil)
	})
}

// pipes is a broker that knows the last connection to it.
type pipes struct {
	*embedded.Broker
	last  net.Conn
	tries int
}

func (p *pipes) InProcessConn() (conn net.Conn, err error) {
	conn, err = p.Broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	if p.tries++; p.tries%2 == 0 { // it breaks while it is made
		_ = conn.Close()
	}
	p.last = conn
	return conn, err
}
