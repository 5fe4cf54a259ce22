package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// markerTTL is how long the server remembers that a key expired, for watchers
// that were away.
const markerTTL = time.Hour

const (
	// recreateDelay is how long a bus waits before it creates a bucket that was deleted. While nats-server (2.15.3
	// and older) deletes a stream, it accepts a new stream of that name, and then deletes the files of the new
	// stream, too: writes to it are not answered until it is deleted again.
	recreateDelay = 500 * time.Millisecond
	// missingFor is how long a noticed loss counts. After that, recreateDelay starts again, because a bucket without a
	// leader appears to be missing, too.
	missingFor = 10 * time.Second
)

// buckets are the key-value buckets of a server, and the locks that are kept in one of them.
type buckets struct {
	*server

	reached sync.Map    // buckets of another domain that were seen to be there
	narrow  atomic.Bool // the log has been told that streams could not be widened

	living  sync.Mutex
	lives   map[string]bucketLife // by bucket; guarded by living
	existed map[string]bool       // buckets that the bus has found or created; guarded by living
	missing map[string]time.Time  // since when buckets that existed are missing; guarded by living
	rooms   map[string]bucketRoom // by bucket; guarded by living

	wide     sync.Mutex
	replicas int // of what the bus keeps, see needReplicas; 0: nobody has asked yet. Guarded by wide
}

// KeyGet implements jetbus.Keys.
func (b *Bus) KeyGet(ctx context.Context, bucket, key string) (jetbus.KeyEntry, error) {
	op := "get key " + bucket + "/" + key
	if err := b.enterKeys(ctx, bucket, key); err != nil {
		return jetbus.KeyEntry{}, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	bucket = bucketOf(b.cfg.Prefix, bucket)
	entry, marker, err := b.readKey(ctx, op, bucket, key)
	if _, used := b.lifeOf(bucket); err == nil && used && entry.Revision == 0 && marker == 0 { // the key may have been lost
		var life bucketLife
		if life, err = b.readLife(ctx, bucket); err != nil {
			return jetbus.KeyEntry{}, fmt.Errorf("%s: %w", op, err)
		}
		entry.Lost = life.hasLost()
	}
	return entry, err
}

// readKey is keyGetMarker for a call on the bus.
func (kv *buckets) readKey(ctx context.Context, op, bucket, key string) (entry jetbus.KeyEntry, marker uint64, err error) {
	ctx, cancel := kv.bound(ctx)
	defer cancel()
	if entry, marker, err = kv.keyGetMarker(ctx, bucket, key); err != nil {
		return jetbus.KeyEntry{}, 0, kv.translate(op, kv.api+"STREAM.MSG.GET."+bucketStream(bucket), err)
	}
	return entry, marker, nil
}

// keyGetMarker asks the stream's leader, because a conditional write must build on the current value
// and not on a replica's. For a key that was deleted or expired it returns the sequence of the server's
// marker. This takes a single request: with two, the key could be written between them, and a write on
// the condition of the second answer would replace that value.
func (kv *buckets) keyGetMarker(ctx context.Context, bucket, key string) (entry jetbus.KeyEntry, marker uint64, err error) {
	m, err := kv.keyMessage(ctx, bucket, key)
	switch {
	case err != nil:
		return jetbus.KeyEntry{}, 0, err
	case m.Header.Get("KV-Operation") != "" || m.Header.Get("Nats-Marker-Reason") != "":
		return jetbus.KeyEntry{Key: key}, m.seq, nil // deleted or expired: as if it had never existed
	}
	return jetbus.KeyEntry{Key: key, Value: m.Data, Revision: m.seq}, 0, nil
}

// keyMessage is the last message of a key. If there is none, seq is 0.
type keyMessage struct {
	nats.Msg
	seq  uint64
	time time.Time // of storage
}

func (kv *buckets) keyMessage(ctx context.Context, bucket, key string) (keyMessage, error) {
	return kv.leaderMessage(ctx, bucketStream(bucket), map[string]any{"last_by_subj": keySubject(bucket, key)})
}

// leaderMessage asks a stream's leader for a message, by "last_by_subj", "seq", or
// "next_by_subj" with "seq" or "start_time"; its sequence is 0 where there is none, and
// where there is no such stream. While there is no leader it asks again, within ctx.
func (srv *server) leaderMessage(ctx context.Context, stream string, which map[string]any) (keyMessage, error) {
	m, err := srv.streamMessage(ctx, stream, which)
	if apiCode(err) == jetstream.JSErrCodeStreamNotFound {
		return keyMessage{}, nil
	}
	return m, err
}

// streamMessage is leaderMessage of a stream that has to be there.
func (srv *server) streamMessage(ctx context.Context, stream string, which map[string]any) (keyMessage, error) {
	ctx, cancel := srv.bound(ctx)
	defer cancel()
	request, err := json.Marshal(which)
	if err != nil {
		return keyMessage{}, err
	}
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		m, err := srv.leaderMessageOnce(ctx, stream, request)
		if !isLeaderless(err) || srv.link.IsOver() {
			return m, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return m, errors.Join(context.Cause(ctx), err)
		}
	}
}

// isLeaderless reports whether a request was lost on a cluster without a leader, or
// refused for the lack of one.
func isLeaderless(err error) bool {
	return errors.Is(err, nats.ErrTimeout) || apiCode(err) == codeNoLeader
}

func (srv *server) leaderMessageOnce(ctx context.Context, stream string, request []byte) (keyMessage, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, nats.ErrTimeout)
	defer cancel()
	m, err := srv.request(ctx, &nats.Msg{Subject: srv.api + "STREAM.MSG.GET." + stream, Data: request})
	if err != nil {
		return keyMessage{}, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Time    time.Time `json:"time"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return keyMessage{}, err
	}
	if e := answer.Error; e != nil {
		if e.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return keyMessage{}, nil
		}
		return keyMessage{}, e
	}
	out := keyMessage{Msg: nats.Msg{Subject: answer.Message.Subject, Data: answer.Message.Data}, seq: answer.Message.Seq, time: answer.Message.Time}
	if len(answer.Message.Header) > 0 {
		out.Header, err = nats.DecodeHeadersMsg(answer.Message.Header)
	}
	return out, err
}

// KeySet implements jetbus.Keys.
func (b *Bus) KeySet(ctx context.Context, bucket, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	op := "set key " + bucket + "/" + key
	if ttl != 0 && ttl < time.Second {
		return 0, fmt.Errorf("%s: %w: ttl is %v, use at least 1 second, or 0 for none", op, jetbus.ErrInvalidOption, ttl)
	}
	if err := b.enterKeys(ctx, bucket, key); err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	bucket = bucketOf(b.cfg.Prefix, bucket)
	if ttl != 0 {
		if err := b.startLife(ctx, bucket); err != nil {
			return 0, fmt.Errorf("%s: %w", op, err)
		}
	}
	return b.writeKey(ctx, op, bucket, key, value, expiring(ttl), revision)
}

// expiring is the header of a value with a TTL; 0: it has none.
func expiring(ttl time.Duration) nats.Header {
	h := nats.Header{}
	if ttl > 0 {
		h.Set("Nats-TTL", ttl.Round(time.Second).String())
	}
	return h
}

// KeyDelete implements jetbus.Keys.
func (b *Bus) KeyDelete(ctx context.Context, bucket, key string, revision uint64) error {
	op := "delete key " + bucket + "/" + key
	if err := b.enterKeys(ctx, bucket, key); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	_, err := b.writeKey(ctx, op, bucketOf(b.cfg.Prefix, bucket), key, nil, purging(), revision)
	return err
}

// purging is the header of what stands for a key that is deleted.
func purging() nats.Header {
	return nats.Header{"KV-Operation": {"PURGE"}, "Nats-Rollup": {"sub"}, "Nats-TTL": {markerTTL.String()}}
}

// writeKey publishes to a key's subject on the condition that the key's revision is the given one. It
// is for calls that have begun, for which Close waits.
func (kv *buckets) writeKey(ctx context.Context, op, bucket, key string, value []byte, h nats.Header, revision uint64) (uint64, error) {
	ctx, cancel := kv.bound(ctx)
	defer cancel()
	if revision == 0 { // if the key was deleted or expired, its subject's last sequence is the marker's
		_, marker, err := kv.keyGetMarker(ctx, bucket, key)
		if err != nil {
			return 0, kv.translate(op, kv.api+"STREAM.MSG.GET."+bucketStream(bucket), err)
		}
		revision = marker // 0 does not match an existing key
	}
	h.Set(jetstream.ExpectedLastSubjSeqHeader, sequenceText(revision))
	h.Set(jetstream.MsgIDHeader, jetbus.NewID())
	m := &nats.Msg{Subject: kv.keyTo(bucket, key), Data: value, Header: h}
	if err := kv.fits(m); err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	if err := kv.reachBucket(ctx, bucket); err != nil {
		return 0, kv.translate(op, kv.api+"STREAM.INFO."+bucketStream(bucket), err)
	}
	var seq uint64
	err := kv.takeRoom(ctx, bucket, m, revision != 0)
	if err == nil {
		seq, err = kv.storeKey(ctx, bucket, key, m)
	}
	switch {
	case isWrongSequence(err):
		return 0, fmt.Errorf("%s: %w", op, jetbus.ErrWrongSequence)
	case isAtLimit(err), errors.Is(err, jetbus.ErrBucketFull):
		return 0, fmt.Errorf("%s: %w: delete keys, let them expire, or raise max_bytes of stream %s", op, jetbus.ErrBucketFull, bucketStream(bucket))
	case apiCode(err) == codeTTLDisabled:
		return 0, fmt.Errorf("%s: %w: the keys of bucket %s cannot expire: it was made without limit markers; delete it, or name another one", op, jetbus.ErrUnsupported, bucket)
	}
	return seq, kv.translate(op, m.Subject, err)
}

// storeKey sends a conditional write until it is answered, within ctx, which has a
// deadline: a cluster that elects a leader of the bucket's stream says nothing, that it has
// none, or that nobody is there. One that was stored without an answer is refused when
// it is repeated, by the sequence it made itself; its id shows that.
func (kv *buckets) storeKey(ctx context.Context, bucket, key string, m *nats.Msg) (uint64, error) {
	stored := false // perhaps
	for wait := publishRetry; ; wait = min(2*wait, publishRetryMax) {
		seq, err := kv.storeKeyOnce(ctx, m)
		switch {
		case err == errLost: //nolint:errorlint // exchange returns it as it is
			stored = true
			continue // link.Wait waits
		case isLeaderless(err):
			stored = stored || errors.Is(err, nats.ErrTimeout)
		case errors.Is(err, nats.ErrNoResponders): // in a cluster a new bucket is not reachable everywhere at once
			if until := kv.untilCreate(bucket); until > 0 { // unless it is only without a leader
				wait = min(wait, until)
				break
			}
			if err := kv.createBucket(ctx, bucket); err != nil {
				return 0, err
			}
		case apiCode(err) == codeDuplicatePending:
			stored = true
		case stored && isWrongSequence(err):
			last, getErr := kv.keyMessage(ctx, bucket, key)
			switch {
			case getErr != nil: // whose it is is not known
				err = getErr
			case last.Header.Get(jetstream.MsgIDHeader) == m.Header.Get(jetstream.MsgIDHeader):
				return last.seq, nil
			}
			return 0, err
		default:
			if err == nil {
				kv.noteExists(bucket)
			}
			return seq, err
		}
		if kv.link.IsOver() {
			return 0, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return 0, errors.Join(context.Cause(ctx), err)
		}
	}
}

func (kv *buckets) storeKeyOnce(ctx context.Context, m *nats.Msg) (uint64, error) {
	lost, err := kv.link.Wait(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, nats.ErrTimeout) // what is repeated is not stored twice
	defer cancel()
	answer, err := kv.exchange(ctx, m, lost, tryTimeout)
	if err != nil {
		return 0, err
	}
	ack, err := parsePubAck(answer.Data)
	return ack.seq, err
}

// reachBucket makes sure, once, that a bucket of another domain is there: that it is not
// is silence behind a leaf node, and not that nobody answers.
func (kv *buckets) reachBucket(ctx context.Context, bucket string) error {
	if kv.cfg.Domain == "" {
		return nil
	}
	if _, there := kv.reached.Load(bucket); there {
		return nil
	}
	_, err := kv.js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		err = kv.createBucket(ctx, bucket)
	}
	if err == nil {
		kv.reached.Store(bucket, struct{}{})
	}
	return err
}

// createBucket creates a bucket unless a stream of that name exists, whatever its settings are. If the bucket
// existed before, it is created recreateDelay after a bus noticed that it is missing.
func (kv *buckets) createBucket(ctx context.Context, bucket string) error {
	if wait := kv.untilCreate(bucket); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	storage := jetstream.FileStorage
	if kv.cfg.Storage == jetbus.MemoryStorage {
		storage = jetstream.MemoryStorage
	}
	config := jetstream.StreamConfig{ // as nats.go makes one, but for MaxConsumers: each watch is a consumer
		Name: bucketStream(bucket), Description: "JetBus", Subjects: []string{"$KV." + bucket + ".>"},
		MaxMsgsPerSubject: 1, MaxMsgs: -1, MaxMsgSize: -1, MaxBytes: 64 << 20, MaxConsumers: maxConsumers,
		Discard: jetstream.DiscardNew, Storage: storage, Replicas: kv.needReplicas(0), Duplicates: 2 * time.Minute,
		AllowRollup: true, DenyDelete: true, AllowDirect: true, AllowMsgTTL: true, SubjectDeleteMarkerTTL: markerTTL,
		FirstSeq: kv.firstRevision(bucket),
	}
	create := func(ctx context.Context) (jetstream.Stream, error) { return kv.js.CreateStream(ctx, config) }
	_, err := ask(ctx, kv.server, kv.api+"STREAM.CREATE."+config.Name, create)
	if apiCode(err) == codeMaxConsumers { // the account's limit is lower, and holds then
		config.MaxConsumers = -1
		_, err = ask(ctx, kv.server, kv.api+"STREAM.CREATE."+config.Name, create)
	}
	if apiCode(err) == jetstream.JSErrCodeStreamNameInUse {
		return nil
	}
	if err == nil {
		kv.noteExists(bucket)
	}
	return err
}

// untilCreate returns how long to wait until a missing bucket may be created. It returns 0 if the bus does not know
// that the bucket existed. The time counts from the first call, and again after missingFor.
func (kv *buckets) untilCreate(bucket string) time.Duration {
	kv.living.Lock()
	defer kv.living.Unlock()
	if l := kv.lives[bucket]; !kv.existed[bucket] && l.revision == 0 && !l.wasUsed {
		return 0
	}
	since, noted := kv.missing[bucket]
	if !noted || time.Since(since) > missingFor {
		since = time.Now()
		if kv.missing == nil {
			kv.missing = map[string]time.Time{}
		}
		kv.missing[bucket] = since
	}
	return recreateDelay - time.Since(since)
}

// noteExists records that a bucket exists.
func (kv *buckets) noteExists(bucket string) {
	kv.living.Lock()
	defer kv.living.Unlock()
	if kv.existed == nil {
		kv.existed = map[string]bool{}
	}
	kv.existed[bucket] = true
	delete(kv.missing, bucket)
}

// enterKeys begins a call on a key.
func (b *Bus) enterKeys(ctx context.Context, bucket, key string) error {
	if err := validKey(bucket, key); err != nil {
		return err
	}
	return b.enter(ctx)
}

func validKey(bucket, key string) error {
	switch {
	case bucket == "" || len(bucket) > 100 || strings.IndexFunc(bucket, func(r rune) bool { return !keyRune(r) || r == '/' || r == '.' }) >= 0:
		return fmt.Errorf("%w: bucket %q: use letters, digits, '_' and '-'", jetbus.ErrInvalidOption, bucket)
	case key == "" || jetbus.ValidKey(key) != nil:
		return fmt.Errorf("%w: key %q: use 1 to %d bytes of UTF-8 without control characters", jetbus.ErrInvalidOption, key, jetbus.MaxKeyBytes)
	}
	return nil
}

// bucketOf is the bucket that users of a bus mean by a name: buses of each prefix have their own. Those
// of the bus itself all prefixes share, as what they hold has the names of streams; groups of partition.Join
// are in one of them, too, under whatever name they were given.
func bucketOf(prefix, name string) string {
	if prefix == "ev" || name == attemptsBucket || name == locksBucket || name == ownersBucket {
		return name
	}
	return name + "_" + strings.ReplaceAll(prefix, ".", "_") + "__" + ce.ShortHash(prefix)
}

func bucketStream(bucket string) string { return "KV_" + bucket }

// keySubject is where a key is stored.
func keySubject(bucket, key string) string { return "$KV." + bucket + "." + bucketKey(key) }

// keyTo is where writes of a key are sent. Leaf nodes do not pass on the subjects of
// keys; those of the domain's API they do.
func (kv *buckets) keyTo(bucket, key string) string {
	if kv.cfg.Domain == "" {
		return keySubject(bucket, key)
	}
	return kv.api + keySubject(bucket, key)
}

// bucketKey escapes a key to what key-value tools take: letters, digits, '_',
// '-', '/' and dots between them; every other byte is "=" and two hex digits.
func bucketKey(key string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		dot := c == '.' && i > 0 && i < len(key)-1 && key[i-1] != '.'
		if dot || c != '.' && keyRune(rune(c)) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('=')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}

func parseBucketKey(escaped string) (key string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		if escaped[i] != '=' {
			b.WriteByte(escaped[i])
			continue
		}
		if i+2 >= len(escaped) {
			return "", false
		}
		c, err := strconv.ParseUint(escaped[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), true
}

func keyRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '/'
}
