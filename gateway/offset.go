package gateway

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// offset is a position in a topic. Clients hold it as an opaque token. It identifies the topic by name
// and creation time. It identifies the event by the time when it was stored, because a broker that is
// restored to an earlier state assigns sequences again.
type offset struct {
	stream uint64 // streamOf the topic
	seq    uint64 // of the last event; reading resumes after it
	stored int64  // when the broker stored the event, in nanoseconds since 1970; 0: unknown
}

// Older gateways return tokens of version 1, which do not have the time.
const (
	offsetVersion = 2
	offsetBytes   = 1 + 8 + 8 + 8
	offsetBytesV1 = 1 + 8 + 8
)

// newOffset returns the offset of a position. If c is the checkpoint of seq, the offset has its time.
func newOffset(stream, seq uint64, c jetbus.Checkpoint) offset {
	o := offset{stream: stream, seq: seq}
	if c.Seq == seq && !c.Stored.IsZero() {
		o.stored = c.Stored.UnixNano()
	}
	return o
}

// offsetOf returns the offset of an event.
func offsetOf(stream uint64, e *jetbus.Event) offset {
	return newOffset(stream, e.Seq, jetbus.CheckpointOf(e))
}

// endOf returns the checkpoint of the end of a topic's stream.
func endOf(info jetbus.TopicInfo) jetbus.Checkpoint {
	return jetbus.Checkpoint{Seq: info.LastSeq, Stored: info.LastTime}
}

// checkpoint returns the checkpoint of the event at the position, or the zero Checkpoint if its time is
// unknown.
func (o offset) checkpoint() jetbus.Checkpoint {
	if o.stored == 0 {
		return jetbus.Checkpoint{}
	}
	return jetbus.Checkpoint{Seq: o.seq, Stored: time.Unix(0, o.stored)}
}

// verify checks that the topic still has the history in which the offset was created. The error matches
// [jetbus.ErrPositionUnknown] if the topic was restored to an earlier state.
func (o offset) verify(ctx context.Context, b jetbus.Backend, topic string) error {
	err := o.checkpoint().Verify(ctx, b, topic)
	if errors.Is(err, jetbus.ErrUnsupported) { // the stream does not allow direct gets
		return nil
	}
	return err
}

// streamOf returns a hash of a topic's name and time of creation.
func streamOf(info jetbus.TopicInfo) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(info.Config.Name)) // it never fails
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(info.Created.UnixNano())))
	return h.Sum64()
}

// notReached returns the error of a position after the end of a topic. Reading from there would skip the
// next events.
func notReached(info jetbus.TopicInfo, seq uint64) error {
	return fmt.Errorf("read %s: %w: its last event is at %d, and none is at %d", info.Config.Name, jetbus.ErrPositionUnknown, info.LastSeq, seq)
}

// String is the token.
func (o offset) String() string { return string(o.appendTo(nil)) }

// appendTo appends the token.
func (o offset) appendTo(b []byte) []byte {
	var raw [offsetBytes]byte
	raw[0] = offsetVersion
	binary.BigEndian.PutUint64(raw[1:], o.stream)
	binary.BigEndian.PutUint64(raw[9:], o.seq)
	binary.BigEndian.PutUint64(raw[17:], uint64(o.stored)) //nolint:gosec // its bits
	return base64.RawURLEncoding.AppendEncode(b, raw[:])
}

// parseOffset decodes a token. The caller compares it with the topic. The error is a failure.
func parseOffset(token string) (offset, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	var o offset
	switch {
	case err == nil && len(raw) == offsetBytes && raw[0] == offsetVersion:
		o.stored = int64(binary.BigEndian.Uint64(raw[17:])) //nolint:gosec // its bits
	case err == nil && len(raw) == offsetBytesV1 && raw[0] == 1:
	default:
		return o, refuse(CodeBadRequest, "invalid offset: use one that a gateway returned")
	}
	o.stream, o.seq = binary.BigEndian.Uint64(raw[1:]), binary.BigEndian.Uint64(raw[9:])
	return o, nil
}
