package client

import (
	"errors"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// A condition is known by its text, wherever a gateway of another version says its remedy is.
func TestConditionsOfOtherVersions(t *testing.T) {
	for text, want := range map[string]error{
		"the topic does not keep keys in its subjects (TopicConfig.KeyInSubject)":     jetbus.ErrNeedsKeySubject,
		"the topic does not keep keys in its subjects (see TopicConfig.KeyInSubject)": jetbus.ErrNeedsKeySubject,
		"the topic has no partitions": jetbus.ErrNoPartitions,
		"no":                          jetbus.ErrUnsupported,
	} {
		if err := refusal(&frame.Message{Code: "unsupported", Msg: "topic a: " + text}); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}
