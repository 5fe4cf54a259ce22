package embedded

import "github.com/nats-io/nats-server/v2/server"

// Routes are the connections of a broker to the other servers of its cluster. A [Broker]
// calls one method at a time.
type Routes interface {
	// Join sets the options that make a server one of the cluster. It is called before each
	// start of the server, which has all other options by then.
	Join(o *server.Options)
	// Cut separates the server from all others, at once, until Reconnect or Join.
	Cut()
	// Reconnect lets the routes come up again.
	Reconnect()
}

// noRoutes are those of a server that is alone.
type noRoutes struct{}

// Join implements Routes.
func (noRoutes) Join(*server.Options) {}

// Cut implements Routes.
func (noRoutes) Cut() {}

// Reconnect implements Routes.
func (noRoutes) Reconnect() {}
