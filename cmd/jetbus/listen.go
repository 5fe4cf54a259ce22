package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// address reads an address to listen on: host:port, or a port on loopback.
func address(s string) string {
	if _, err := strconv.ParseUint(s, 10, 16); err == nil {
		return net.JoinHostPort("127.0.0.1", s)
	}
	return s
}

// addressTaken reports whether something listens on an address, or on its port
// for all addresses.
func addressTaken(ctx context.Context, addr string) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", addr)
	if err == nil {
		_ = conn.Close()
		return true
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return true
	}
	return l.Close() != nil
}

// listenError gives an address that is taken its kind, which the server's text
// does not keep. It is that of NATS clients, or of those over WebSocket.
func listenError(err error, addr, webSocket string) error {
	if strings.Contains(err.Error(), "listen for websocket") {
		addr = webSocket
	}
	if strings.Contains(err.Error(), errAddressTaken.Error()) && !errors.Is(err, errAddressTaken) {
		return fmt.Errorf("listen on %s: %w", addr, errAddressTaken)
	}
	return err
}
