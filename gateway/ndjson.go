package gateway

import (
	"bytes"
	"encoding/json"

	"github.com/seed-63e9a637/jetbus"
)

// lines splits a text into its lines, without those that are empty. There are more than
// most: the error is a failure.
func lines(text []byte, most int) ([][]byte, error) {
	var out [][]byte
	for line := range bytes.SplitSeq(text, []byte("\n")) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if len(out) == most {
			return nil, tooMany(most)
		}
		out = append(out, line)
	}
	return out, nil
}

func tooMany(most int) error {
	return refuse(CodeTooLarge, "the batch has more than %d events", most)
}

// lineEvent reads one line of a batch: an event as the gateway itself gives it out. The
// payload keeps its bytes.
func lineEvent(topic string, line []byte) (jetbus.Event, error) {
	if err := validJSON(line); err != nil {
		return jetbus.Event{}, err
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(line, &members) != nil || members == nil {
		return jetbus.Event{}, refuse(CodeBadJSON, "a line is an object: {\"payload\": ...}, with id, key, ts, headers, tags and caused_by as needed")
	}
	if members["payload"] == nil && members["payload_base64"] == nil {
		return jetbus.Event{}, refuse(CodeBadRequest, "a line has the member payload, or payload_base64")
	}
	var e jetbus.Event
	if err := json.Unmarshal(line, &e); err != nil {
		return jetbus.Event{}, refuse(CodeBadRequest, "the line is no event: %v", err)
	}
	if e.Topic != "" && e.Topic != topic {
		return jetbus.Event{}, refuse(CodeBadRequest, "the line is of topic %.200q, the path of %s", e.Topic, topic)
	}
	e.Topic, e.Partition, e.Seq = topic, jetbus.NoPartition, 0
	return e, nil
}
