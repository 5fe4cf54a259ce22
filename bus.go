package jetbus

// Bus is what most programs need.
type Bus interface {
	Publisher
	Subscriber
	Settler
	Cursors
}

// Backend is everything a bus can do; decorators take and return one.
type Backend interface {
	Bus
	Batcher
	Receiver
	Reader
	Store
	CheckpointBus
	Topics
	Partitions
	Keys
	Retrier
	Burier
	Remover
}
