package adapter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How long one try of a request may take. A server that restarts, or a cluster
// without a leader, can swallow a request without a word.
const (
	tryTimeout  = 5 * time.Second
	askTimeout  = 2 * time.Second        // of a question that costs nothing to repeat
	denialCheck = 250 * time.Millisecond // a refused publish is answered by an error that names no request
	// denialMemory is for how long a refusal explains why nothing is answered: longer
	// than calls last.
	denialMemory = time.Minute
)

// exchange sends a message once and returns the first answer, for which it waits
// that long. The errors are
// errLost and nats.ErrTimeout, where the server may have taken the message, and
// nats.ErrNoResponders, jetbus.ErrDenied and those of sending, where it has not.
func (srv *server) exchange(ctx context.Context, m *nats.Msg, lost <-chan struct{}, within time.Duration) (*nats.Msg, error) {
	answer := make(chan *nats.Msg, 1)
	sent := time.Now()
	var forget func()
	m.Reply, forget = srv.replies.expect(func(a *nats.Msg) { answer <- a })
	defer forget()
	if err := srv.send(ctx, m, lost); err != nil {
		return nil, err
	}
	timer := time.NewTimer(denialCheck)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case a := <-answer:
			if len(a.Data) == 0 && a.Header.Get("Status") == "503" {
				return nil, nats.ErrNoResponders
			}
			return a, nil
		case <-lost:
			return nil, errLost
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
			if srv.link.Refused(m.Subject, sent) {
				return nil, noPermission(m.Subject)
			}
			if !first {
				return nil, nats.ErrTimeout
			}
			timer.Reset(within - denialCheck)
		}
	}
}

// send hands a message to the connection. Where that breaks under it, send waits
// until everybody knows and returns errLost: how much of what was handed over
// before has gone out is not known either.
func (srv *server) send(ctx context.Context, m *nats.Msg, lost <-chan struct{}) error {
	err := srv.nc.PublishMsg(m)
	switch {
	case err == nil, errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining),
		errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrInvalidMsg):
		return err
	}
	timer := time.NewTimer(denialCheck)
	defer timer.Stop()
	select {
	case <-lost:
	case <-timer.C:
	case <-ctx.Done():
	}
	return errLost
}

// request is exchange for requests that do no harm when they are repeated: it
// tries again when the connection breaks or no answer comes, within ctx.
func (srv *server) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	return srv.requestWithin(ctx, m, tryTimeout)
}

// requestWithin is request whose tries take that long.
func (srv *server) requestWithin(ctx context.Context, m *nats.Msg, within time.Duration) (*nats.Msg, error) {
	for {
		lost, err := srv.link.Wait(ctx)
		if err != nil {
			return nil, err
		}
		a, err := srv.exchange(ctx, m, lost, within)
		if ctx.Err() != nil || err != errLost && err != nats.ErrTimeout { //nolint:errorlint // exchange returns them as they are
			return a, err
		}
	}
}

// ask runs a request of the jetstream package that changes nothing, again and
// again where no answer comes, within ctx: answers are lost with a connection,
// and a cluster without a leader gives none.
func ask[T any](ctx context.Context, srv *server, subject string, f func(context.Context) (T, error)) (T, error) {
	for {
		answer, err := askOnce(ctx, srv, subject, f)
		if ctx.Err() == nil && isNotMade(err) && !srv.link.IsOver() { // one try may have been less than an election
			continue
		}
		return answer, err
	}
}

func askOnce[T any](ctx context.Context, srv *server, subject string, f func(context.Context) (T, error)) (T, error) {
	ctx, release := srv.guard(ctx, subject)
	defer release()
	return try(ctx, srv.js, askTimeout, f)
}

// pubAck is the server's answer to a publish.
type pubAck struct {
	seq       uint64
	duplicate bool
}

// parsePubAck reads {"stream":"S","seq":1,...}. Answers that store are read
// without a JSON decoder, since they come by the hundred thousand; whatever looks
// otherwise is decoded.
func parsePubAck(b []byte) (pubAck, error) {
	if ack, ok := parsePlainAck(b); ok {
		return ack, nil
	}
	var answer struct {
		Error     *jetstream.APIError `json:"error"`
		Stream    string              `json:"stream"`
		Seq       uint64              `json:"seq"`
		Duplicate bool                `json:"duplicate"`
	}
	if err := json.Unmarshal(b, &answer); err != nil {
		return pubAck{}, fmt.Errorf("read the server's answer %.200q: %w", b, err)
	}
	if answer.Error != nil {
		return pubAck{}, answer.Error
	}
	if answer.Stream == "" {
		return pubAck{}, fmt.Errorf("read the server's answer: %.200q is no publish acknowledgement; does another subscriber answer on the topic's subject?", b)
	}
	return pubAck{seq: answer.Seq, duplicate: answer.Duplicate}, nil
}

// parsePlainAck reads {"stream":"S","seq":1} and {"stream":"S","domain":"D","seq":1}.
func parsePlainAck(b []byte) (a pubAck, ok bool) {
	b, ok = bytes.CutPrefix(b, []byte(`{"stream":"`))
	if !ok {
		return a, false
	}
	names, rest, ok := bytes.Cut(b, []byte(`","seq":`))
	stream, domain, _ := bytes.Cut(names, []byte(`","domain":"`))
	if !ok || len(stream) == 0 || bytes.IndexByte(stream, '"') >= 0 || bytes.IndexByte(domain, '"') >= 0 {
		return a, false
	}
	digits := 0
	for digits < len(rest) && digits < 19 && rest[digits] >= '0' && rest[digits] <= '9' {
		a.seq = a.seq*10 + uint64(rest[digits]-'0')
		digits++
	}
	return a, digits > 0 && rest[0] != '0' && len(rest) == digits+1 && rest[digits] == '}'
}
