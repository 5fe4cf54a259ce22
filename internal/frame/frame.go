// Package frame is the JSON frames of the gateway's WebSocket protocol, as the gateway
// and its Go client read and write them: one JSON object a frame, chosen by its member
// op. Members that are not known are ignored, so that either side may be the newer one.
package frame

// Subprotocol is what a client asks for. Without it the frames are those of the bus's
// first clients: no HELLO, no PING frames, events settled by their ids.
const Subprotocol = "jetbus.v1.json"

// BearerPrefix begins the subprotocol in which a browser sends its token.
const BearerPrefix = "bearer."

// Ops of frames that clients send.
const (
	Auth         = "AUTH"
	Subscribe    = "SUBSCRIBE"
	Unsubscribe  = "UNSUBSCRIBE"
	Flow         = "FLOW"
	Publish      = "PUBLISH"
	PublishBatch = "PUBLISH_BATCH"
	Ack          = "ACK"
	Nack         = "NACK"
	ModAck       = "MODACK"
	Acks         = "ACKS"
	Seek         = "SEEK"
	Cursor       = "CURSOR"
)

// Ops of frames that both sides send.
const (
	Ping = "PING"
	Pong = "PONG"
)

// Ops of frames that the gateway sends.
const (
	Hello         = "HELLO"
	OK            = "OK"
	Err           = "ERR"
	Event         = "EVENT"
	LeaseExpired  = "LEASE_EXPIRED"
	CaughtUp      = "CAUGHT_UP"
	Gap           = "GAP"
	SubClosed     = "SUB_CLOSED"
	Assign        = "ASSIGN" // of an ordered group: this member is the active one
	Revoke        = "REVOKE" // it is not any more
	TokenExpiring = "TOKEN_EXPIRING"
	GoAway        = "GOAWAY"
)

// Codes that the gateway closes connections with, besides those of RFC 6455. A client
// connects again after one below 4500, and not after the others.
const (
	CloseGoingAway    = 4001 // the gateway stops
	CloseSlow         = 4008 // the client did not read what was sent
	CloseNoPong       = 4012 // the client did not answer PING
	CloseRateLimited  = 4029 // the client went on although it was told to slow down
	CloseTokenExpired = 4105 // no AUTH came in time with a fresh token
	CloseProtocol     = 4500 // frames that no client of this protocol sends
	CloseUnauthorized = 4501 // the token does not count
	CloseForbidden    = 4503 // the page may not use this gateway
	CloseConnections  = 4504 // too many connections
	CloseAuthTimeout  = 4505 // no AUTH came in time
	CloseVersion      = 4506 // the client speaks another version of the protocol
)

// Terminal reports whether a client that was closed with that code should stay away.
func Terminal(code int) bool {
	switch code {
	case 1002, 1003, 1007, 1008, 1009:
		return true
	}
	return code >= 4500
}

// MaxCorr is how long the member corr may be, in bytes.
const MaxCorr = 64

// MaxPayloadDepth is how deep a payload may nest that stands in an event as it is.
const MaxPayloadDepth = 1000

// maxDepth leaves room for the three levels that a batch puts around a payload.
const maxDepth = MaxPayloadDepth + 3
