// Package gateway lets browsers, scripts and services in other languages use the bus
// over WebSocket and HTTP, without seeing NATS.
//
// A [Gateway] is an http.Handler over any [jetbus.Backend]. What it promises:
//
//   - Nothing is taken from a group that cannot be sent: a subscription asks the bus for
//     what its client has room for, and what is in flight when a client goes away is given
//     back at once, without an attempt.
//   - A lease lasts until the deadline that the client was told, whatever the group's
//     own is; afterwards the client is told, and what it then says has no effect.
//   - Deny by default: a token may do what its scopes name, and a gateway without an
//     [Authenticator] serves its own machine alone: requests over a loopback address, under a
//     loopback name with the listener's port, that no proxy has sent. A proxy that speaks
//     HTTP/1.1 and adds no header cannot be recognized: never put one in front of a gateway
//     without an Authenticator.
//   - Everything is bounded ([Limits]); a client that does not keep up is closed, and
//     nobody else notices.
//   - Payloads pass through byte for byte.
//
// The protocol of the WebSocket and the HTTP surface are described in the project's
// README, and by the gateway itself under /openapi.json and /asyncapi.json.
package gateway
