package embedded

import "github.com/nats-io/nats-server/v2/server"

// member is a broker's place in a cluster. A nil member is a single broker.
type member struct{}

func (m *member) join(*server.Options) {}
func (m *member) cut()                 {}
func (m *member) reconnect()           {}
