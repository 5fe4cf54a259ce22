//go:build linux

package edge

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Bounds of the attack with groups.
const (
	manyGroups  = 1_001
	groupMakers = 8
	groupQuota  = 50 // Limits.OwnGroups by default
)

// TestReaderMakesManyGroupsOverTCP makes groups with a token that may only read, as many as the
// topic may have in all. Others make theirs within 5 seconds during the attack and after it.
func TestReaderMakesManyGroupsOverTCP(t *testing.T) {
	s := startServe(t, serveOptions{})
	bus := s.open()
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var next, made, refused atomic.Int64
	var makers sync.WaitGroup
	for range groupMakers {
		makers.Go(func() {
			for n := next.Add(1); n <= manyGroups && ctx.Err() == nil; n = next.Add(1) {
				switch status, err := s.askGroup(ctx, mallory, "POST", fmt.Sprintf("u.mallory.%d:pull", n)); {
				case err != nil:
					t.Error(err)
				case status == http.StatusOK:
					made.Add(1)
				case status == http.StatusTooManyRequests:
					refused.Add(1)
				default:
					t.Errorf("group %d: status %d", n, status)
				}
			}
		})
	}
	var slowest time.Duration
	join := func(group string) {
		t.Helper()
		began := time.Now()
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if status, err := s.askGroup(within, token, "POST", group+":pull"); err != nil || status != http.StatusOK {
			t.Errorf("%s: status %d, %v", group, status, err)
		}
		slowest = max(slowest, time.Since(began))
	}
	for i := range 20 {
		join(fmt.Sprintf("u.tool.%d", i))
	}
	makers.Wait()
	join("billing")
	groups, err := bus.Groups(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d groups made and %d refused; others made theirs in %v at most", made.Load(), refused.Load(), slowest)
	if made.Load() != groupQuota || refused.Load() != manyGroups-groupQuota || len(groups) != groupQuota+21 {
		t.Errorf("the topic has %d groups", len(groups))
	}
	for _, group := range groups {
		if personal := strings.HasPrefix(group.Group, "u."); personal != (group.Inactive > 0) {
			t.Errorf("%s stays for %v without members", group.Group, group.Inactive)
		}
		if !strings.HasPrefix(group.Group, "u.mallory.") {
			continue
		}
		status, err := s.askGroup(ctx, mallory, "DELETE", group.Group)
		for err == nil && status == http.StatusTooManyRequests { // it has used up its rate
			time.Sleep(10 * time.Millisecond)
			status, err = s.askGroup(ctx, mallory, "DELETE", group.Group)
		}
		if err != nil || status != http.StatusNoContent {
			t.Errorf("delete %s: status %d, %v", group.Group, status, err)
		}
	}
}

// askGroup makes a request about a group of orders, without waiting for events, and returns the
// status of the answer.
func (s *serveProcess) askGroup(ctx context.Context, as, method, group string) (status int, err error) {
	status, _, err = do(ctx, http.DefaultClient, s.address, request{as, method, "/v1/groups/orders/" + group, `{"wait":"0"}`, ""})
	return status, err
}
