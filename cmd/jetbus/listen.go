package main

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus/embedded"
)

// address reads an address to listen on: host:port, or a port on loopback.
func address(s string) string {
	if _, err := strconv.ParseUint(s, 10, 16); err == nil {
		return net.JoinHostPort("127.0.0.1", s)
	}
	return s
}

// checkAddress refuses what is no address to listen on; flag names it.
func checkAddress(flag, addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return usagef("%s %s: use host:port or a port, which is a number from 0 to 65535 ([::1]:8080 for IPv6)", flag, addr)
	}
	return nil
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

// takenError is an address that another listener has. The flag names another one.
type takenError struct{ flag, addr string }

func (e *takenError) Error() string { return "listen on " + e.addr + ": " + errAddressTaken.Error() }
func (e *takenError) Unwrap() error { return errAddressTaken }

// listenError gives an error of an address that is taken the flag which names that. A server's
// text does not keep the kind of its error.
func listenError(err error, flag, addr string) error {
	if errors.Is(err, errAddressTaken) || strings.Contains(err.Error(), errAddressTaken.Error()) {
		return &takenError{flag, addr}
	}
	return err
}

// brokerError is listenError for a broker, which listens for NATS clients and for those over WebSocket.
func brokerError(err error, c embedded.Config) error {
	if strings.Contains(err.Error(), "listen for websocket") {
		return listenError(err, "--websocket", c.WebSocket)
	}
	return listenError(err, "--listen", c.Listen)
}

// inFlags is an error of a broker's settings with flags for their names; what is quoted is the user's.
func inFlags(err error) string {
	parts := strings.Split(err.Error(), `"`)
	for i := 0; i < len(parts); i += 2 {
		parts[i] = brokerFlags.Replace(parts[i])
	}
	return strings.Join(parts, `"`)
}

// brokerFlags turns the names of a broker's settings into those of flags.
var brokerFlags = strings.NewReplacer(
	"embedded: invalid config: ", "", "WebSocketTLS or WebSocketOrigins", "--websocket-origin", "WebSocketOrigins", "--websocket-origin",
	"WebSocket", "--websocket", "Listen", "--listen", "Password", "--password", "User", "--user", "Token", "--token",
)
