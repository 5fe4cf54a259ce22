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
	codeStoreFull         = 10023 // insufficient resources
	codeMaxConsumers      = 10026 // more consumers than the account may have
	codeMemoryReserved    = 10028 // insufficient memory resources available
	codeStoreReserved     = 10047 // insufficient storage resources available
	codeStreamCreate      = 10049 // a failure without a code of its own; the description tells which
	codeBadConfig         = 10052
	codeSubjectsOverlap   = 10065
	codeWrongLastID       = 10070
	codeStreamStoreFailed = 10077 // also: maximum bytes, messages or messages per subject exceeded
	codeDuplicatePending  = 10158 // the first publish of this id is still on its way (R>1)
	codeTTLDisabled       = 10166
	codeTooManyRequests   = 10167
	codeBatchDisabled     = 10174
	codeBatchDuplicate    = 10201
)

// errLost ends a wait for an answer that cannot come: the connection broke.
var errLost = errors.New("connection lost")

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
// room for it.
func withoutRoom(err error) error {
	switch apiCode(err) {
	case codeStoreFull, codeStoreReserved, codeMemoryReserved:
		return &jetbus.RemedyError{Err: err, See: "TopicConfig.MaxBytes"}
	default:
		return err
	}
}

// translate turns an error of nats.go into one of the contract. op is the
// operation with its subject; request is the subject of the request, to tell a
// silent refusal from a silent server.
func (srv *server) translate(op, request string, err error) error {
	if err == nil {
		return nil
	}
	switch apiCode(err) { //nolint:exhaustive // the codes that mean a condition of the contract
	case jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return fmt.Errorf("%s: %w: JetStream is not enabled for this account", op, jetbus.ErrUnavailable)
	case codeNoLeader:
		return fmt.Errorf("%s: %w: the cluster has no leader for it: %w", op, jetbus.ErrUnavailable, err)
	case codeNoPeers:
		return fmt.Errorf("%s: %w: too few servers of the cluster are up and have room for its replicas: %w", op, jetbus.ErrUnavailable, err)
	case codeStoreFull, codeStoreReserved, codeMemoryReserved:
		return fmt.Errorf("%s: %w: the server's storage limit does not leave room for it: lower what it may take, or raise the limit: %w", op, jetbus.ErrUnavailable, err)
	case jetstream.JSErrCodeStreamNotFound:
		return fmt.Errorf("%s: %w", op, jetbus.ErrNoTopic)
	case jetstream.JSErrCodeConsumerNotFound, jetstream.JSErrCodeConsumerDoesNotExist:
		return fmt.Errorf("%s: %w", op, jetbus.ErrNoGroup)
	case codeSubjectsOverlap:
		return fmt.Errorf("%s: %w: another stream holds its subjects: %w", op, jetbus.ErrConflict, err)
	}
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%s: %w: JetStream is not enabled", op, jetbus.ErrUnavailable)
	case errors.Is(err, nats.ErrConnectionClosed), srv.link != nil && srv.link.IsClosed():
		return fmt.Errorf("%s: %w", op, jetbus.ErrClosed)
	case srv.denied(request):
		return fmt.Errorf("%s: %w: no permission to publish to %s", op, jetbus.ErrDenied, request)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("%s: %w: nobody answers %s; is JetStream enabled, and has the cluster a leader?", op, jetbus.ErrUnavailable, request)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, errLost):
		return fmt.Errorf("%s: %w: no answer from the server: %w", op, jetbus.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// denied reports whether the server refused a publish to subject lately or, where
// that ends with a dot, to one that starts so.
func (srv *server) denied(subject string) bool {
	return subject != "" && srv.link.Refused(subject, time.Now().Add(-denialMemory))
}
