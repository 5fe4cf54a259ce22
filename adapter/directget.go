package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// maxDirect is how many messages one direct get asks for at most. It is also
// the number of subjects that the server accepts to match in MultiLast.
const maxDirect = 1024

// Headers that the server adds to what it sends. It appends them, so that of
// several values the last one is its own.
const (
	directSubject  = "Nats-Subject"
	directSequence = "Nats-Sequence"
	directTime     = "Nats-Time-Stamp"
	directPrevious = "Nats-Last-Sequence" // the sequence sent before this one, 0 for the first
	directPending  = "Nats-Num-Pending"
	directUpTo     = "Nats-UpTo-Sequence" // at the end of an answer to MultiLast
	statusHeader   = "Status"
	statusDetail   = "Description"
)

// tooManySubjects is the status of a refusal: the subjects asked for match more than the
// server looks up at once.
const tooManySubjects = "413"

// errDirectLoss: the answers of a direct get are not complete. Asking again from
// the last sequence seen is safe.
var errDirectLoss = errors.New("messages were lost on the way")

// errBehind: the replica that answered a direct get is not as far as it must be, or did not
// say how far, which it leaves out where it has nothing to return.
var errBehind = errors.New("the replica that answers lags behind")

// directRequest selects what a direct get returns: the messages from Seq or
// StartTime on, those of NextBySubject if it is set, or the last one of each
// subject of MultiLast.
type directRequest struct {
	Seq           uint64     `json:"seq,omitempty"`
	StartTime     *time.Time `json:"start_time,omitempty"`   // instead of Seq
	NextBySubject string     `json:"next_by_subj,omitempty"` // wildcards allowed
	MultiLast     []string   `json:"multi_last,omitempty"`   // wildcards allowed; they may match 1,024 subjects
	UpToSeq       uint64     `json:"up_to_seq,omitempty"`    // with MultiLast: as of this sequence; 0 is the present
	UpToTime      *time.Time `json:"up_to_time,omitempty"`   // instead of UpToSeq
	Batch         int        `json:"batch,omitempty"`        // messages at most; 0, or more than 1,024, means 1,024
	MaxBytes      int        `json:"max_bytes,omitempty"`    // bytes after which no more are sent; 0: the server's default, 64 MiB

	within  time.Duration // to wait for the first message; 0 is as long as the context allows
	atLeast uint64        // with MultiLast: the sequence that the replica which answers must have; 0: any will do
}

// directTail is what the end of an answer says.
type directTail struct {
	pending uint64 // messages left to send after the last one received
	upTo    uint64 // of MultiLast: the sequence as of which that is the answer; 0 where there is nothing to return
}

// directError is what the server says when it refuses a direct get: 408 for a
// request it does not understand, 413 for more subjects than it allows.
type directError struct{ status, detail string }

func (e *directError) Error() string { return e.status + " " + e.detail }

// directGet reads messages of a stream that allows direct gets, from any of its
// replicas, in the order of their sequences. It calls each with the message, whose
// Subject is set to the one it was stored under, its sequence and the time it
// was stored, on this goroutine, until each returns false. It returns what the end of the
// answer says; where each returned false, how much was left. Where there is
// nothing to return, each is not called and there is no error. The request goes
// to api, $JS.API.DIRECT.GET.<stream>.
//
// The error wraps [nats.ErrNoResponders] where there is no such stream or it
// does not allow direct gets, the cause of ctx when it ends, [nats.ErrTimeout] where
// nothing comes for as long as r allows at first, errLost when the connection breaks, a
// [directError], or errDirectLoss. Messages handed to each
// before an error are valid.
func directGet(ctx context.Context, nc *nats.Conn, api string, r directRequest, each func(m *nats.Msg, seq uint64, stored time.Time) bool) (tail directTail, err error) {
	if ctx.Err() != nil {
		return tail, fmt.Errorf("direct get at %s: %w", api, context.Cause(ctx))
	}
	if r.within <= 0 {
		r.within = math.MaxInt64
	}
	if r.Batch <= 0 || r.Batch > maxDirect {
		r.Batch = maxDirect
	}
	tail, err = directExchange(ctx, nc, api, r, each)
	if err != nil {
		return tail, fmt.Errorf("direct get at %s: %w", api, err)
	}
	return tail, nil
}

func directExchange(ctx context.Context, nc *nats.Conn, api string, r directRequest, each func(m *nats.Msg, seq uint64, stored time.Time) bool) (tail directTail, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return tail, err
	}
	// Room for the whole answer, so that none of it is dropped however slow each
	// is. (SubscribeSync would allocate room for 64 Ki messages.)
	answers := make(chan *nats.Msg, r.Batch+1)
	inbox := nc.NewInbox()
	sub, err := nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return tail, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails on a closed connection only
	broken := nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer nc.RemoveStatusListener(broken)
	if err := nc.PublishRequest(api, inbox, body); err != nil {
		return tail, err
	}
	silence := time.NewTimer(r.within)
	defer silence.Stop()
	var previous uint64
	for {
		var m *nats.Msg
		select {
		case m = <-answers:
		case <-broken:
			return tail, errLost
		case <-silence.C:
			return tail, nats.ErrTimeout
		case <-ctx.Done():
			return tail, context.Cause(ctx)
		}
		silence.Stop()
		if len(m.Header[directSequence]) == 0 {
			return directEnd(m, &r, previous)
		}
		if headerNumber(m, directPrevious) != previous {
			return tail, errDirectLoss
		}
		previous, tail.pending = headerNumber(m, directSequence), headerNumber(m, directPending)
		stored, err := time.Parse(time.RFC3339Nano, lastValue(m, directTime))
		if err != nil || previous == 0 {
			return tail, fmt.Errorf("the server sent sequence %q at %q", lastValue(m, directSequence), lastValue(m, directTime))
		}
		m.Subject = lastValue(m, directSubject)
		if !each(m, previous, stored) {
			return tail, nil
		}
	}
}

// directEnd reads the message that ends an answer; previous is the last sequence received.
func directEnd(m *nats.Msg, r *directRequest, previous uint64) (tail directTail, err error) {
	status, detail := lastValue(m, statusHeader), lastValue(m, statusDetail)
	switch {
	case status == "204" && headerNumber(m, directPrevious) != previous:
		return tail, errDirectLoss
	case status == "204":
		return directTail{pending: headerNumber(m, directPending), upTo: headerNumber(m, directUpTo)}, nil
	case status == "404" && previous == 0 && (len(r.MultiLast) == 0 || detail != "Message Not Found"):
		return tail, nil // with MultiLast, that detail is a message which exists and could not be loaded
	case status == "503":
		return tail, nats.ErrNoResponders
	}
	return tail, &directError{status, detail}
}

// lastValue returns the last value of a header, which is the server's own.
func lastValue(m *nats.Msg, name string) string {
	values := m.Header[name]
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// headerNumber returns the server's value of a header, 0 if it is no number.
func headerNumber(m *nats.Msg, name string) uint64 {
	n, err := strconv.ParseUint(lastValue(m, name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
