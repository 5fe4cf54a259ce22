// Package client implements [jetbus.Bus] for Go programs that reach the broker through a
// gateway's WebSocket and HTTP, not through NATS.
//
//	bus, err := client.Dial(ctx, client.Config{URL: "https://bus.example.com", Token: token})
//
// It promises:
//
//   - A broken connection is re-established, with full jitter of up to [Config].Reconnect
//     between attempts. Publishes without an answer are repeated with the same ID, so that each
//     event is stored once. If the topic may have forgotten the ID by then (DuplicateWindow), the
//     publish is not repeated and fails with [jetbus.StoredUnknown]. The time that a frame waits
//     before the gateway reads it does not count. Subscriptions resume. If the connection is back
//     within [Config].ResumeGrace, handlers keep the events that they hold. Readers resume after
//     the last event that they received.
//   - The lease on an event is extended at every third of the AckTimeout while a handler runs
//     or the event waits for one. A handler's context ends with the cause
//     [jetbus.ErrLeaseExpired] before another member gets the event.
//   - Errors match those of package jetbus with errors.Is, as with any other bus. [Error]
//     also has the gateway's code.
//   - A new token is requested before the current one expires, and replaces it without a
//     reconnect.
//   - All waits are bounded, and after [Client.Close] nothing runs.
//
// Operations that a gateway does not support return [jetbus.ErrUnsupported] and name the
// alternative: declare topics and pause groups with the command jetbus or package adapter. The
// client differs from a bus that is connected to the broker in two ways. SubscriptionStats does
// not count the events that the gateway filtered, has no Retrying and Blocked, and updates
// Active a second late. The broker uses the gateway's AckTimeout for a group, or a longer one,
// while each lease lasts as its member requested.
package client
