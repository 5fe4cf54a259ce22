package adapter

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// pullPoint is the place where the server takes requests for the messages of one consumer.
// All of the protocol of pulling is in this file: where to ask, what is asked for, and what
// the server says of a request. What is done then is not: see pullKind.
type pullPoint struct {
	nc      *nats.Conn
	subject string
}

func (srv *server) pullPoint(stream, consumer string) pullPoint {
	return pullPoint{srv.nc, srv.api + "CONSUMER.MSG.NEXT." + stream + "." + consumer}
}

// ask sends a request. What it brings, and what is said of it, comes to reply.
func (p pullPoint) ask(reply string, o pullOrder) error {
	return p.nc.PublishRequest(p.subject, reply, o.body())
}

// pullOrder is what a request asks for.
type pullOrder struct {
	events    int
	bytes     int64         // of all of them, as nats.Msg.Size counts; 0: any number
	expires   time.Duration // how long the server keeps the request; 0: it brings what is there
	heartbeat time.Duration // how often the server says meanwhile that it is there; 0: it does not
}

// anySize is more than any message has. Unlike no limit it has the server say that the
// request is over.
const anySize = 1 << 40

func (o pullOrder) body() []byte {
	b := make([]byte, 0, 128)
	b = strconv.AppendInt(append(b, `{"batch":`...), int64(o.events), 10)
	if o.bytes > 0 {
		b = strconv.AppendInt(append(b, `,"max_bytes":`...), o.bytes, 10)
	}
	if o.expires > 0 {
		b = strconv.AppendInt(append(b, `,"expires":`...), int64(o.expires), 10)
	} else {
		b = append(b, `,"no_wait":true`...)
	}
	if o.heartbeat > 0 {
		b = strconv.AppendInt(append(b, `,"idle_heartbeat":`...), int64(o.heartbeat), 10)
	}
	return append(b, '}')
}

// pullWord is what the server says of a request in place of an event. A request that has
// brought all its events, or all its bytes to the last one, is over without a word, but for
// pullDone. With replicas events wait for a majority to know of them: pullDone and
// pullFull do not, and may come before events that were sent earlier.
type pullWord struct {
	kind        pullKind
	code        string
	description string
	events      int   // that the request did not bring; -1: that is not said
	bytes       int64 // that it had room for
}

// pullKind is what a word means. What is done about it is in puller.status for members
// (puller.go), in receiveCall.status and pullUpTo for Receive (receive.go), and in
// tailPulls.status for readers (tailpulls.go, for tail.run of read.go).
type pullKind int

const (
	pullBeat    pullKind = iota // the request is there
	pullDone                    // it has brought all its events, and had room for more bytes
	pullFull                    // it has no room for the next event, and is over
	pullOver                    // nothing came, or no more, before it expired
	pullGone                    // the consumer was deleted
	pullNobody                  // nobody takes requests there
	pullRefused                 // it is refused for good
	pullLater                   // it is refused, or over, for a reason that passes
)

func readPullWord(m *nats.Msg) pullWord {
	w := pullWord{code: m.Header.Get("Status"), description: m.Header.Get("Description"), events: -1}
	switch {
	case w.code == "100":
		w.kind = pullBeat
		return w
	case w.code == "404", w.code == "408":
		w.kind = pullOver
	case w.code == "503":
		w.kind = pullNobody
	case w.code == "400", w.code == "409" && (w.description == "Consumer is push based" || strings.HasPrefix(w.description, "Exceeded MaxRequest")):
		w.kind = pullRefused
	case w.code == "409" && w.description == "Consumer Deleted":
		w.kind = pullGone
	case w.code == "409" && w.description == "Batch Completed":
		w.kind = pullDone
	case w.code == "409" && w.description == "Message Size Exceeds MaxBytes":
		w.kind = pullFull
	default: // 409: leadership change, server shutdown, too many requests; and what a later server may say
		w.kind = pullLater
	}
	if n, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages")); err == nil {
		w.events = n
	}
	if n, err := strconv.ParseInt(m.Header.Get("Nats-Pending-Bytes"), 10, 64); err == nil {
		w.bytes = n
	}
	return w
}

// overtakes reports whether events that the server sent before the word may come behind it.
func (w pullWord) overtakes() bool { return w.kind == pullDone || w.kind == pullFull }

// err is what a word means to who waits for events.
func (w pullWord) err() error {
	switch w.kind {
	case pullGone, pullNobody:
		return errNoDurable
	case pullRefused, pullLater:
		return pullError(w)
	default:
		return nil
	}
}

// pullError is a word that refuses a request, or ends it too early.
type pullError pullWord

func (e pullError) Error() string {
	return fmt.Sprintf("%v: %s %s", jetbus.ErrUnavailable, e.code, e.description)
}

func (e pullError) Unwrap() error { return jetbus.ErrUnavailable }
