package partition_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/partition"
)

// largestMeta is metadata of exactly MaxMetaBytes.
func largestMeta() map[string]string {
	const around = len(`{"host":""}`)
	return map[string]string{"host": strings.Repeat("h", partition.MaxMetaBytes-around)}
}

// metas returns the metadata of the members of a group.
func (r *rig) metas() map[string]map[string]string {
	r.Helper()
	a, err := partition.Lookup(r.Context(), r.keys, "", "t/g")
	if err != nil {
		r.Fatal(err)
	}
	out := map[string]map[string]string{}
	for _, m := range a.Members {
		out[m.ID] = m.Meta
	}
	return out
}

// The metadata of a member is what it joined with, in each of its sessions and while it is away.
func TestMetaSurvivesNewSessions(t *testing.T) {
	bubble(t, 4, func(r *rig) {
		o := r.options("a")
		o.Static = true
		o.Meta = map[string]string{"host": "<h1>", "version": "1.2", "zone": ""}
		want := map[string]map[string]string{"a": maps.Clone(o.Meta), "b": nil, "c": largestMeta()}
		a := r.join(o)
		o.Meta["host"] = "changed after Join"
		r.join(r.options("b"))
		o = r.options("c")
		o.Meta = largestMeta()
		r.join(o)
		r.settled(2*time.Second, "a", "b", "c")
		r.wants("metadata at first", r.metas(), want)
		if err := partition.Kick(r.Context(), r.keys, "", "t/g", "c"); err != nil {
			r.Fatal(err)
		}
		time.Sleep(r.ttl / 2)
		r.settled(5*time.Second, "a", "b", "c")
		r.wants("metadata in the second session of c", r.metas(), want)
		r.stop(a)
		r.wants("metadata while a is away", r.metas(), want)
	})
}

// A member counts without metadata if an older version wrote its session, or if its metadata is too large or not a map
// of strings.
func TestMemberWithoutReadableMetaCounts(t *testing.T) {
	for what, meta := range map[string]string{
		"older version": ``,
		"null":          `,"meta":null`,
		"number":        `,"meta":1`,
		"values":        `,"meta":{"host":{"name":"h1"}}`,
		"large":         fmt.Sprintf(`,"meta":{"host":%q}`, strings.Repeat("h", partition.MaxMetaBytes)),
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, 4, func(r *rig) {
				r.start("a")
				r.settled(2*time.Second, "a")
				session := `{"state":"live","session":"n1","weight":1,"joined":"2026-01-01T00:00:00Z"` + meta + `}`
				if _, err := r.keys.KeySet(r.Context(), "", "t/g/.m/old", []byte(session), 0, r.ttl); err != nil {
					r.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				r.wants("metadata", r.metas(), map[string]map[string]string{"a": nil, "old": nil})
				r.wants("partitions of a, which shares them with the other member", len(r.last("a").Owned()), 2)
			})
		})
	}
}

func TestMetaIsChecked(t *testing.T) {
	bubble(t, 4, func(r *rig) {
		for _, c := range []struct {
			meta map[string]string
			says string
		}{
			{map[string]string{"": "h1"}, "empty name"},
			{map[string]string{"host": "h\xff"}, `Meta["host"]`},
			{map[string]string{"h\xff": ""}, "UTF-8"},
			{map[string]string{"host": "h1\x1b[2J"}, "control"},
			{map[string]string{"ho\nst": "h1"}, "control"},
			{map[string]string{"host": largestMeta()["host"] + "h"}, "1025 bytes of JSON, use at most 1024"},
			{map[string]string{"host": largestMeta()["host"][5:] + "<"}, "1025 bytes"}, // it is escaped in JSON
		} {
			o := r.options("a")
			o.Meta = c.meta
			_, err := partition.Join(r.Context(), r.keys, "t/g", func(context.Context, *partition.Turn) (bool, error) { return true, nil }, o)
			if !errors.Is(err, jetbus.ErrInvalidOption) || !strings.Contains(err.Error(), c.says) {
				r.Errorf("join with %.40q: %.200v, want %q", c.meta, err, c.says)
			}
			_, err = partition.Subscribe(r.Context(), nil, "orders", "billing", nil, partition.SubscribeOptions{Meta: c.meta})
			if !errors.Is(err, jetbus.ErrInvalidOption) || !strings.Contains(err.Error(), c.says) {
				r.Errorf("subscribe with %.40q: %.200v, want %q", c.meta, err, c.says)
			}
		}
		if _, err := partition.Lookup(r.Context(), r.keys, "", "t/g"); !errors.Is(err, jetbus.ErrNoGroup) {
			r.Errorf("after joins that were refused: %v", err)
		}
	})
}

// smallBucket is a bucket of 1 MiB that is otherwise as the bus creates one.
const smallBucket = `{"name":"KV_JETBUS_GROUPS","subjects":["$KV.JETBUS_GROUPS.>"],"max_msgs_per_subject":1,"max_bytes":1048576,"discard":"new",
	"storage":"memory","num_replicas":1,"allow_rollup_hdrs":true,"deny_delete":true,"allow_direct":true,"allow_msg_ttl":true,"subject_delete_marker_ttl":3600000000000}`

// A member with the largest metadata keeps its session while other keys fill the bucket.
func TestMetaFitsIntoAFullBucket(t *testing.T) {
	inBucket(t, func(r *bucketRig) {
		nc, err := r.broker.Connect()
		r.ok(err)
		defer nc.Close()
		created, err := nc.Request("$JS.API.STREAM.CREATE.KV_"+partition.DefaultBucket, []byte(smallBucket), 5*time.Second)
		r.ok(err)
		if strings.Contains(string(created.Data), `"error"`) {
			r.Fatal(string(created.Data))
		}
		m, err := partition.Join(r.Context(), r.bus, "t/g", func(_ context.Context, t *partition.Turn) (bool, error) {
			<-t.Revoked()
			return true, nil
		}, partition.Options{Partitions: 4, Member: "a", Meta: largestMeta()})
		r.ok(err)
		time.Sleep(2 * time.Second)
		for n, size := 0, 64<<10; size > 0; n++ {
			if _, err := r.bus.KeySet(r.Context(), partition.DefaultBucket, fmt.Sprint("other/", n), make([]byte, size), 0, 0); err != nil {
				if !errors.Is(err, jetbus.ErrBucketFull) {
					r.Fatal(err)
				}
				size /= 4
			}
		}
		time.Sleep(3 * partition.DefaultTTL)
		if expelled := m.Stats().Expelled; expelled != 0 || len(m.Owned()) != 4 {
			r.Errorf("it lost %d sessions and has the partitions %v", expelled, m.Owned())
		}
		r.ok(m.Stop(r.Context()))
	})
}
