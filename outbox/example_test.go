package outbox_test

import (
	"fmt"

	"github.com/seed-63e9a637/jetbus/outbox"
)

func ExampleSchema() {
	text, err := outbox.Schema(outbox.PostgreSQL, "shop.outbox")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(text)
	// Output:
	// CREATE TABLE IF NOT EXISTS shop.outbox (
	//   pos        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	//   id         TEXT NOT NULL,
	//   topic      TEXT NOT NULL,
	//   "key"      TEXT NOT NULL DEFAULT '',
	//   sid        TEXT NOT NULL DEFAULT '',
	//   ts         BIGINT,
	//   headers    TEXT NOT NULL DEFAULT '',
	//   caused_by  TEXT NOT NULL DEFAULT '',
	//   tags       TEXT NOT NULL DEFAULT '',
	//   payload    BYTEA,
	//   state      TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sent', 'dead')),
	//   attempts   BIGINT NOT NULL DEFAULT 0,
	//   last_error TEXT NOT NULL DEFAULT '',
	//   owner      TEXT NOT NULL DEFAULT '',
	//   due_at     BIGINT NOT NULL DEFAULT 0,
	//   created_at BIGINT NOT NULL DEFAULT (CAST(extract(epoch FROM statement_timestamp()) * 1000 AS BIGINT)),
	//   sent_at    BIGINT
	// );
	// CREATE UNIQUE INDEX IF NOT EXISTS outbox_id ON shop.outbox (topic, id);
	// CREATE INDEX IF NOT EXISTS outbox_pending ON shop.outbox (pos) WHERE state = 'pending';
	// CREATE INDEX IF NOT EXISTS outbox_keys ON shop.outbox (topic, "key", pos) WHERE state <> 'sent';
	// CREATE INDEX IF NOT EXISTS outbox_alive ON shop.outbox (topic, "key", pos) WHERE state <> 'sent' AND state <> 'dead';
	// CREATE INDEX IF NOT EXISTS outbox_sent ON shop.outbox (sent_at) WHERE state = 'sent';
}
