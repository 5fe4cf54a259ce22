package adaptertest

import (
	"bytes"
	"net"
	"regexp"

	"github.com/nats-io/nats.go"
)

// Replicated is a way to a server that says of a stream that it has three replicas, as
// none can have on one server, and takes streams that are to have as many.
type Replicated struct {
	nats.InProcessConnProvider
	Stream string
}

// InProcessConn implements nats.InProcessConnProvider.
func (w Replicated) InProcessConn() (net.Conn, error) {
	inner, err := w.InProcessConnProvider.InProcessConn()
	return replicatedConn{inner, regexp.MustCompile(`("name":"` + w.Stream + `",.*?"num_replicas":)1`)}, err
}

type replicatedConn struct {
	net.Conn
	one *regexp.Regexp
}

func (c replicatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	copy(p, c.one.ReplaceAll(p[:n], []byte("${1}3")))
	return n, err
}

func (c replicatedConn) Write(p []byte) (int, error) {
	return c.Conn.Write(bytes.ReplaceAll(p, []byte(`"num_replicas":3`), []byte(`"num_replicas":1`)))
}
