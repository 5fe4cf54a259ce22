// Package outbox is an outbox in a SQL database: a table in which a service puts
// events in the transactions that they tell of, so that both are committed or
// neither is. [jetbus.Drain] publishes them from there.
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
// There are two nouns: a [Box] is a table, a [Row] is an event in it. The package
// speaks SQL through database/sql and brings no driver: any of PostgreSQL (12 and
// newer) or SQLite (3.35 and newer) will do. [Schema] prints the table for those who
// keep their migrations themselves, [Create] makes it.
//
// # Delivery
//
// At least once. What was committed is published, however late: rows are found by
// their state, so that one whose transaction ran for an hour is not passed over. A
// row that is published and whose drainer dies before it is noted is published
// again, under the same id: within the DuplicateWindow of the topic the log has it
// once.
//
// # Order
//
// Rows of one topic and key are published in the order in which they were added,
// never one ahead of an earlier one that is not published yet, however many drainers
// there are. Less formally: the oldest row of a key is the turnstile for the rest.
// A row that is dead therefore holds back its key until somebody retries or removes
// it ([Options.SkipDead]).
//
// Added means numbered by the database, at the insert. Transactions that write one
// key at the same time may commit in another order than that of the numbers, and the
// later number may be gone before the earlier one appears. Transactions that change one
// thing usually lock it first (SELECT ... FOR UPDATE, or an UPDATE before the Add); then
// numbers and commits agree. SQLite has one writer at a time, and no such question.
//
// # Rows that cannot be read
//
// Other programs insert rows, too, and SQLite stores anything in any column. A row with a
// value that cannot be read, such as a due_at or created_at that is not a time of the years 0
// to 9999, is claimed alone and becomes dead with the reason. Where the encoding of the database
// lacks characters of a reason, it is recorded in ASCII. A row that the database refuses to
// change, because of a trigger or a constraint, does not stop the others: see
// [jetbus.OutboxRowsError].
//
// # Limits
//
// PublishOptions (TTL, DeliverAt, ExpectLastSeq) do not go through an outbox. A claim
// looks at pending rows, oldest first, in steps of a thousand until it has enough; where it finds little among many, because their
// keys wait for a dead row or their topic takes nothing, it ends after half of its time, and
// the next claims go on behind them until one has come to the end, or for 10 seconds of claims
// that are full. Rows that wait behind a dead one thus cost an index lookup each, now and then:
// do not leave them for long.
//
// With [Options.SkipDead] claims pass over the dead rows of a key by an index, <table>_alive,
// that tables of earlier versions lack. [Open] takes these as they are, and claims from them read
// the dead rows of a key again for each row behind them: call [Create], which adds the index, or
// execute the line of [Schema] that does.
//
// In PostgreSQL a claim sets idle_in_transaction_session_timeout in its own transaction, to
// its lease, 10 seconds at the least, whatever its role has: a host that vanishes in a claim,
// without hanging up, has rows locked for no longer, while the database waits for it.
package outbox
