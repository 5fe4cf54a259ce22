package adapter_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// permissionsOf reads the README's table of what each role may publish and subscribe to.
func permissionsOf(t *testing.T) map[string]*server.Permissions {
	t.Helper()
	readme := string(must(os.ReadFile("../README.md"))(t))
	_, rest, _ := strings.Cut(readme, "| role | publish | subscribe |\n|---|---|---|\n")
	table, _, ok := strings.Cut(rest, "\n\n")
	if !ok {
		t.Fatal("README.md has no table of permissions")
	}
	out := map[string]*server.Permissions{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
		if len(cells) != 3 {
			t.Fatalf("the row %q has %d cells", line, len(cells))
		}
		out[cells[0]] = &server.Permissions{Publish: allow(cells[1]), Subscribe: allow(cells[2])}
	}
	return out
}

// allow is the subjects of a cell.
func allow(cell string) *server.SubjectPermission {
	return &server.SubjectPermission{Allow: strings.Split(strings.Trim(cell, "`"), "` `")}
}

// onStage runs f in a bubble with a server of these users, the first of them the root,
// where the topic is there, with three events, and, where kept says so, the bus's own streams.
func onStage(t *testing.T, users []*server.User, kept bool, f func(t *testing.T, s *server.Server, root *adapter.Bus)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		t.Helper()
		t.Cleanup(func() { time.Sleep(time.Second) }) // as inBubble
		s := adaptertest.StartServer(t, &server.Options{JetStream: true, Users: users})
		root := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("root", "root")), adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, root)
		setStage(t, root)
		if kept {
			if err := playMember(t, root); err != nil {
				t.Fatal(err)
			}
			must(root.PublishBatch(t.Context(), adaptertest.Numbered("orders", 3), jetbus.BatchOptions{}))(t)
		}
		f(t, s, root)
	})
}

func setStage(t *testing.T, root *adapter.Bus) {
	t.Helper()
	must(root.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders", KeyInSubject: true}))(t)
	must(root.PublishBatch(t.Context(), adaptertest.Numbered("orders", 3), jetbus.BatchOptions{}))(t)
}

// playAs has a user play a role. What the server refuses is collected, as keys.
func playAs(t *testing.T, s *server.Server, user string, play func(t *testing.T, b *adapter.Bus) error, refused *sync.Map) error {
	t.Helper()
	nc := adaptertest.Dial(t, s, nats.UserInfo(user, "role"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		refused.Store(err.Error(), true)
	}))
	defer nc.Close()
	b, err := adapter.Open(t.Context(), nc, adapter.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer adaptertest.CloseBus(t, b)
	return play(t, b)
}

// inRole has a role play with these permissions. It returns what the server refused, as keys.
func inRole(t *testing.T, p *server.Permissions, play func(t *testing.T, b *adapter.Bus) error, kept bool) (refused *sync.Map, err error) {
	t.Helper()
	refused = &sync.Map{}
	users := []*server.User{{Username: "root", Password: "root"}, {Username: "role", Password: "role", Permissions: p}}
	onStage(t, users, kept, func(t *testing.T, s *server.Server, _ *adapter.Bus) {
		t.Helper()
		err = playAs(t, s, "role", play, refused)
	})
	return refused, err
}

// TestPermissions has each role do all that it does with what the README says that it needs.
func TestPermissions(t *testing.T) {
	table := permissionsOf(t)
	if len(table) != len(roles)+1 {
		t.Errorf("the table has %d roles", len(table))
	}
	for name, play := range roles {
		t.Run(name, func(t *testing.T) {
			wantAllowed(t, table[name], play, true)
		})
	}
	t.Run("first member", func(t *testing.T) {
		both := slices.Concat(table["member"].Publish.Allow, table["first member"].Publish.Allow)
		p := &server.Permissions{Publish: &server.SubjectPermission{Allow: both}, Subscribe: table["member"].Subscribe}
		wantAllowed(t, p, playMember, false)
	})
}

// wantAllowed has a role play, and nothing refused, also of what nobody waits for.
func wantAllowed(t *testing.T, p *server.Permissions, play func(t *testing.T, b *adapter.Bus) error, kept bool) {
	t.Helper()
	refused, err := inRole(t, p, play, kept)
	if err != nil {
		t.Error(err)
	}
	for what := range refused.Range {
		t.Error(what)
	}
}

// TestPermissionsTakenAway: what the README lists is needed, and its lack is told.
func TestPermissionsTakenAway(t *testing.T) {
	table := permissionsOf(t)
	users := []*server.User{{Username: "root", Password: "root"}}
	parts := map[string]func(t *testing.T, b *adapter.Bus) error{} // by user
	for role, subjects := range map[string][]string{
		"publisher": {"$JS.API.INFO", "$JS.API.STREAM.INFO.EV_ORDERS", "ev.orders.>"},
		"reader":    {"$JS.API.CONSUMER.CREATE.EV_ORDERS.>", "$JS.API.CONSUMER.MSG.NEXT.EV_ORDERS.*", "$JS.API.DIRECT.GET.EV_ORDERS"},
		"member": {
			"$JS.API.CONSUMER.CREATE.EV_ORDERS.>", "$JS.API.CONSUMER.MSG.NEXT.EV_ORDERS.*", "$JS.ACK.EV_ORDERS.>",
			"$JS.API.CONSUMER.MSG.NEXT.EV_RETRY.*", "$JS.ACK.EV_RETRY.>", "$KV.JETBUS_ATTEMPTS.>", "$KV.JETBUS_GROUPS.>", "$KV.JETBUS_LOCKS.>",
		},
		"owner": {"$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*", "$JS.API.STREAM.DELETE.*", "$JS.API.CONSUMER.PAUSE.*.*", "$KV.JETBUS_LOCKS.>"},
	} {
		for _, subject := range subjects {
			p := *table[role]
			less := slices.DeleteFunc(slices.Clone(p.Publish.Allow), func(s string) bool { return s == subject })
			if len(less) == len(p.Publish.Allow) {
				t.Fatalf("the table does not have %s for a %s", subject, role)
			}
			p.Publish = &server.SubjectPermission{Allow: less}
			user := role + " without " + subject
			users = append(users, &server.User{Username: user, Password: "role", Permissions: &p})
			parts[user] = roles[role]
		}
	}
	onStage(t, users, true, func(t *testing.T, s *server.Server, root *adapter.Bus) {
		for user, play := range parts {
			if err := playAs(t, s, user, play, &sync.Map{}); !errors.Is(err, jetbus.ErrDenied) {
				t.Errorf("%s: got error %v, want one that is %q", user, err, jetbus.ErrDenied)
			}
			// What the play has left undone is not the next one's.
			for _, topic := range []string{"orders", "made"} {
				if err := root.DeleteTopic(t.Context(), topic); err != nil && !errors.Is(err, jetbus.ErrNoTopic) {
					t.Fatal(err)
				}
			}
			setStage(t, root)
			s := must(root.Subscribe(t.Context(), "orders", "g", adaptertest.Ignore, jetbus.SubscribeOptions{}))(t)
			if err := s.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			must(root.PublishBatch(t.Context(), adaptertest.Numbered("orders", 3), jetbus.BatchOptions{}))(t)
		}
	})
}

// roles does what each role of the table does, on the topic "orders", which is there.
var roles = map[string]func(t *testing.T, b *adapter.Bus) error{
	"publisher": playPublisher, "member": playMember, "reader": playReader, "owner": playOwner,
}

func playPublisher(t *testing.T, b *adapter.Bus) error {
	_, one := b.Publish(t.Context(), adaptertest.Event("orders", "k"))
	_, many := b.PublishBatch(t.Context(), adaptertest.Numbered("orders", 3), jetbus.BatchOptions{})
	_, atomic := b.PublishBatch(t.Context(), adaptertest.Numbered("orders", 3), jetbus.BatchOptions{Atomic: true})
	return errors.Join(one, many, atomic)
}

// playMember has events that are done, retried soon and late, and given up, in a group
// without order and in an ordered one.
func playMember(t *testing.T, b *adapter.Bus) error {
	var errs []error
	for group, order := range map[string]jetbus.Order{"g": jetbus.NoOrder, "ordered": jetbus.PerKey} {
		done := make(chan string, 10)
		sub, err := b.Subscribe(t.Context(), "orders", group, func(_ context.Context, d *jetbus.Delivery) error {
			switch {
			case d.Key == "0":
				return jetbus.Reject(errors.New("bad"))
			case d.Key == "1" && d.Attempt == 1:
				return jetbus.RetryIn(2*time.Minute, errors.New("later"))
			case d.Key == "2" && d.Attempt == 1:
				return errors.New("again")
			}
			done <- d.Key
			return nil
		}, jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: order})
		if err != nil {
			return err
		}
		for i := range 2 {
			select {
			case <-done:
			case <-sub.Done():
			case <-time.After(10 * time.Minute):
				errs = append(errs, errors.New(group+": an event did not come again"))
			}
			if i == 0 { // the owner of an ordered group hands over what waits
				sub.Pause()
				sub.Resume()
			}
		}
		standby, err := b.Subscribe(t.Context(), "orders", group, adaptertest.Ignore, jetbus.SubscribeOptions{Order: order}) // of an ordered group: it watches
		if err != nil {
			return errors.Join(append(errs, err, sub.Stop(t.Context()))...)
		}
		time.Sleep(time.Second) // for what is refused to be told
		errs = append(errs, sub.Err(), sub.Stop(t.Context()), standby.Err(), standby.Stop(t.Context()))
	}
	for group, from := range map[string]jetbus.Start{"h": jetbus.Earliest(), "timed": jetbus.AtTime(time.Now().Add(-time.Hour)), "after": jetbus.AfterSeq(1)} {
		got, err := b.Receive(t.Context(), "orders", group, jetbus.ReceiveOptions{From: from, Max: 2})
		errs = append(errs, err)
		for _, d := range got {
			errs = append(errs, d.Ack(t.Context()))
		}
	}
	return errors.Join(errs...)
}

func playReader(t *testing.T, b *adapter.Bus) error {
	read := adaptertest.FirstErr(b.Read(t.Context(), []string{"orders"}, jetbus.ReadOptions{}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	follow := adaptertest.FirstErr(b.Read(ctx, []string{"orders"}, jetbus.ReadOptions{Follow: true}))
	if errors.Is(follow, context.DeadlineExceeded) {
		follow = nil
	}
	scan := adaptertest.FirstErr(b.Scan(t.Context(), "orders", jetbus.ScanQuery{}))
	_, latest := b.LatestByKey(t.Context(), "orders", "1")
	_, info := b.TopicInfo(t.Context(), "orders")
	return errors.Join(read, follow, scan, latest, info)
}

func playOwner(t *testing.T, b *adapter.Bus) error {
	_, made := b.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "made"})
	_, changed := b.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders", Description: "changed"})
	_, list := b.ListTopics(t.Context())
	_, groups := b.Groups(t.Context(), "orders")
	_, declared := b.EnsureGroup(t.Context(), "orders", jetbus.GroupConfig{Group: "declared", Inactive: time.Hour})
	moved := b.SetCursor(t.Context(), "orders", "g", jetbus.Cursor{}, jetbus.SeekOptions{})
	paused := b.PauseGroup(t.Context(), "orders", "g", time.Now().Add(time.Hour))
	resumed := b.ResumeGroup(t.Context(), "orders", "g")
	deleted := b.DeleteGroup(t.Context(), "orders", "g")
	return errors.Join(made, changed, list, groups, declared, moved, paused, resumed, deleted, b.DeleteTopic(t.Context(), "made"))
}
