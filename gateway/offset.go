package gateway

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/seed-63e9a637/jetbus"
)

// offset is a position in a topic as clients have it: a token that says nothing to them.
// It belongs to one topic, as it was created once.
type offset struct {
	stream uint64 // streamOf the topic
	seq    uint64 // of an event: reading goes on behind it
}

const (
	offsetVersion = 1
	offsetBytes   = 1 + 8 + 8
)

// streamOf tells a topic from another, and from one of the same name that was made anew.
func streamOf(info jetbus.TopicInfo) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(info.Config.Name)) // it never fails
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(info.Created.UnixNano())))
	return h.Sum64()
}

// notReached refuses a position behind the end of a topic: what comes would be skipped.
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
	return base64.RawURLEncoding.AppendEncode(b, raw[:])
}

// parseOffset reads a token. Whether it is one of the topic that is read is for the caller
// to see. The error is a failure.
func parseOffset(token string) (offset, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) != offsetBytes || raw[0] != offsetVersion {
		return offset{}, refuse(CodeBadRequest, "the offset is none that this gateway gave out")
	}
	return offset{stream: binary.BigEndian.Uint64(raw[1:]), seq: binary.BigEndian.Uint64(raw[9:])}, nil
}
