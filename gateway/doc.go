// Package gateway lets browsers, scripts and services in other languages use the bus
// over WebSocket and HTTP, without seeing NATS.
//
// A [Gateway] is an http.Handler over any [jetbus.Backend]. It promises:
//
//   - A subscription requests only as many events of a group as its client has room for. When
//     a client disconnects, its in-flight events are given back immediately, and no attempt is
//     counted.
//   - A lease lasts until the deadline that was sent to the client, whatever the group's
//     AckTimeout is. Then the client is notified, and its later settlements have no effect.
//   - Everything is denied by default: a token permits what its scopes name. A gateway without
//     an [Authenticator] serves only its own machine. It accepts requests over a loopback
//     address, with a loopback host name and the listener's port, that no proxy has sent. A proxy
//     that speaks HTTP/1.1 and adds no header cannot be recognized: never put one in front of
//     such a gateway.
//   - Memory and concurrency are bounded ([Limits]). A client that does not keep up is
//     disconnected, without an effect on other clients.
//   - Payloads pass through byte for byte.
//
// The README describes the WebSocket protocol and the HTTP API. The gateway serves their
// descriptions under /asyncapi.json and /openapi.json.
package gateway
