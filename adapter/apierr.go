package adapter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// Error codes of the server's API that nats.go does not name.
const (
	codeNoPeers           = 10005 // the cluster knows too few servers that are up, as in the moment behind the death of one
	codeNoLeader          = 10008 // only a leader can do it, and the cluster elects one; nothing was done
	codeStoreFull         = 10023 // insufficient resources; of a consumer that is to be made see patient.placeConsumer
	codeMaxConsumers      = 10026 // more consumers than the account may have
	codeMemoryReserved    = 10028 // insufficient memory resources available
	codeStoreReserved     = 10047 // insufficient storage resources available
	codeStreamCreate      = 10049 // a failure without a code of its own; the description tells which
	codeBadConfig         = 10052
	codeSubjectsOverlap   = 10065
	codeWrongLastID       = 10070
	codeNoCluster         = 10074 // more replicas than one, at a server that is in no cluster
	codeStreamStoreFailed = 10077 // also: maximum bytes, messages or messages per subject exceeded
	codeRollupFailed      = 10111 // also: a value of Nats-Rollup that is not known
	codeDuplicatePending  = 10158 // the first publish of this id is still on its way (R>1)
	codeTTLDisabled       = 10166
	codeTooManyRequests   = 10167
	codeBatchDisabled     = 10174
	codeBatchIncomplete   = 10176 // a leader that has not had all of it, or has too many at once; nothing is stored
	codeBatchDuplicate    = 10201
)

// errNoPeers is what a cluster means that has no place for a stream or a consumer.
var errNoPeers = fmt.Errorf("%w: too few servers of the cluster are up and have room for its replicas", jetbus.ErrUnavailable)

// errLost ends a wait for an answer that cannot come: the connection broke.
var errLost = errors.New("connection lost")

// errNoCluster is codeNoCluster. It is of no kind: with another server behind the same settings it passes.
var errNoCluster = errors.New("replicas need a cluster, and this server is alone")

// apiCode returns the server's error code, 0 if err carries none.
func apiCode(err error) jetstream.ErrorCode {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.ErrorCode
	}
	if js, ok := errors.AsType[jetstream.JetStreamError](err); ok && js.APIError() != nil {
		return js.APIError().ErrorCode
	}
	return 0
}

// isAtLimit reports whether a stream refused a message because it is full.
func isAtLimit(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == codeStreamStoreFailed && strings.Contains(api.Description, "maximum")
}

// withoutRoom names what of a topic's configuration is to be smaller, where the server has no
// room for it, or no other servers.
func withoutRoom(err error) error {
	switch apiCode(err) {
	case codeStoreFull, codeStoreReserved, codeMemoryReserved:
		return &jetbus.RemedyError{Err: err, See: "TopicConfig.MaxBytes"}
	case codeNoCluster:
		return &jetbus.RemedyError{Err: err, See: "TopicConfig.Replicas"}
	default:
		return err
	}
}

// withoutCluster is withoutRoom where the bus, and no topic, says how many replicas there are to be.
func withoutCluster(err error) error {
	if apiCode(err) == codeNoCluster {
		return &jetbus.RemedyError{Err: err, See: "Config.Replicas"}
	}
	return err
}

// notThere says of a topic to be removed that it is not there, and why: nobody wants to declare
// or to adopt it for that.
func notThere(err error) error {
	if !errors.Is(err, jetbus.ErrNoTopic) {
		return err
	}
	if r, ok := err.(*jetbus.RemedyError); ok { //nolint:errorlint // what wraps it says more
		err = r.Err
	}
	return &jetbus.RemedyError{Err: err, See: "ListTopics"}
}

// meantError is an error of the server in words of the bus: what the server said is not in its
// text, and is found by errors.As.
type meantError struct{ means, said error }

// Error gives what it means.
func (e *meantError) Error() string { return e.means.Error() }

// Unwrap returns both.
func (e *meantError) Unwrap() []error { return []error{e.means, e.said} }

// doing adds the operation to an error of one that declares or joins. A conflict of that name says
// already what it is about.
func doing(op, what string, err error) error {
	if c, ok := errors.AsType[*jetbus.ConflictError](err); ok && c.What == what {
		return err
	}
	return fmt.Errorf("%s: %w", op, err)
}

// ofTopic names the topic that an error is about, where the operation does not.
func ofTopic(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("topic %s: %w", name, err)
}

// ofOne is ofTopic for an operation that names its topics: of one alone that is enough. A conflict
// says itself what it is about.
func ofOne(topics int, name string, err error) error {
	if _, conflict := errors.AsType[*jetbus.ConflictError](err); conflict || topics == 1 {
		return err
	}
	return ofTopic(name, err)
}

// translate turns an error of nats.go into one of the contract. op is the
// operation with its subject, or nothing where the caller says that; request is the subject
// of the request, to tell a silent refusal from a silent server.
func (srv *server) translate(op, request string, err error) error {
	if err == nil {
		return nil
	}
	err = srv.meaning(request, err)
	if op == "" {
		return err
	}
	return fmt.Errorf("%s: %w", op, err)
}

// meaning is translate without the operation.
func (srv *server) meaning(request string, err error) error {
	code := apiCode(err)
	_, told := errors.AsType[*meantError](err)
	if told = told || errors.Is(err, jetbus.ErrUnavailable) || errors.Is(err, jetbus.ErrUnsupported); told { // the error already has its meaning
		code = 0
	}
	switch code { //nolint:exhaustive // the codes that mean a condition of the contract
	case jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return fmt.Errorf("%w: JetStream is not enabled for this account", jetbus.ErrUnavailable)
	case codeNoLeader:
		return fmt.Errorf("%w: the cluster has no leader for it: %w", jetbus.ErrUnavailable, err)
	case codeNoPeers:
		return &meantError{errNoPeers, err}
	case codeNoCluster:
		return &meantError{errNoCluster, err}
	case codeStoreFull, codeStoreReserved, codeMemoryReserved:
		return fmt.Errorf("%w: the server's storage limit does not leave room for it: lower what it may take, or raise the limit: %w", jetbus.ErrUnavailable, err)
	case jetstream.JSErrCodeStreamNotFound:
		return jetbus.ErrNoTopic
	case jetstream.JSErrCodeConsumerNotFound, jetstream.JSErrCodeConsumerDoesNotExist:
		return jetbus.ErrNoGroup
	case codeSubjectsOverlap:
		return fmt.Errorf("%w: another stream holds its subjects: %w", jetbus.ErrConflict, err)
	}
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w: JetStream is not enabled", jetbus.ErrUnavailable)
	case errors.Is(err, nats.ErrConnectionClosed), srv.link != nil && srv.link.IsClosed():
		return jetbus.ErrClosed
	case srv.denied(request):
		return noPermission(request)
	case told:
		return err
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("%w: nobody answers %s; is JetStream enabled, and has the cluster a leader?", jetbus.ErrUnavailable, request)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, errLost):
		return fmt.Errorf("%w: no answer from the server: %w", jetbus.ErrUnavailable, err)
	}
	if js, ok := errors.AsType[jetstream.JetStreamError](err); ok && js.APIError() != nil && js.Error() == err.Error() { // else what wraps it says more
		return &meantError{fmt.Errorf("the server refuses it: %s (its error %d)", js.APIError().Description, js.APIError().ErrorCode), err}
	}
	return err
}

// denied reports whether the server refused a publish to subject lately or, where
// that ends with a dot, to one that starts so.
func (srv *server) denied(subject string) bool {
	return subject != "" && srv.link.Refused(subject, time.Now().Add(-denialMemory))
}
