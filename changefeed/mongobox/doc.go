// Package mongobox is an outbox in MongoDB: a collection to which a service adds events in the
// transactions that cause them, so that both are committed or neither is. [jetbus.Drainer] publishes
// the events from there. The package does for MongoDB what package outbox does for SQL databases, with
// the same nouns: a [Box] is a collection, a [Row] is an event in it.
//
//	box, err := mongobox.Open(ctx, db.Collection("outbox"), mongobox.Options{})
//	...
//	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
//		if err := box.Add(ctx, jetbus.Event{Topic: "orders.paid", Key: id, Payload: body}); err != nil {
//			return nil, err
//		}
//		return orders.UpdateByID(ctx, id, paid)
//	})
//
// and in the same process, or in another one:
//
//	drainer, err := jetbus.NewDrainer(box, bus, jetbus.DrainOptions{})
//	go box.Watch(ctx, drainer.Kick)
//	err = drainer.Run(ctx)
//
// [Box.Watch] is a change feed on the collection that wakes the drainer, so that an event is published
// within milliseconds of its commit. It transports no events: the state of the rows decides what is
// published. If the change stream misses a row, the drainer's next poll finds it
// (DrainOptions.PollMax).
//
// MongoDB must be 5.0 or newer and a replica set of one or more members, because a standalone server
// has no transactions.
//
// # Delivery
//
// Delivery is at least once. Every committed row is published, however late. Rows are found by their
// state, so a row whose transaction ran for a minute is not skipped. Rows are read only after a
// majority of the replica set has them, so nothing is published that a failover rolls back. If a
// drainer dies after it published a row and before it marks the row as sent, the row is published again
// with the same ID. Within the topic's DuplicateWindow, the log has it once.
//
// # Order
//
// Rows of one topic and key are published in the order in which their transactions committed, and
// within a transaction in the order in which they were added. A row is never published before an
// earlier unpublished row of its key, however many drainers there are: the oldest row of a key is the
// turnstile for the rest. A dead row therefore blocks its key until it is retried or removed
// ([Options.SkipDead]).
//
// This has a price. Each key has a counter, a document in a second collection (<name>.keys), which
// [Box.Add] updates in the caller's transaction. If two concurrent transactions add events with the
// same key, one fails with a write conflict, and [mongo.Session.WithTransaction] runs it again. Usually
// they would conflict anyway, because both change the document that the key names. So do not use a key
// that many transactions share, such as a tenant's, and call Add early in a transaction, so that little
// work is repeated. Rows without a key have no order, no counter and no conflicts. A counter is removed
// after a day without use; the next one starts from the clock.
//
// # Rows that cannot be read
//
// Other programs insert rows, too. If a field cannot be read, for example a pos that is not a whole
// number, a key that is not a string or a due_at that is not a date, the row is claimed alone and
// becomes dead with the reason. Without a readable pos or key, a row has no order and blocks no key. If
// the server refuses to change a row because of a validator, the other rows are not affected. Claim
// returns a row that cannot be claimed once per lease, with the reason. The row stays pending, and
// [jetbus.Drainer.Ready] returns an error until it can be changed. For other methods see [jetbus.OutboxRowsError].
//
// # Limits
//
// PublishOptions (TTL, DeliverAt, ExpectLastSeq) cannot be stored in an outbox. Times are the
// primary's: if a failover sets the clock back, leases and waits take that much longer. Programs that
// insert rows without this package write id, topic and state ("pending") as strings, and pos as a whole
// number, the microseconds since 1970. Rows with a key take pos from the counter.
//
// Rows that wait for a dead row cost reads at each claim that passes them. If there are many of them,
// other rows, including rows of keys that had failed, are found some seconds later: do not leave them
// there for long. The collection must not be sharded.
package mongobox
