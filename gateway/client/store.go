package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Scan implements [jetbus.Store].
func (c *Client) Scan(ctx context.Context, topic string, q jetbus.ScanQuery) iter.Seq2[jetbus.Event, error] {
	return func(yield func(jetbus.Event, error) bool) {
		if q.Limit < 0 {
			yield(jetbus.Event{}, fmt.Errorf("scan %s: %w: Limit is %d", topic, jetbus.ErrInvalidOption, q.Limit))
			return
		}
		if q.From.Kind == "" {
			q.From = jetbus.Earliest()
		}
		n := 0
		for e, err := range c.Read(ctx, []string{topic}, jetbus.ReadOptions{From: q.From, Filter: q.Filter}) {
			if !yield(e, err) || err != nil {
				return
			}
			if n++; n == q.Limit {
				return
			}
		}
	}
}

// page is a page of events.
type page struct {
	Events []jetbus.Event `json:"events"`
	Next   string         `json:"next"`
	AsOf   uint64         `json:"as_of"`
	Exact  bool           `json:"exact"`
	Time   time.Time      `json:"time"`
}

// manyKeys and keyBytes bound one request for keys.
const (
	manyKeys = 100
	keyBytes = 4 << 10
)

// pageKeys is how many keys of a state a request asks for: each page costs the gateway a look at all of them.
const pageKeys = "1000"

// LatestByKey implements [jetbus.StateStore].
func (c *Client) LatestByKey(ctx context.Context, topic string, keys ...string) (map[string]jetbus.Event, error) {
	out := map[string]jetbus.Event{}
	err := jetbus.ValidTopic(topic)
	for _, key := range keys {
		if err == nil {
			err = jetbus.ValidKey(key)
		}
	}
	for most := manyKeys; err == nil && len(keys) > 0; {
		n, bytes := 0, 0
		for n < len(keys) && n < most && bytes < keyBytes {
			bytes += len(keys[n]) + len("&key=")
			n++
		}
		var p page
		err = c.web(ctx, topicPath(topic)+"/snapshot", url.Values{"key": keys[:n]}, nil, &p)
		if errors.Is(err, jetbus.ErrPayloadTooLarge) && n > 1 { // more than the gateway answers at once
			most, err = n/2, nil
			continue
		}
		for _, e := range p.Events {
			out[e.Key] = e
		}
		keys = keys[n:]
	}
	if err != nil {
		return nil, fmt.Errorf("latest of %s: %w", topic, err)
	}
	return out, nil
}

// ScanLatest implements [jetbus.StateStore].
func (c *Client) ScanLatest(ctx context.Context, topic string, q jetbus.LatestQuery, each func(jetbus.Event) error) (uint64, error) {
	if err := jetbus.ValidTopic(topic); err != nil {
		return 0, fmt.Errorf("scan latest of %s: %w", topic, err)
	}
	query := url.Values{"tombstones": {"1"}, "limit": {pageKeys}}
	if q.KeyPrefix != "" {
		query.Set("prefix", q.KeyPrefix)
	}
	for {
		var p page
		if err := c.web(ctx, topicPath(topic)+"/snapshot", query, nil, &p); err != nil {
			return 0, fmt.Errorf("scan latest of %s: %w", topic, err)
		}
		for _, e := range p.Events {
			if err := each(e); err != nil {
				return 0, err
			}
		}
		if p.Next == "" {
			return p.AsOf, nil
		}
		query.Set("cursor", p.Next)
	}
}

// StateAt implements [jetbus.StateStore]. The pages of a large state are read one by one: those
// of a time that is not over yet may differ in what happened meanwhile.
func (c *Client) StateAt(ctx context.Context, topic string, at time.Time) (jetbus.State, error) {
	err := jetbus.ValidTopic(topic)
	if err == nil && at.IsZero() {
		err = fmt.Errorf("%w: no time", jetbus.ErrInvalidOption)
	}
	state := jetbus.State{Events: map[string]jetbus.Event{}}
	query := url.Values{"at": {at.UTC().Format(time.RFC3339Nano)}, "limit": {pageKeys}}
	for first := true; err == nil; first = false {
		var p page
		if err = c.web(ctx, topicPath(topic)+"/state", query, nil, &p); err != nil {
			break
		}
		for _, e := range p.Events {
			state.Events[e.Key] = e
		}
		if first {
			state.AsOf, state.Time, state.Exact = p.AsOf, p.Time, p.Exact
		} else {
			state.Exact = state.Exact && p.Exact && state.AsOf == p.AsOf
		}
		if p.Next == "" {
			return state, nil
		}
		query.Set("cursor", p.Next)
	}
	return jetbus.State{}, fmt.Errorf("state of %s: %w", topic, err)
}

func topicPath(topic string) string { return "/v1/topics/" + url.PathEscape(topic) }

// TopicInfo implements part of [jetbus.Topics]. Where a topic is stored is told to those with
// the scope ops:read alone.
func (c *Client) TopicInfo(ctx context.Context, topic string) (jetbus.TopicInfo, error) {
	var info jetbus.TopicInfo
	err := jetbus.ValidTopic(topic)
	if err == nil {
		err = c.web(ctx, topicPath(topic), nil, nil, &info)
	}
	op := "topic info " + topic
	if e, ok := errors.AsType[*Error](err); ok && strings.HasPrefix(e.Message, op+": ") { // the gateway's bus has said it
		return jetbus.TopicInfo{}, err
	}
	if err != nil {
		return jetbus.TopicInfo{}, fmt.Errorf("%s: %w", op, err)
	}
	return info, nil
}

// ListTopics implements part of [jetbus.Topics]: the topics that the token may see, by name.
func (c *Client) ListTopics(ctx context.Context) ([]jetbus.TopicInfo, error) {
	var out []jetbus.TopicInfo
	query := url.Values{}
	for {
		var p struct {
			Topics []jetbus.TopicInfo `json:"topics"`
			Next   string             `json:"next"`
		}
		if err := c.web(ctx, "/v1/topics", query, nil, &p); err != nil {
			return nil, fmt.Errorf("list topics: %w", err)
		}
		if out = append(out, p.Topics...); p.Next == "" {
			return out, nil
		}
		query.Set("after", p.Next)
	}
}

// Groups implements part of [jetbus.Topics].
func (c *Client) Groups(ctx context.Context, topic string) ([]jetbus.GroupInfo, error) {
	var out []jetbus.GroupInfo
	err := jetbus.ValidTopic(topic)
	query := url.Values{}
	for err == nil {
		var p struct {
			Groups []jetbus.GroupInfo `json:"groups"`
			Next   string             `json:"next"`
		}
		if err = c.web(ctx, "/v1/groups/"+url.PathEscape(topic), query, nil, &p); err != nil {
			break
		}
		if out = append(out, p.Groups...); p.Next == "" {
			return out, nil
		}
		query.Set("after", p.Next)
	}
	return nil, fmt.Errorf("groups of %s: %w", topic, err)
}

// PartitionsOf returns the partitions of a group, ordered by generation and number: the member that has each, and
// the lag of the group in it. It needs the scope ops:read, and a gateway with PartitionsOf. The error wraps
// [jetbus.ErrNoTopic], [jetbus.ErrNoGroup], [jetbus.ErrNoPartitions], [jetbus.ErrConflict] (the group has members
// without partitions) or [jetbus.ErrDenied], or is an error of the request.
func (c *Client) PartitionsOf(ctx context.Context, topic, group string) ([]jetbus.PartitionStatus, error) {
	err := jetbus.ValidTopic(topic)
	if err == nil {
		err = jetbus.ValidGroup(group)
	}
	var out []jetbus.PartitionStatus
	query := url.Values{}
	for err == nil {
		var p struct {
			Partitions []jetbus.PartitionStatus `json:"partitions"`
			Next       string                   `json:"next"`
		}
		if err = c.web(ctx, "/v1/groups/"+url.PathEscape(topic)+"/"+url.PathEscape(group)+"/partitions", query, nil, &p); err != nil {
			break
		}
		if out = append(out, p.Partitions...); p.Next == "" {
			return out, nil
		}
		query.Set("after", p.Next)
	}
	return nil, fmt.Errorf("partitions of group %s of %s: %w", group, topic, err)
}

// errBeside is the refusal of what a gateway does not do.
func errBeside(what string) error {
	return fmt.Errorf("%s: %w through a gateway: do it beside the broker, with the command jetbus or package adapter", what, jetbus.ErrUnsupported)
}

// EnsureTopic returns the topic where it exists with that name, and declares none: else the
// error is [jetbus.ErrUnsupported].
func (c *Client) EnsureTopic(ctx context.Context, t jetbus.TopicConfig) (jetbus.TopicInfo, error) {
	if err := jetbus.ValidTopic(t.Name); err != nil {
		return jetbus.TopicInfo{}, fmt.Errorf("topic %s: %w", t.Name, err)
	}
	info, err := c.TopicInfo(ctx, t.Name)
	if errors.Is(err, jetbus.ErrNoTopic) {
		err = fmt.Errorf("%w: %w", errBeside("declare topic "+t.Name), err)
	}
	return info, err
}

// DeleteTopic is [jetbus.ErrUnsupported].
func (c *Client) DeleteTopic(_ context.Context, topic string) error {
	return errBeside("delete topic " + topic)
}

// EnsureGroup is [jetbus.ErrUnsupported].
func (c *Client) EnsureGroup(_ context.Context, topic string, g jetbus.GroupConfig) (jetbus.GroupInfo, error) {
	return jetbus.GroupInfo{}, errBeside("declare group " + g.Group + " of " + topic)
}

// DeleteGroup implements part of [jetbus.Topics]. A subject may delete its own groups, which are
// "u.<subject>" and "u.<subject>.*". Other groups need the scope ops:admin. If the gateway does not
// answer, the error is [jetbus.ErrUnavailable] and the group may have been deleted: it is safe to retry.
func (c *Client) DeleteGroup(ctx context.Context, topic, group string) error {
	err := jetbus.ValidTopic(topic)
	if err == nil {
		err = jetbus.ValidGroup(group)
	}
	if err == nil {
		err = c.request(ctx, http.MethodDelete, "/v1/groups/"+url.PathEscape(topic)+"/"+url.PathEscape(group), nil, nil, nil)
	}
	if err != nil {
		return fmt.Errorf("delete group %s of %s: %w", group, topic, err)
	}
	return nil
}

// PauseGroup is [jetbus.ErrUnsupported].
func (c *Client) PauseGroup(_ context.Context, topic, group string, _ time.Time) error {
	return errBeside("pause group " + group + " of " + topic + " (Subscription.Pause pauses a member)")
}

// ResumeGroup is [jetbus.ErrUnsupported].
func (c *Client) ResumeGroup(_ context.Context, topic, group string) error {
	return errBeside("resume group " + group + " of " + topic)
}
