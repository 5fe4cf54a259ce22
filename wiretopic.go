package jetbus

import (
	"encoding/json"
	"time"
)

type plainTopicConfig TopicConfig

type topicConfigJSON struct {
	plainTopicConfig
	RetentionMs       millis `json:"retentionMs,omitempty"`
	DuplicateWindowMs millis `json:"duplicateWindowMs,omitempty"`
	TombstoneTTLMs    millis `json:"tombstoneTtlMs,omitempty"`
}

// MarshalJSON gives the members name, description, retentionMs, maxBytes,
// maxEvents, discard, storage, replicas, duplicateWindowMs, keyInSubject, partitions,
// delays, compact, history, snapshotOf, tombstoneTtlMs, stream and subject, leaving out what is zero, except name.
func (c TopicConfig) MarshalJSON() ([]byte, error) {
	return json.Marshal(topicConfigJSON{plainTopicConfig(c), millis(c.Retention), millis(c.DuplicateWindow), millis(c.TombstoneTTL)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (c *TopicConfig) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[topicConfigJSON](text, "topic configuration")
	if err != nil {
		return err
	}
	*c = TopicConfig(w.plainTopicConfig)
	c.Retention, c.DuplicateWindow = time.Duration(w.RetentionMs), time.Duration(w.DuplicateWindowMs)
	c.TombstoneTTL = time.Duration(w.TombstoneTTLMs)
	return nil
}

type plainTopicInfo TopicInfo

type topicInfoJSON struct {
	plainTopicInfo
	Created *int64 `json:"created,omitempty"`
	LastTS  *int64 `json:"lastTs,omitempty"`
}

// MarshalJSON gives the members config, stream, created, events, bytes,
// firstSeq, lastSeq, lastTs, groups, generations and lag, times in epoch milliseconds and left out
// when zero.
func (i TopicInfo) MarshalJSON() ([]byte, error) {
	return json.Marshal(topicInfoJSON{plainTopicInfo(i), toEpoch(i.Created), toEpoch(i.LastTime)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (i *TopicInfo) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[topicInfoJSON](text, "topic info")
	if err != nil {
		return err
	}
	*i = TopicInfo(w.plainTopicInfo)
	i.Created, i.LastTime = fromEpoch(w.Created), fromEpoch(w.LastTS)
	return nil
}

type plainGroupInfo GroupInfo

type groupInfoJSON struct {
	plainGroupInfo
	Created      *int64 `json:"created,omitempty"`
	AckTimeoutMs millis `json:"ackTimeoutMs"`
	InactiveMs   millis `json:"inactiveMs,omitempty"`
	LastAck      *int64 `json:"lastAck,omitempty"`
}

// MarshalJSON gives the members topic, group, created, ackTimeoutMs, maxInFlight,
// inactiveMs, pending, held, retrying, ackedSeq, waiting, paused and lastAck, times in
// epoch milliseconds. Those of times, maxInFlight and inactiveMs are left out when zero.
func (i GroupInfo) MarshalJSON() ([]byte, error) {
	return json.Marshal(groupInfoJSON{plainGroupInfo(i), toEpoch(i.Created), millis(i.AckTimeout), millis(i.Inactive), toEpoch(i.LastAck)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (i *GroupInfo) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[groupInfoJSON](text, "group info")
	if err != nil {
		return err
	}
	*i = GroupInfo(w.plainGroupInfo)
	i.Created, i.AckTimeout, i.LastAck = fromEpoch(w.Created), time.Duration(w.AckTimeoutMs), fromEpoch(w.LastAck)
	i.Inactive = time.Duration(w.InactiveMs)
	return nil
}
