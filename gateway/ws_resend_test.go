package gateway_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestResend: what may be stored is published again while the topic knows its id, and not behind that, unless a
// condition keeps it from being stored twice.
func TestResend(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "short", DuplicateWindow: 10 * time.Second})
		r.ensure(jetbus.TopicConfig{Name: "keyed", KeyInSubject: true})
		c := r.dial()
		c.next(frame.Hello)
		began := time.Now()
		one := func(topic, opts string) string {
			return fmt.Sprintf(`{"op":"PUBLISH","corr":"p","topic":%q,"payload":1,"opts":{%s},"age_ms":%d}`, topic, opts, time.Since(began).Milliseconds())
		}
		const conditional = `"id":"k","key":"k","expectLastSeq":0`
		c.ask(one("orders", `"id":"a"`), frame.OK)
		c.ask(one("short", `"id":"a"`), frame.OK)
		c.ask(one("keyed", conditional), frame.OK)

		time.Sleep(time.Minute)
		if m := c.ask(one("orders", `"id":"a"`), frame.OK); !m.Duplicate {
			r.Errorf("within the window: %+v", m)
		}
		if m := c.ask(one("short", `"id":"a"`), frame.Err); m.Code != "publish_failed" || m.Retryable || !strings.Contains(string(m.Details), `"stored":"unknown"`) {
			r.Errorf("behind the window: %+v", m)
		}
		if m := c.ask(one("none", `"id":"a"`), frame.Err); m.Code != "unknown_topic" {
			r.Errorf("where there is no topic: %+v", m)
		}

		time.Sleep(time.Minute)
		if m := c.ask(one("keyed", conditional), frame.OK); !m.Duplicate || m.Seq != 1 {
			r.Errorf("with a condition: %+v", m)
		}
		m := c.ask(fmt.Sprintf(`{"op":"PUBLISH_BATCH","corr":"b","age_ms":%d,"events":[{"topic":"keyed","payload":1,"opts":{%s}},{"topic":"orders","payload":1,"opts":{"id":"a"}},{"topic":"or ders"}]}`,
			time.Since(began).Milliseconds(), conditional), frame.OK)
		if len(m.Results) != 3 || m.Results[0].Stored != "unknown" || m.Results[1].Code != "publish_failed" || m.Results[1].Retryable || m.Results[1].Stored != "unknown" || m.Results[2].Code != "bad_request" {
			r.Errorf("a batch: %+v", m.Results)
		}
		for _, topic := range []string{"orders", "short", "keyed"} {
			if info, err := r.bus.TopicInfo(r.Context(), topic); err != nil || info.Events != 1 {
				r.Errorf("%s has %d events, %v", topic, info.Events, err)
			}
		}
	})
}
