// Package client is the bus over a gateway: a [jetbus.Bus] for Go programs that reach the
// broker through package gateway's WebSocket and HTTP, and not through NATS.
//
//	bus, err := client.Dial(ctx, client.Config{URL: "https://bus.example.com", Token: token})
//
// It promises:
//
//   - A connection that breaks is made again, with random waits (full jitter) of up to
//     [Config].Reconnect. What was published and not answered is published again under the
//     same ID, so that it is stored once; where the topic may have forgotten the ID by then
//     (DuplicateWindow) it is not, and the error says [jetbus.StoredUnknown]. What a frame waits
//     for until the gateway reads it does not count. Subscriptions go on, and what their handlers hold
//     stays theirs where the connection is back within [Config].ResumeGrace; readers go on
//     behind the last event that they had.
//   - The lease on an event is extended at each third of the AckTimeout while a handler runs
//     or the event waits for one. A handler's context ends with the cause
//     [jetbus.ErrLeaseExpired] before anybody else gets its event.
//   - Errors are those of package jetbus: errors.Is works as with the bus itself. [Error] has
//     the gateway's code besides.
//   - A token is asked for again before it expires, and replaced without a reconnect.
//   - Everything that waits is bounded, and after [Client.Close] nothing runs any more.
//
// What a gateway cannot do, its client refuses with [jetbus.ErrUnsupported] and says what to do
// instead: topics are declared and groups paused with the command jetbus or package adapter. Different from the bus beside the broker are: SubscriptionStats do
// not count what the gateway filtered, nor know Retrying and Blocked, and Active is a second late;
// and the AckTimeout of a group at the broker is the gateway's, or longer, while leases last as
// their member asked.
package client
