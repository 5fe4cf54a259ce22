package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// tryTimeout is how long one try of a request may take. A server that restarts, or
// a cluster without a leader, can swallow a request without a word.
const tryTimeout = 2 * time.Second

// errLost ends a wait for an answer that cannot come: the connection broke.
var errLost = errors.New("connection lost")

// raceError is a write that has to be decided anew: somebody else wrote what
// matches guard meanwhile, or no answer came.
type raceError struct {
	guard   string
	unknown bool  // it may be stored
	err     error // why there is no answer
}

func (e *raceError) Error() string {
	if e.err == nil {
		return "others wrote to " + e.guard + " meanwhile"
	}
	return e.err.Error()
}

func (e *raceError) Unwrap() error { return e.err }

// try runs one request on a connection that is up. The context that f gets ends
// with the try, with the connection, and when the server says that the request is
// not permitted, which it does in an error that names no request. A subject that ends
// with a dot stands for all that begin so.
func (r *Registry) try(ctx context.Context, subject string, f func(context.Context) error) error {
	lost, err := r.link.Wait(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sent := time.Now()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }() // ends with its context, which is canceled below
	timeout := time.NewTimer(tryTimeout)
	defer timeout.Stop()
	tick := time.NewTicker(tryTimeout / 8)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-lost:
			cancel(errLost)
		case <-timeout.C:
			cancel(nats.ErrTimeout)
		case <-tick.C:
			if !r.link.Refused(subject, sent) {
				continue
			}
			if strings.HasSuffix(subject, ".") {
				subject += ">"
			}
			cancel(fmt.Errorf("%w: no permission to publish to %s", jetbus.ErrDenied, subject))
		}
		if err := <-done; err == nil { // the answer came in the same moment
			return nil
		}
		return context.Cause(ctx)
	}
}

// ask runs a request that does no harm when it is repeated until it is answered,
// within ctx.
func ask[T any](ctx context.Context, r *Registry, subject string, f func(context.Context) (T, error)) (T, error) {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		var answer T
		err := r.try(ctx, subject, func(ctx context.Context) (err error) {
			answer, err = f(ctx)
			return err
		})
		if !unanswered(err) {
			return answer, err
		}
		if !pause(ctx, wait) {
			return answer, errors.Join(context.Cause(ctx), err)
		}
	}
}

// unanswered reports whether a request failed for want of an answer.
func unanswered(err error) bool {
	if code := apiCode(err); code == codeNoLeader || code == codeNoPeer {
		return true
	}
	return errors.Is(err, errLost) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrConnectionReconnecting)
}

// pause waits; false says that ctx ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// send sends a request and returns the answer.
func (r *Registry) send(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	return r.nc.RequestMsgWithContext(ctx, m)
}

// lastOf asks the bucket's leader for the last sequence of a subject, which may
// have wildcards; 0 if there is none.
func (r *Registry) lastOf(ctx context.Context, subject string) (uint64, error) {
	api := r.api + "STREAM.MSG.GET." + r.stream()
	request, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return 0, err
	}
	seq, err := ask(ctx, r, api, func(ctx context.Context) (uint64, error) {
		a, err := r.send(ctx, &nats.Msg{Subject: api, Data: request})
		if err != nil {
			return 0, err
		}
		return readLast(a.Data)
	})
	if err != nil {
		return 0, r.translate(api, err)
	}
	return seq, nil
}

// readLast reads the sequence in the answer to a request for a message, 0 if there is none.
func readLast(data []byte) (uint64, error) {
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Seq uint64 `json:"seq"`
		} `json:"message"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return 0, fmt.Errorf("read the server's answer %.200q: %w", data, err)
	}
	if e := answer.Error; e != nil && e.ErrorCode != jetstream.JSErrCodeMessageNotFound {
		return 0, e
	}
	return answer.Message.Seq, nil
}

// put stores a record under a key, once, on condition that last is the sequence
// of the last record whose key matches guard. The error is a *raceError where it is
// not, or where no answer came; with any other nothing is stored.
func (r *Registry) put(ctx context.Context, key string, record any, guard string, last uint64) (seq uint64, err error) {
	value, err := encode(record)
	if err != nil {
		return 0, err
	}
	m := &nats.Msg{Subject: r.subject(key), Data: value, Header: nats.Header{}}
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, r.subject(guard))
	var answer *nats.Msg
	err = r.try(ctx, m.Subject, func(ctx context.Context) (err error) {
		answer, err = r.send(ctx, m)
		return err
	})
	switch {
	case errors.Is(err, nats.ErrNoResponders): // the server comes up, or there is no leader
		return 0, &raceError{guard: guard, err: r.translate(m.Subject, err)}
	case errors.Is(err, jetbus.ErrDenied), errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrConnectionClosed):
		return 0, r.translate(m.Subject, err)
	case err != nil:
		return 0, &raceError{guard: guard, unknown: true, err: r.translate(m.Subject, err)}
	}
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
		Seq    uint64              `json:"seq"`
	}
	switch err := json.Unmarshal(answer.Data, &ack); {
	case err != nil, ack.Error == nil && ack.Stream != r.stream():
		return 0, fmt.Errorf("read the server's answer: %.200q is no acknowledgement of %s; does another subscriber answer on %s?", answer.Data, r.stream(), m.Subject)
	case ack.Error == nil:
		return ack.Seq, nil
	case ack.Error.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence, ack.Error.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return 0, &raceError{guard: guard}
	case unanswered(ack.Error):
		return 0, &raceError{guard: guard, unknown: true, err: r.translate(m.Subject, ack.Error)}
	}
	return 0, r.translate(m.Subject, ack.Error)
}

// Error codes of a cluster without a leader.
const (
	codeNoLeader = 10008 // system temporarily unavailable
	codeNoPeer   = 10009 // cluster not available
)
