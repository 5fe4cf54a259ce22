package main

// rows are what is measured and the goals, beside what counts what a
// subscription costs at rest and how long partitions take to pass on.
func rows() []row {
	peerBatch, peerPull, peerFeed := peerPublish(6_000, 128), peerConsume(6_000, 128), feedNaively(5_000)
	tcp, memory := place{tcp: true}, place{memory: true}
	return []row{
		{name: "publish", bus: publishOne(12_000, 128), raw: []job{rawPublishOne(12_000, 128)}, goal: 0.9, allocs: "publish-allocs"},
		{name: "publish-tcp", at: tcp, bus: publishOne(10_000, 128), raw: []job{rawPublishOne(10_000, 128)}, goal: 0.9},
		{name: "publish-1k", bus: publishOne(10_000, 1024), raw: []job{rawPublishOne(10_000, 1024)}, goal: 0.9},
		{name: "batch", bus: publishBatch(50_000, 128), raw: []job{rawPublishAsync(50_000, 128)}, goal: 1, peer: &peerBatch, peers: 6, allocs: "batch-allocs"},
		{name: "batch-tcp", at: tcp, bus: publishBatch(50_000, 128), raw: []job{rawPublishAsync(50_000, 128)}, goal: 1, peer: &peerBatch, peers: 6},
		{name: "batch-1k", bus: publishBatch(30_000, 1024), raw: []job{rawPublishAsync(30_000, 1024)}, goal: 1},
		{name: "atomic-sync-always", at: place{always: true}, bus: publishAtomic(20_000, 128), raw: []job{busOneByOne(1_000, 128)}},
		{
			name: "consume", bus: consume(50_000, 128), raw: []job{rawConsume(50_000, 128), rawConsumeCallback(50_000, 128)}, goal: 0.8,
			peer: &peerPull, peers: 5, allocs: "deliver-allocs",
		},
		{
			name: "consume-tcp", at: tcp, bus: consume(50_000, 128), raw: []job{rawConsume(50_000, 128), rawConsumeCallback(50_000, 128)}, goal: 0.8,
			peer: &peerPull, peers: 5,
		},
		{name: "consume-1k", bus: consume(30_000, 1024), raw: []job{rawConsume(30_000, 1024), rawConsumeCallback(30_000, 1024)}, goal: 0.8},
		// The server writes the state of each durable that is busy ten times a second, by a new file:
		// the two rows on files measure how many are busy at a time, the one in memory the bus alone.
		{name: "consume-300-topics", bus: consumeTopics("bus", manyTopics), raw: []job{consumeTopics("1 topic", 1)}, goal: 0.8},
		{name: "consume-300-by-hand", bus: consumeTopics("bus", manyTopics), raw: []job{rawConsumeTopics(manyTopics)}, goal: 0.8}, // what 300 durables cost the server
		{name: "consume-300-memory", at: memory, bus: consumeTopics("bus", manyTopics), raw: []job{consumeTopics("1 topic", 1)}, goal: 0.8},
		{name: "filter-none", bus: consumeFiltered("bus", 20_000, 128, false), raw: []job{consumeFiltered("all match", 20_000, 128, true)}, goal: 0.5},
		{name: "receive-one", bus: receiveOne(1_000, 128), raw: []job{roundTrips(1_000)}, goal: 0.8},
		{name: "ack-by-id", bus: ackByID(10_000, 128), raw: []job{ackByDelivery(10_000, 128)}, goal: 0.5}, // whatever else is held
		{name: "partitions", bus: consumePartitions(40_000, 128), raw: []job{consumeSeparately(40_000, 128)}, goal: 0.8},
		{name: "end-to-end", bus: endToEnd(50_000, 128), raw: []job{rawEndToEnd(50_000, 128)}, goal: 0.8},
		{name: "end-to-end-tcp", at: tcp, bus: endToEnd(50_000, 128), raw: []job{rawEndToEnd(50_000, 128)}, goal: 0.8},
		{name: "end-to-end-1k", bus: endToEnd(30_000, 1024), raw: []job{rawEndToEnd(30_000, 1024)}, goal: 0.8},
		{name: "project", bus: project(100_000, true), raw: []job{updateOneByOne(5_000)}, goal: 20},
		{name: "project-log", bus: project(100_000, false), raw: []job{updateOneByOne(5_000)}},
		{name: "project-live", bus: projectLive(100_000), raw: []job{updateOneByOne(5_000)}},
		{name: "changefeed", bus: feed(100_000), raw: []job{drain(100_000)}, goal: 0.8, peer: &peerFeed},
		{name: "changefeed-by-hand", bus: feed(100_000), raw: []job{feedByHand(100_000)}},     // what the machine can do besides draining
		{name: "changefeed-no-broker", bus: feedNowhere(100_000), raw: []job{drain(100_000)}}, // what the feed itself costs
		{name: "gateway", bus: fanOut(4_000, 128), raw: []job{bareFanOut(4_000, 128)}, goal: 0.5, floor: gatewayFloor},
		{name: "validate", bus: validate(50_000), raw: []job{rawValidate(50_000)}, goal: 0.77}, // 1.3 times the library's time
		{name: "verdict", bus: verdict(20_000), raw: []job{rawValidate(20_000)}, goal: 0.04},   // 25 validations
	}
}

// busOneByOne is the bus's own Publish as a yardstick.
func busOneByOne(count, size int) job {
	j := publishOne(count, size)
	j.name = "bus one at a time"
	return j
}
