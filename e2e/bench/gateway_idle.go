package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// idleConnections is how many connections the row of idle ones opens.
const idleConnections = 1_000

// idleGateway measures what a connection costs on which nothing happens, with one subscription:
// heap and stacks, in the gateway and the bus below it. The clients are bare sockets.
func idleGateway(ctx context.Context, e *env) ([]line, error) {
	l, err := e.lane(ctx)
	if err != nil {
		return nil, err
	}
	defer l.drop()
	w, err := startGateway(e.bus2, gateway.Config{Limits: gateway.Limits{Ping: time.Hour, PerPrincipal: 2 * idleConnections}})
	if err != nil {
		return nil, err
	}
	var conns []net.Conn
	open := func(n int) error {
		for range n {
			nc, err := idleConnection(ctx, w.address, l.topic)
			if err != nil {
				return err
			}
			conns = append(conns, nc)
		}
		return nil
	}
	measure := func() (bytes uint64, goroutines int) {
		_, goroutines = usage() // at rest
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse, goroutines
	}
	lines, err := func() ([]line, error) {
		if err := open(10); err != nil { // what all share
			return nil, err
		}
		before, goroutines := measure()
		if err := open(idleConnections); err != nil {
			return nil, err
		}
		after, goroutines2 := measure()
		each := (float64(after) - float64(before)) / idleConnections
		running := float64(goroutines2-goroutines) / idleConnections
		return []line{
			{Name: "gateway-idle", Value: each / 1024, Unit: "KiB", Goal: "< 50", Met: each < 50<<10},
			{Name: "gateway-idle-goroutines", Value: running, Unit: "goroutines", Met: true},
		}, nil
	}()
	for _, nc := range conns {
		_ = nc.Close()
	}
	return lines, errors.Join(err, w.stop())
}

// idleConnection connects, subscribes, and returns when the server has nothing more to say.
func idleConnection(ctx context.Context, address, topic string) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	subscribe := `{"op":"SUBSCRIBE","topic":"` + topic + `"}`
	// A text frame, masked with zeros.
	masked := append([]byte{0x81, 0x80 | byte(len(subscribe)), 0, 0, 0, 0}, subscribe...)
	_, err = fmt.Fprintf(nc, "GET /ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: %s\r\n\r\n%s", address, frame.Subprotocol, masked)
	var got []byte
	for buf := make([]byte, 4<<10); err == nil && !bytes.Contains(got, []byte(frame.CaughtUp)); {
		var n int
		n, err = nc.Read(buf)
		got = append(got, buf[:n]...)
	}
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("an idle connection: %w: %.200q", err, got[max(0, len(got)-200):])
	}
	return nc, nil
}
