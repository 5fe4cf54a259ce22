// Package mongobox is an outbox in MongoDB: a collection in which a service puts
// events in the transactions that they tell of, so that both are committed or
// neither is. [jetbus.Drainer] publishes them from there. It is to MongoDB what
// package outbox is to a SQL database, with the same nouns: a [Box] is a
// collection, a [Row] is an event in it.
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
// [Box.Watch] is a change feed on the collection that wakes the drainer, so that an
// event is published within milliseconds of its commit. It carries nothing: what is
// published is decided by the state of the rows, and what a change stream misses is
// found by the drainer's next look (DrainOptions.PollMax).
//
// MongoDB 5.0 and newer will do, as a replica set of one member or more, since a
// standalone server has no transactions.
//
// # Delivery
//
// At least once. What was committed is published, however late: rows are found by
// their state, so that one whose transaction ran for a minute is not passed over, and
// only when a majority of the replica set has them, so that nothing is published that
// a failover takes back. A row that is published and whose drainer dies before it is
// noted is published again, under the same id: within the DuplicateWindow of the topic
// the log has it once.
//
// # Order
//
// Rows of one topic and key are published in the order in which their transactions
// committed, and within one as they were added; never one ahead of an earlier one that
// is not published yet, however many drainers there are. Less formally: the oldest row
// of a key is the turnstile for the rest. A row that is dead therefore holds back its
// key until somebody retries or removes it ([Options.SkipDead]).
//
// This has a price. Each key has a counter, a document of a second collection
// (<name>.keys) that [Box.Add] moves in the caller's transaction. Of two transactions
// at the same time that add events with one key, one fails with a write conflict and is
// run again by [mongo.Session.WithTransaction]; mostly it would be so anyway, because
// both change the document that the key names. So do not give one key to events that
// many transactions add at once, such as that of a tenant, and call Add early in a
// transaction: what is run again is then short. Rows without a key have no order, no
// counter and no conflicts. A counter is removed when it was not used for a day; the
// next one goes on from the clock.
//
// # Rows that cannot be read
//
// Other programs insert rows, too. A row with a field that cannot be read, such as a pos that
// is not a whole number, a key that is not a string or a due_at that is not a date, is claimed
// alone and becomes dead with the reason. Without a readable pos or key it has no order and
// holds back no key. A row that the server refuses to change, because of a validator, does not
// stop the others: see [jetbus.OutboxRowsError].
//
// # Limits
//
// PublishOptions (TTL, DeliverAt, ExpectLastSeq) do not go through an outbox. Times are
// those of the primary: where a failover sets the clock back, leases and waits take that
// much longer. Programs that insert rows without this package write id, topic and state
// ("pending") as strings, and pos as a whole number, the microseconds since 1970; rows with a key take
// pos from the counter.
// Rows that wait behind a dead one cost reads at each claim that comes by, and where they
// are many the others are found some seconds later, as are rows of keys that had failed: do not leave them for long. The collection is not to be sharded.
package mongobox
