//go:build unix

package main

import (
	"net"
	"syscall"
	"testing"
)

// TestSendBuffersAreBounded: the operating system keeps at most sendBuffer bytes, or twice as many, for a client that
// does not read.
func TestSendBuffersAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	nc, err := headerListener{Listener: l, conns: &webConns{}}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	if err := raw.Control(func(fd uintptr) {
		size, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF)
	}); err != nil {
		t.Fatal(err)
	}
	if err != nil || size < sendBuffer/2 || size > 2*sendBuffer {
		t.Errorf("the send buffer has %d bytes (%v), want about %d", size, err, sendBuffer)
	}
}
