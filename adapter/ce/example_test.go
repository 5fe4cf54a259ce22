package ce_test

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// A program that has a plain NATS connection and no bus reads an event of a topic.
func ExampleDecode() {
	m := nats.Msg{
		Subject: "ev.orders.created._",
		Header:  ce.Encode(&jetbus.Event{ID: "1", Topic: "orders.created", Key: "café", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}),
		Data:    []byte(`{"total":42}`),
	}
	fmt.Println(m.Header["ce-partitionkey"])
	e, err := ce.Decode(m.Header, m.Data, ce.Place{Topic: "orders.created", Stream: "EV_ORDERS_CREATED", Seq: 7})
	fmt.Println(e.Key, e.Seq, string(e.Payload), err)
	// Output:
	// [caf%C3%A9]
	// café 7 {"total":42} <nil>
}
