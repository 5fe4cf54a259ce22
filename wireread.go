package jetbus

import (
	"encoding/json"
	"time"
)

type plainReceiveOptions ReceiveOptions

type receiveJSON struct {
	startJSON
	plainReceiveOptions
	WaitMs       millis `json:"waitMs,omitempty"`
	AckTimeoutMs millis `json:"ackTimeoutMs,omitempty"`
}

// MarshalJSON gives the members from, ts, afterId, afterSeq, max, waitMs,
// ackTimeoutMs and maxAttempts, leaving out what is zero.
func (o ReceiveOptions) MarshalJSON() ([]byte, error) {
	return json.Marshal(receiveJSON{o.From.wire(), plainReceiveOptions(o), millis(o.Wait), millis(o.AckTimeout)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *ReceiveOptions) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[receiveJSON](text, "receive options")
	if err != nil {
		return err
	}
	*o = ReceiveOptions(w.plainReceiveOptions)
	o.Wait, o.AckTimeout = time.Duration(w.WaitMs), time.Duration(w.AckTimeoutMs)
	o.From, err = w.start()
	return err
}

type plainReadOptions ReadOptions

type readJSON struct {
	startJSON
	plainReadOptions
}

// MarshalJSON gives the members from, ts, afterId, afterSeq, after, follow and
// filter, leaving out what is zero.
func (o ReadOptions) MarshalJSON() ([]byte, error) {
	return json.Marshal(readJSON{o.From.wire(), plainReadOptions(o)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *ReadOptions) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[readJSON](text, "read options")
	if err != nil {
		return err
	}
	*o = ReadOptions(w.plainReadOptions)
	o.From, err = w.start()
	return err
}

type plainScanQuery ScanQuery

type scanJSON struct {
	startJSON
	plainScanQuery
}

// MarshalJSON gives the members from, ts, afterId, afterSeq, limit and filter,
// leaving out what is zero.
func (q ScanQuery) MarshalJSON() ([]byte, error) {
	return json.Marshal(scanJSON{q.From.wire(), plainScanQuery(q)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (q *ScanQuery) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[scanJSON](text, "scan query")
	if err != nil {
		return err
	}
	*q = ScanQuery(w.plainScanQuery)
	q.From, err = w.start()
	return err
}

type plainTopicConfig TopicConfig

type topicConfigJSON struct {
	plainTopicConfig
	RetentionMs       millis `json:"retentionMs,omitempty"`
	DuplicateWindowMs millis `json:"duplicateWindowMs,omitempty"`
}

// MarshalJSON gives the members name, description, retentionMs, maxBytes,
// maxEvents, discard, storage, replicas, duplicateWindowMs, keyInSubject,
// delays, stream and subject, leaving out what is zero, except name.
func (c TopicConfig) MarshalJSON() ([]byte, error) {
	return json.Marshal(topicConfigJSON{plainTopicConfig(c), millis(c.Retention), millis(c.DuplicateWindow)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (c *TopicConfig) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[topicConfigJSON](text, "topic configuration")
	if err != nil {
		return err
	}
	*c = TopicConfig(w.plainTopicConfig)
	c.Retention, c.DuplicateWindow = time.Duration(w.RetentionMs), time.Duration(w.DuplicateWindowMs)
	return nil
}

type plainTopicInfo TopicInfo

type topicInfoJSON struct {
	plainTopicInfo
	Created *int64 `json:"created,omitempty"`
	LastTS  *int64 `json:"lastTs,omitempty"`
}

// MarshalJSON gives the members config, stream, created, events, bytes,
// firstSeq, lastSeq, lastTs and groups, times in epoch milliseconds and left out
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
	LastAck      *int64 `json:"lastAck,omitempty"`
}

// MarshalJSON gives the members topic, group, created, ackTimeoutMs, pending,
// held, retrying, ackedSeq, waiting, paused and lastAck, times in epoch
// milliseconds and left out when zero.
func (i GroupInfo) MarshalJSON() ([]byte, error) {
	return json.Marshal(groupInfoJSON{plainGroupInfo(i), toEpoch(i.Created), millis(i.AckTimeout), toEpoch(i.LastAck)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (i *GroupInfo) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[groupInfoJSON](text, "group info")
	if err != nil {
		return err
	}
	*i = GroupInfo(w.plainGroupInfo)
	i.Created, i.AckTimeout, i.LastAck = fromEpoch(w.Created), time.Duration(w.AckTimeoutMs), fromEpoch(w.LastAck)
	return nil
}
