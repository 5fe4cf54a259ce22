package adaptertest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/adapter"
)

// Led is Replicated whose durables have replicas, too, and a leader.
type Led struct {
	Replicated
	cluster atomic.Pointer[string]
}

// Say has the server say that of the replicas of durables, in JSON.
func (w *Led) Say(cluster string) { w.cluster.Store(&cluster) }

// Elect says since when the leader has been that. With the zero time there is none.
func (w *Led) Elect(since time.Time) {
	leader := ""
	if !since.IsZero() {
		leader = `"leader":"n1","leader_since":"` + since.UTC().Format(time.RFC3339Nano) + `",`
	}
	w.Say("{" + leader + `"replicas":[{"name":"n2","active":1000000}]}`)
}

// InProcessConn implements nats.InProcessConnProvider.
func (w *Led) InProcessConn() (net.Conn, error) {
	inner, err := w.Replicated.InProcessConn()
	return &ledConn{Conn: inner, w: w, in: bufio.NewReader(inner)}, err
}

// ledConn reads frame by frame, for what it adds makes them longer.
type ledConn struct {
	net.Conn
	w   *Led
	in  *bufio.Reader
	out bytes.Buffer
}

func (c *ledConn) Read(p []byte) (int, error) {
	for c.out.Len() == 0 {
		if err := c.frame(); err != nil {
			return 0, err
		}
	}
	return c.out.Read(p)
}

func (c *ledConn) frame() error {
	line, err := c.in.ReadBytes('\n')
	if err != nil {
		return err
	}
	words := bytes.Fields(line)
	if !bytes.HasPrefix(line, []byte("MSG ")) {
		c.out.Write(line)
		if !bytes.HasPrefix(line, []byte("HMSG ")) {
			return nil
		}
	}
	size, err := strconv.Atoi(string(words[len(words)-1]))
	if err != nil {
		return err
	}
	body := make([]byte, size+len("\r\n"))
	if _, err = io.ReadFull(c.in, body); err != nil {
		return err
	}
	if bytes.HasPrefix(line, []byte("MSG ")) {
		body = c.led(body)
		words[len(words)-1] = strconv.AppendInt(nil, int64(len(body)-len("\r\n")), 10)
		c.out.Write(append(bytes.Join(words, []byte(" ")), "\r\n"...))
	}
	c.out.Write(body)
	return nil
}

// led says who leads a durable, where the server tells what it knows of one.
func (c *ledConn) led(body []byte) []byte {
	durable, is := bytes.CutSuffix(body, []byte("}\r\n"))
	if !is || !bytes.Contains(body, []byte(`"ack_floor"`)) || !bytes.Contains(body, []byte("v1.consumer_")) {
		return body
	}
	return fmt.Appendf(durable, `,"cluster":%s}`+"\r\n", *c.w.cluster.Load())
}

// OpenLed opens a bus so far from the broker, for which a stream and its durables are replicated, and
// led for ever.
func (r *Rig) OpenLed(stream string, rtt time.Duration, c adapter.Config) (*Led, *adapter.Bus) {
	r.Helper()
	w := &Led{Replicated: Replicated{InProcessConnProvider: &Distant{r.Broker, rtt}, Stream: stream}}
	w.Elect(time.Unix(1, 0))
	_, b := r.Open(c, nats.InProcessServer(w))
	return w, b
}
