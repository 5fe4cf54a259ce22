package embedded_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/embedded"
)

func TestLogger(t *testing.T) {
	for level, want := range map[slog.Level][]string{
		slog.LevelDebug: {"level=DEBUG", "level=INFO", "Server is ready", "Server Exiting"},
		slog.LevelInfo:  {"level=INFO", "Server is ready", "Server Exiting"},
		slog.LevelError: nil,
	} {
		// The handler of slog writes whole lines under its own lock, and the
		// broker is gone before they are read.
		var buf bytes.Buffer
		b, err := embedded.Start(t.Context(), embedded.Config{
			Logger: slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: level})),
		})
		if err != nil {
			t.Fatal(err)
		}
		nc, err := b.Connect()
		if err != nil {
			t.Fatal(err)
		}
		nc.Close()
		if err := b.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(buf.String(), w) {
				t.Errorf("level %v: %q is not in the log:\n%s", level, w, buf.String())
			}
		}
		if len(want) == 0 && buf.Len() > 0 {
			t.Errorf("level %v: unexpected lines:\n%s", level, buf.String())
		}
		if level > slog.LevelDebug && strings.Contains(buf.String(), "level=DEBUG") {
			t.Errorf("level %v: debug lines in the log", level)
		}
	}
}

// A server whose port is taken does not say that it is ready, and the error not twice.
func TestNotReady(t *testing.T) {
	b := start(t, embedded.Config{Listen: "127.0.0.1:0"})
	var buf bytes.Buffer
	_, err := embedded.Start(t.Context(), embedded.Config{
		Listen: strings.TrimPrefix(b.URL(), "nats://"), Logger: slog.New(slog.NewTextHandler(&buf, nil)),
	})
	if err == nil || !strings.HasPrefix(err.Error(), "start broker: ") {
		t.Errorf("got %v", err)
	}
	if strings.Contains(buf.String(), "is ready") || strings.Contains(buf.String(), "level=ERROR") {
		t.Errorf("the log says\n%s", buf.String())
	}
}

// What goes wrong on a client's connection is in the log, and not on standard error.
func TestErrorsOfConnections(t *testing.T) {
	var buf bytes.Buffer
	b := start(t, embedded.Config{Logger: slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	for range 2 {
		nc, err := b.Connect()
		if err != nil {
			t.Fatal(err)
		}
		sub, err := nc.SubscribeSync("orders")
		if err != nil {
			t.Fatal(err)
		}
		nc.ErrorHandler()(nc, sub, nats.ErrSlowConsumer)
		nc.ErrorHandler()(nc, nil, nats.ErrPermissionViolation)
		nc.Close()
	}
	for _, want := range []string{nats.ErrSlowConsumer.Error(), "subject=orders", nats.ErrPermissionViolation.Error()} {
		if strings.Count(buf.String(), want) != 2 {
			t.Errorf("%q is not in the log twice:\n%s", want, buf.String())
		}
	}
}
