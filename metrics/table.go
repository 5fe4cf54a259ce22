package metrics

import "slices"

// Type is the kind of a metric.
type Type string

// The kinds.
const (
	Counter   Type = "counter"   // only grows, since the process began
	Gauge     Type = "gauge"     // is what it is now
	Histogram Type = "histogram" // counts durations by their size
)

// Metric describes a metric: a row of [Table].
type Metric struct {
	Name   string
	Type   Type
	Labels []string
	Unit   string // what 1 of it is
	Help   string
	From   string // who moves it: an observation, or what is watched
}

// Table returns all metrics of this package, in the order of the README. The caller
// may change it.
func Table() []Metric {
	out := slices.Clone(table)
	for i := range out {
		out[i].Labels = slices.Clone(out[i].Labels)
	}
	return out
}

var (
	ofTopic = []string{"topic"}
	ofGroup = []string{"topic", "group"}

	ofTopicVersion = []string{"topic", "version"}
	ofGroupVersion = []string{"topic", "group", "version"}
)

// Who moves a metric.
const (
	fromTopics     = "WatchTopics"
	fromOutbox     = "WatchOutbox"
	fromFeed       = "WatchFeed"
	fromProjection = "WatchProjection"
	fromMember     = "WatchMember"
	fromGateway    = "WatchGateway"
	fromScrape     = "a scrape"
)

var table = slices.Concat(published, delivered, rare, drained, asked, watchedOutbox, watchedFeed, watchedRest)

var published = []Metric{
	{"events_published_total", Counter, ofTopicVersion, "event", "Events published, by their stated schema version, including duplicates that the topic already had.", "published"},
	{"events_publish_failed_total", Counter, []string{"topic", "reason"}, "call", "Calls of Publish and PublishBatch that failed, by what they failed of.", "publish_fail"},
	{"publish_duration_ms", Histogram, ofTopic, "ms", "How long Publish and PublishBatch took, one observation a call, topic and version.", "published"},
}

var delivered = []Metric{
	{"events_delivered_total", Counter, ofGroupVersion, "delivery", "Events handed to handlers, each time they are, by the schema version that they state.", "delivered"},
	{"events_redelivered_total", Counter, ofGroup, "delivery", "Those of them that were delivered before.", "delivered"},
	{"events_inflight", Gauge, ofGroup, "event", "Events that handlers of this process got and that are neither settled nor lost. One whose acknowledgement could not be sent counts until it comes here again.", "delivered, and what ends it"},
	{"events_acked_total", Counter, ofGroupVersion, "event", "Events acknowledged, by the schema version that they state, without those that were filtered.", "acked"},
	{"events_nacked_total", Counter, ofGroup, "attempt", "Events refused: failed attempts but the last.", "nacked"},
	{"events_dropped_total", Counter, ofGroup, "event", "Acknowledged events that the handler dropped for an error.", "acked"},
	{"events_snoozed_total", Counter, ofGroup, "event", "Events put off without an attempt.", "snoozed"},
	{"events_given_back_total", Counter, ofGroup, "event", "Events returned to the group without an attempt.", "given_back"},
	{"events_filtered_total", Counter, ofGroup, "event", "Events acknowledged unseen.", "filtered"},
	{"events_dead_lettered_total", Counter, []string{"topic", "group", "reason"}, "event", "Events given up, by the DeadReason.", "dead_lettered"},
	{"events_dead_letter_failed_total", Counter, ofGroup, "attempt", "Dead letters that could not be stored; their events are kept.", "dead_fail"},
	{"events_replayed_total", Counter, ofGroup, "event", "Dead letters put before their group again.", "replayed"},
	{"leases_extended_total", Counter, ofGroup, "lease", "Extensions of leases: while a handler runs, while the event waits for one, and by hand.", "extended"},
	{"leases_lost_total", Counter, ofGroup, "lease", "Leases that ran out here; the event comes again.", "lease_lost"},
	{"subscribe_poll_duration_ms", Histogram, ofGroup, "ms", "How long the first event took after a request to the broker.", "polled"},
	{"delivery_wait_ms", Histogram, ofGroup, "ms", "From the moment an event was stored to that in which its handler began.", "delivered"},
	{"delivery_handler_duration_ms", Histogram, ofGroup, "ms", "How long handlers ran, of those that ended with an acknowledgement or a refusal.", "acked, nacked"},
	{"delivery_latency_ms", Histogram, ofGroup, "ms", "From the moment an event was stored to its acknowledgement.", "acked"},
}

var rare = []Metric{
	{"events_undecodable_total", Counter, ofTopic, "message", "Messages that are no events.", "undecodable"},
	{"group_taken_over_total", Counter, ofGroup, "turn", "Times that this member became the active one of an ordered group.", "took_over"},
	{"group_stood_down_total", Counter, ofGroup, "turn", "Times that it was no longer.", "stood_down"},
}

var drained = []Metric{
	{"outbox_published_total", Counter, nil, "row", "Rows of outboxes published.", "drained"},
	{"outbox_window_duration_ms", Histogram, nil, "ms", "How long a window of rows took.", "drained"},
	{"outbox_failed_total", Counter, []string{"class"}, "failure", "Failures while an outbox was drained, by the DrainErrorClass.", "drain_fail"},
	{"outbox_set_aside_total", Counter, ofTopic, "row", "Rows set aside after their last attempt.", "outbox_dead"},
}

var asked = []Metric{
	{"topic_events", Gauge, ofTopic, "event", "Events the topic holds.", fromTopics},
	{"topic_bytes", Gauge, ofTopic, "byte", "Size of the topic's stream, which topics may share.", fromTopics},
	{"topic_last_seq", Gauge, ofTopic, "sequence", "Position of the last event of the topic's stream.", fromTopics},
	{"topics_unwatched", Gauge, nil, "topic", "Topics that are not watched since there are more than TopicOptions.MaxTopics.", fromTopics},
	{"snapshot_lag_events", Gauge, ofTopic, "event", "Events that a snapshot has not taken in yet.", fromTopics},
	{"dead_letters", Gauge, ofTopic, "event", "Dead letters of the topic that are kept, replayed ones included.", fromTopics},
	{"group_lag_events", Gauge, ofGroup, "event", "Events that the group has not settled.", fromTopics},
	{"group_lag_seconds", Gauge, ofGroup, "s", "Time since the oldest event was stored that the group has not settled, 0 where there is none.", fromTopics},
	{"group_held", Gauge, ofGroup, "event", "Events that members of the group hold, wherever they are.", fromTopics},
	{"group_retrying", Gauge, ofGroup, "event", "Those of them that were delivered more than once.", fromTopics},
	{"group_waiting", Gauge, ofGroup, "request", "Requests of members that wait for events; 0 where nobody subscribes, or all are busy.", fromTopics},
	{"group_paused", Gauge, ofGroup, "bool", "1 while the group is paused.", fromTopics},
}

var watchedOutbox = []Metric{
	{"outbox_running", Gauge, []string{"outbox"}, "bool", "1 while the drainer runs.", fromOutbox},
	{"outbox_pending", Gauge, []string{"outbox"}, "row", "Rows that wait, when the outbox was last asked.", fromOutbox},
	{"outbox_oldest_seconds", Gauge, []string{"outbox"}, "s", "Age of the oldest of them, as of then.", fromOutbox},
	{"outbox_dead", Gauge, []string{"outbox"}, "row", "Rows set aside, as of then.", fromOutbox},
	{"outbox_held_topics", Gauge, []string{"outbox"}, "topic", "Topics that take nothing for now.", fromOutbox},
	{"outbox_away", Gauge, []string{"outbox", "side"}, "bool", "1 while the broker, or the outbox, does not do what it is asked.", fromOutbox},
	{"outbox_duplicates_total", Counter, []string{"outbox"}, "row", "Published rows that the topic had already.", fromOutbox},
	{"outbox_retried_total", Counter, []string{"outbox"}, "attempt", "Failed attempts after which the row is tried again.", fromOutbox},
}

var (
	ofFeed      = []string{"feed"}
	watchedFeed = []Metric{
		{"changefeed_state", Gauge, []string{"feed", "state"}, "bool", "1 for the state in which the feed is; the others have no sample.", fromFeed},
		{"changefeed_lag_seconds", Gauge, ofFeed, "s", "How far the feed is behind the newest time that MongoDB has told of.", fromFeed},
		{"changefeed_inflight", Gauge, ofFeed, "change", "Changes read and not published.", fromFeed},
		{"changefeed_published_total", Counter, ofFeed, "event", "Events stored.", fromFeed},
		{"changefeed_duplicates_total", Counter, ofFeed, "event", "Events that were stored already.", fromFeed},
		{"changefeed_copied_total", Counter, ofFeed, "document", "Documents read by copies.", fromFeed},
		{"changefeed_filtered_total", Counter, ofFeed, "change", "Changes that were left out.", fromFeed},
		{"changefeed_poisoned_total", Counter, ofFeed, "change", "Changes that Map or a schema refused.", fromFeed},
		{"changefeed_oversize_total", Counter, ofFeed, "event", "Events that were too large for the broker.", fromFeed},
		{"changefeed_gaps_total", Counter, ofFeed, "event", "Gap events: history was lost.", fromFeed},
		{"changefeed_reopened_total", Counter, ofFeed, "stream", "Change streams opened again.", fromFeed},
		{"changefeed_fenced_total", Counter, ofFeed, "turn", "Times that another instance was ahead, or the lock was lost.", fromFeed},
	}
)

var (
	ofProjection = []string{"projection"}
	ofMember     = []string{"member"}
	watchedRest  = []Metric{
		{"projector_phase", Gauge, []string{"projection", "phase"}, "bool", "1 for the phase in which the replica is; the others have no sample.", fromProjection},
		{"projector_lag_events", Gauge, ofProjection, "event", "Events of the topic that are not in the sink for certain.", fromProjection},
		{"projector_held", Gauge, ofProjection, "event", "Events in hand.", fromProjection},
		{"projector_events_total", Counter, ofProjection, "event", "Events read, repeated ones included.", fromProjection},
		{"projector_batches_total", Counter, ofProjection, "batch", "Batches written.", fromProjection},
		{"projector_applied_total", Counter, ofProjection, "change", "Changes that are in the sink.", fromProjection},
		{"projector_stale_total", Counter, ofProjection, "event", "Events that something newer of their key made superfluous.", fromProjection},
		{"projector_raced_total", Counter, ofProjection, "change", "Changes written again since another writer was at the key.", fromProjection},
		{"projector_rejected_total", Counter, ofProjection, "event", "Events that cannot be projected.", fromProjection},
		{"projector_failed_total", Counter, ofProjection, "write", "Writes that failed and were tried again.", fromProjection},
		{"partition_owned", Gauge, ofMember, "partition", "Partitions in the member's hands.", fromMember},
		{"partition_acquired_total", Counter, ofMember, "partition", "Partitions taken.", fromMember},
		{"partition_released_total", Counter, ofMember, "partition", "Partitions given up in order.", fromMember},
		{"partition_expelled_total", Counter, ofMember, "session", "Sessions lost.", fromMember},
		{"ws_inflight", Gauge, ofGroup, "event", "Events that WebSocket clients of the gateway hold.", fromGateway},
		{"metrics_errors_total", Counter, []string{"source"}, "failure", "Things that could not be read; their samples are missing.", fromScrape},
	}
)
