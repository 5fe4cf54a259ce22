// Package outbox is an outbox in a SQL database: a table to which a service adds events in the
// transactions that cause them, so that both are committed or neither is. [jetbus.Drain]
// publishes the events from there.
//
//	box, err := outbox.Open(ctx, db, outbox.Options{Dialect: outbox.PostgreSQL})
//	...
//	tx, err := db.BeginTx(ctx, nil)
//	_, err = tx.ExecContext(ctx, `UPDATE orders SET state = 'paid' WHERE id = $1`, id)
//	err = box.Add(ctx, tx, jetbus.Event{Topic: "orders.paid", Key: id, Payload: body})
//	err = tx.Commit()
//
// and in the same process, or in another one:
//
//	err := jetbus.Drain(ctx, box, bus, jetbus.DrainOptions{})
//
// There are two nouns: a [Box] is a table, a [Row] is an event in it. The package uses
// database/sql and includes no driver. It supports PostgreSQL 12 and newer and SQLite 3.35 and
// newer. [Create] creates the table; [Schema] prints its definition for services that manage
// their own migrations.
//
// # Delivery
//
// Delivery is at least once. Every committed row is published, however late: rows are found by
// their state, so a row whose transaction ran for an hour is not skipped. If a drainer dies after
// it published a row and before it marks the row as sent, the row is published again with the
// same ID. Within the topic's DuplicateWindow, the log has it once.
//
// # Order
//
// Rows of one topic and key are published in the order in which they were added. A row is never
// published before an earlier unpublished row of its key, however many drainers there are: the
// oldest row of a key is the turnstile for the rest. A dead row therefore blocks its key until it
// is retried or removed ([Options.SkipDead]).
//
// The database numbers a row when it is inserted, and this is the order in which rows were added.
// Concurrent transactions that add rows of the same key may commit in a different order, and the
// later number may be published before the earlier one appears. Transactions that change the same
// object usually lock it first (SELECT ... FOR UPDATE, or an UPDATE before the Add); then numbers
// and commits have the same order. SQLite has one writer at a time, so this cannot happen there.
//
// # Rows that cannot be read
//
// Other programs insert rows, too, and SQLite stores any value in any column. A row with a value
// that cannot be read, such as a due_at or created_at that is not a time of the years 0 to 9999,
// becomes dead with the reason. So does a row with text that PostgreSQL cannot convert to UTF-8;
// [Box.List] shows such text with replacement characters. If the encoding of the database lacks
// characters of a reason, the reason is recorded in ASCII.
//
// If the database refuses to change a row, or drops the change without an error, because of a
// trigger, a constraint, a rule or row security, the other rows are not affected. Claim returns a
// row that cannot be claimed once per lease, with the reason. The row stays pending, and
// [jetbus.Drainer.Ready] returns an error until it can be changed. For other methods see [jetbus.OutboxRowsError].
//
// # Limits
//
// PublishOptions (TTL, DeliverAt, ExpectLastSeq) cannot be stored in an outbox.
//
// A claim reads pending rows, oldest first, in steps of a thousand, until it has enough. It may
// find few among many, because their keys wait for a dead row or their topic accepts no events.
// Then it ends after half of its time, and the next claims continue after those rows, until one
// of them reaches the end, or for 10 seconds of claims that are full. So each row that waits for
// a dead row costs an index lookup now and then: do not leave them there for long.
//
// With [Options.SkipDead], claims skip the dead rows of a key by the index <table>_alive, which
// tables of earlier versions do not have. [Open] accepts such tables, but each claim then reads
// the dead rows of a key again for each row after them. Call [Create], which adds the index, or
// execute the line of [Schema] that creates it.
//
// In PostgreSQL, a claim sets idle_in_transaction_session_timeout in its own transaction to its
// lease, with a minimum of 10 seconds and a maximum of 24 hours, whatever the setting of its role
// is. If a host vanishes during a claim without closing the connection, its rows remain locked no
// longer than that.
package outbox
