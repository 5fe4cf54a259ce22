package brokers

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// A client that shares few processors with many others has more than the server's own 2
// seconds to say who it is.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t, embedded.Config{Listen: "127.0.0.1:0", User: "shop", Password: "secret"})
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(b.URL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after %q the connection has ended: %v", text, err)
	}
}
