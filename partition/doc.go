// Package partition shares work out among the members of a group: events over
// partitions by their keys, and partitions over the processes that are there. Nobody
// administers anything: members join, leave, crash and are deployed, and partitions
// follow.
//
// [Subscribe] is what services use: it handles the events of a topic with partitions
// ([jetbus.TopicConfig].Partitions) in as many processes as there are, those of a key
// one after the other. It is built on [Join], which shares out any numbered pieces of
// work: it calls a function with each partition that is the member's own, and asks for
// it back when it is to pass to another one. [LookupTopic] and [Lookup] return the members and their
// partitions, [Status] the member and the lag of each partition. [KickTopic] and [Kick] end the
// session of a member that hangs.
//
// Two things are decided by pure functions:
//
//   - [jetbus.PartitionOf] says in which of n partitions a key lies. Of a topic that
//     grows from n to m partitions, keys move only from old partitions to new ones.
//   - [Assign] says which member has which partition. It goes by what everybody can see:
//     the members, their weights, and who holds what now. So all members that see the
//     same come to the same answer without asking each other, partitions stay where they
//     are while that is fair, and no member has more than its share.
//
// # What it promises
//
// Members meet in a bucket of [jetbus.Keys]: each has a session there that it renews,
// and each partition a lease that names a session. A lease passes on when its owner
// released it, or when the owner's session is over; the owner stops a fifth of the TTL
// before that, by its own clock. So while clocks run at like speed no partition has two
// owners; what a process that was frozen does before it notices, or a handler that
// ignores its context, [Turn].Epoch and [jetbus.Delivery].Epoch tell apart.
//
// A member that stops in order is replaced at once, partition by partition as they
// are given up, and nothing else pauses. One that dies is replaced when its session
// ends, after TTL. Only partitions that have to move do. While the bucket cannot be
// reached, all members stop: consistency before availability.
//
// # Order
//
// A subscription handles each partition as an ordered group does
// ([jetbus.SubscribeOptions].Order): an event that fails is tried again in its place, and
// holds back later ones of its key and nothing else. When a topic grows, new events go to
// a new generation of partitions. Partition j of it begins when the group is done with what
// older generations have in j, where its keys were; one that has a number that they
// do not have begins when it is done with all that they have.
//
// # Limits
//
// Every member is told of each renewal of all others: a group of 1,000 with the default
// TTL makes 270 writes a second, and each of them goes to 1,000 watchers. Tens of
// members are usual, some hundreds are possible. The number of partitions of a topic
// can grow, and does not shrink; that of a group of Join stays as it is.
package partition
