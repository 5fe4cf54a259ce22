package jetbus_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

func ExampleValidTopic() {
	for _, name := range []string{"process.state", "process.state.v2", "Process.State", "process.state.v02"} {
		err := jetbus.ValidTopic(name)
		fmt.Println(name, errors.Is(err, jetbus.ErrInvalidTopic))
	}
	fmt.Println(jetbus.TopicVersion("process.state.v2"))
	// Output:
	// process.state false
	// process.state.v2 false
	// Process.State true
	// process.state.v02 true
	// process.state 2
}

// An event has the same JSON form in every language.
func ExampleEvent() {
	e := jetbus.Event{
		ID:        "4711-started",
		Time:      time.UnixMilli(1750000000123),
		Topic:     "process.state",
		Key:       "host-1/4711",
		Partition: jetbus.NoPartition,
		Headers:   map[string]string{"x-schema-version": "1"},
		Payload:   []byte(`{"state":"running"}`),
		CausedBy:  []string{"deploy-17"},
	}
	if err := e.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	text, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(text))
	// Output:
	// {
	//   "id": "4711-started",
	//   "ts": 1750000000123,
	//   "topic": "process.state",
	//   "key": "host-1/4711",
	//   "headers": {
	//     "x-schema-version": "1"
	//   },
	//   "caused_by": [
	//     "deploy-17"
	//   ],
	//   "payload": {
	//     "state": "running"
	//   }
	// }
}

func ExampleBackoff() {
	b, err := jetbus.Backoff{Max: 10 * time.Second, NoJitter: true}.Normalize()
	if err != nil {
		fmt.Println(err)
		return
	}
	for attempt := 1; attempt <= 5; attempt++ {
		fmt.Println(attempt, b.Delay(attempt))
	}
	// Output:
	// 1 1s
	// 2 2s
	// 3 4s
	// 4 8s
	// 5 10s
}
