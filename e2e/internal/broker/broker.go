//go:build unix

// Package broker runs brokers in processes of their own, alone or three in a cluster, so
// that they can be killed, frozen, stopped and started again on the same store under the
// clients of a test.
//
// The processes are children of the test's, see package child: the test binary adds
// [Roles] to its own.
package broker

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
	"github.com/seed-63e9a637/jetbus/e2e/internal/proxy"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// limit bounds every wait for a broker. It only matters where a test fails: on a machine
// that is busy with other things a wait of seconds may take a minute.
const limit = 3 * time.Minute

// Names of the roles.
const (
	roleBroker = "broker"
	roleNode   = "node"
)

// Roles adds the roles of the processes that this package starts to those of a test.
func Roles(own map[string]child.Role) map[string]child.Role {
	all := maps.Clone(own)
	all[roleBroker], all[roleNode] = runBroker, runNode
	return all
}

// Main is the TestMain of a binary whose tests wait most of the time: it plays the role
// of a child, or runs the tests, some at a time, and ends the process.
func Main(m *testing.M, own map[string]child.Role) {
	child.Main(Roles(own))
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// config is that of a broker process.
type config struct{ Listen, Dir string }

// ready is what broker processes report, once.
type ready struct{}

func runBroker(ctx context.Context, text []byte, p *child.Parent) error {
	var c config
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	b, err := embedded.Start(ctx, embedded.Config{Listen: c.Listen, Dir: c.Dir})
	if err != nil {
		return err
	}
	p.Tell(ready{})
	<-ctx.Done()
	return b.Stop(context.Background())
}

// Broker is a broker that may be killed and started again in its place, with its store.
// Its methods are for one goroutine at a time.
type Broker struct {
	config  config
	process *child.Process[ready]
}

// Start starts a broker, which is killed at the end of the test: after what the test
// cleans up that it began later, whichever process runs by then.
func Start(t testing.TB) *Broker {
	t.Helper()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	b := &Broker{config: config{Listen: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Dir: t.TempDir()}}
	t.Cleanup(func() { clean(t, b.process) })
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	return b
}

// clean leaves no process behind.
func clean(t testing.TB, p *child.Process[ready]) {
	t.Helper()
	if p != nil {
		p.Clean(t)
	}
}

// Restart starts the process, which must not run, and returns when it takes clients.
func (b *Broker) Restart() (err error) {
	if b.process, err = child.Start[ready](roleBroker, b.config); err != nil {
		return err
	}
	return awaitReady(b.process)
}

func awaitReady(p *child.Process[ready]) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err := p.Await(ctx, func(ready) bool { return true })
	return err
}

// Kill ends the process by SIGKILL. It fails where the process had ended by itself.
func (b *Broker) Kill() error {
	if err := b.process.Err(); err != nil {
		return err
	}
	b.process.Kill()
	return nil
}

// Stop ends the process in order.
func (b *Broker) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return b.process.End(ctx)
}

// Freeze stops the process where it is. Its connections stay open, and silent.
func (b *Broker) Freeze() error { return b.process.Freeze() }

// Thaw lets a frozen process go on.
func (b *Broker) Thaw() error { return b.process.Thaw() }

// URL is where clients connect to, also after a restart.
func (b *Broker) URL() string { return "nats://" + b.config.Listen }

// Proxy puts a proxy in front of the broker, until the end of the test.
func (b *Broker) Proxy(t testing.TB) *proxy.Proxy {
	t.Helper()
	p, err := proxy.New(b.config.Listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Dial connects as a program would that is to survive its broker. Options may change it.
func Dial(url string, o ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect(url, append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(10*time.Millisecond, 10*time.Millisecond),
		nats.Timeout(10 * time.Second),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // else it prints what the test breaks
	}, o...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	return nc, nil
}

// locks are UDP sockets on the ports that were given out, open until the process ends.
var locks struct {
	sync.Mutex
	held []net.PacketConn
}

// FreePort finds a loopback port that is free now, below those that the system gives out
// by itself, so that it is still free after the death of its user. No port is given out
// twice while the process that has it lives, which its UDP socket on the same port tells all
// others: packages are tested side by side, and a broker that was killed leaves its port
// free for a while.
func FreePort() (int, error) {
	for range 100 {
		port := 20_000 + rand.IntN(12_000)
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		lock, err := new(net.ListenConfig).ListenPacket(context.Background(), "udp", at)
		if err != nil {
			continue
		}
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", at)
		if err != nil {
			_ = lock.Close() // nobody needs it
			continue
		}
		locks.Lock()
		locks.held = append(locks.held, lock)
		locks.Unlock()
		return port, l.Close()
	}
	return 0, errors.New("no port is free")
}
