package registry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// The bucket's format, in its metadata.
const (
	formatField   = "format"
	formatVersion = "1"
)

func (r *Registry) stream() string { return "KV_" + r.cfg.Bucket }

func (r *Registry) subject(key string) string { return "$KV." + r.cfg.Bucket + "." + key }

// openBucket returns the bucket, which it makes where there is none. Two that make
// it at once make the same.
func (r *Registry) openBucket(ctx context.Context) (jetstream.KeyValue, error) {
	info, create := r.api+"STREAM.INFO."+r.stream(), r.api+"STREAM.CREATE."+r.stream()
	find := func(ctx context.Context) (jetstream.KeyValue, error) { return r.js.KeyValue(ctx, r.cfg.Bucket) }
	kv, err := ask(ctx, r, info, find)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = ask(ctx, r, create, r.createBucket)
		if err != nil && !errors.Is(err, jetstream.ErrBucketExists) { // by another, with other settings
			return nil, r.translate(create, err)
		}
		if err != nil {
			kv, err = ask(ctx, r, info, find)
		}
	}
	if err != nil {
		return nil, r.translate(info, err)
	}
	status, err := ask(ctx, r, info, kv.Status)
	if err != nil {
		return nil, r.translate(info, err)
	}
	bucket, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok {
		return nil, fmt.Errorf("%w: the client tells no stream of the bucket", jetbus.ErrUnsupported)
	}
	if err := r.checkBucket(bucket.StreamInfo().Config); err != nil {
		return nil, err
	}
	return kv, nil
}

// createBucket makes the bucket. When the server has deleted an account's last stream it
// tidies that one's folders up after its answer, and may take those of the next one away
// with them: that is asked for again.
func (r *Registry) createBucket(ctx context.Context) (jetstream.KeyValue, error) {
	for tries := 3; ; tries-- {
		kv, err := r.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: r.cfg.Bucket, Description: "JetBus schemas", History: 10, MaxValueSize: maxRecordBytes,
			Storage: jetstream.FileStorage, Replicas: r.cfg.Replicas, Compression: true,
			Metadata: map[string]string{formatField: formatVersion},
		})
		if apiCode(err) != codeStreamCreate || tries == 1 || !pause(ctx, 50*time.Millisecond) {
			return kv, err
		}
	}
}

// checkBucket refuses a bucket that is not a registry of this format, or that
// would lose what is stored in it.
func (r *Registry) checkBucket(c jetstream.StreamConfig) error {
	conflict := &jetbus.ConflictError{What: "bucket " + r.cfg.Bucket, Hint: "use another bucket, or correct this one"}
	differs := func(wrong bool, field, have, want string) {
		if wrong {
			conflict.Differences = append(conflict.Differences, jetbus.Difference{Field: field, Have: have, Want: want})
		}
	}
	format := c.Metadata[formatField]
	differs(format != formatVersion, "metadata format", strconv.Quote(format), strconv.Quote(formatVersion))
	differs(c.Storage != jetstream.FileStorage, "storage", c.Storage.String(), jetstream.FileStorage.String())
	differs(c.MaxAge != 0, "TTL", c.MaxAge.String(), "0")
	differs(c.MaxMsgSize > 0 && c.MaxMsgSize < maxRecordBytes, "MaxValueSize", strconv.Itoa(int(c.MaxMsgSize)), strconv.Itoa(maxRecordBytes)+" or more")
	differs((c.MaxBytes > 0 || c.MaxMsgs > 0) && c.Discard != jetstream.DiscardNew, "discard", c.Discard.String(), jetstream.DiscardNew.String())
	differs(c.Mirror != nil || len(c.Sources) > 0, "sources", "some", "none")
	differs(c.Sealed, "sealed", "true", "false")
	if len(conflict.Differences) > 0 {
		return conflict
	}
	return nil
}

// Error codes of the server's API that nats.go does not name.
const (
	codeStreamCreate   = 10049 // a failure without a code of its own, as of the disk
	codeStoreFull      = 10023
	codeStoreReserved  = 10047
	codeNoCluster      = 10074 // more replicas than one, at a server that is in no cluster
	codeStoreFailed    = 10077 // also: the maximum bytes or messages exceeded
	codeMessageTooLong = 10054
)

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

// meantError is an error of the server in words of the bus: what the server said is not in its
// text, and is found by errors.As.
type meantError struct{ means, said error }

// Error gives what it means.
func (e *meantError) Error() string { return e.means.Error() }

// Unwrap returns both.
func (e *meantError) Unwrap() []error { return []error{e.means, e.said} }

// translate turns an error of nats.go into one of the contract. request is the
// subject of the request.
func (r *Registry) translate(request string, err error) error {
	if err == nil {
		return nil
	}
	switch apiCode(err) { //nolint:exhaustive // the codes that mean a condition of the contract
	case jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return fmt.Errorf("%w: JetStream is not enabled for this account", jetbus.ErrUnavailable)
	case codeStoreFull, codeStoreReserved, codeStoreFailed:
		return fmt.Errorf("%w: the bucket or the server's storage is full: %w", jetbus.ErrUnavailable, err)
	case codeNoCluster:
		err = &meantError{errors.New("replicas need a cluster, and this server is alone"), err}
		return &jetbus.RemedyError{Err: err, See: "Config.Replicas"}
	case codeMessageTooLong:
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case jetstream.JSErrCodeStreamNotFound:
		return fmt.Errorf("%w: the bucket is gone: open the registry anew", jetbus.ErrUnavailable)
	}
	switch {
	case errors.Is(err, jetbus.ErrClosed), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining), r.link.IsClosed():
		return jetbus.ErrClosed
	case errors.Is(err, jetbus.ErrDenied):
		return err
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w: JetStream is not enabled", jetbus.ErrUnavailable)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("%w: nobody answers %s; is JetStream enabled, and has the cluster a leader?", jetbus.ErrUnavailable, request)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, errLost):
		return fmt.Errorf("%w: no answer from the server to %s: %w", jetbus.ErrUnavailable, request, err)
	}
	if js, ok := errors.AsType[jetstream.JetStreamError](err); ok && js.APIError() != nil && js.Error() == err.Error() { // else what wraps it says more
		return &meantError{fmt.Errorf("the server refuses it: %s (its error %d)", js.APIError().Description, js.APIError().ErrorCode), err}
	}
	return err
}
