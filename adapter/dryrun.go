package adapter

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// refusedRollup, after the event's own value of Nats-Rollup, is a value that no server accepts. The server checks
// it after everything else that it can check before it stores a message, and after it has looked for duplicates.
// Since 2.12 the leader of a replicated stream checks it before it proposes the message, so the ID remains unused.
const refusedRollup = "?"

// toProbe replaces an event's message by a probe: same conditions, ID and size, but a rollup value that every
// server rejects. The server checks it as it would check the event, and stores nothing.
//
// NATS also delivers the probe to subscribers of its subject that do not use JetStream, and they would take it for
// the event. So it has neither the event's attributes nor its payload, and its subject is the one with which the
// topic's stream is asked for IDs. An adopted topic has no such subject: the error is [jetbus.ErrUnsupported].
func (srv *server) toProbe(to *destination, m *nats.Msg) error {
	if to.topic.adopted() {
		return fmt.Errorf("%w: DryRun on an adopted topic: subscribers of %s that do not use JetStream would receive a message", jetbus.ErrUnsupported, m.Subject)
	}
	if err := srv.needs("DryRun"); err != nil {
		return err
	}
	size := headerBytes(m.Header) + len(m.Data)
	h := nats.Header{}
	for name, values := range m.Header {
		if strings.HasPrefix(name, "Nats-") {
			h[name] = values
		}
	}
	h[headerRollup] = []string{m.Header.Get(headerRollup) + refusedRollup}
	if len(h[headerSchedule]) == 0 { // the subject of a delayed event is not the subject of an event
		if len(h[jetstream.ExpectedLastSubjSeqHeader]) > 0 && len(h[jetstream.ExpectedLastSubjSeqSubjHeader]) == 0 {
			h[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{m.Subject}
		}
		subject, err := to.topic.lookupSubject(srv.cfg.Prefix)
		if err != nil {
			return err
		}
		m.Subject = subject
	}
	m.Header, m.Data = h, srv.zeroBytes(max(size-headerBytes(h), 0))
	return nil
}

// zeroBytes returns n bytes that are zero and must not be changed: all probes share them, because a gateway sends
// probes for many large events at the same time.
func (srv *server) zeroBytes(n int) []byte {
	zeros := srv.zeros.Load()
	if zeros == nil || len(*zeros) < n {
		zeros = new(make([]byte, n))
		srv.zeros.Store(zeros)
	}
	return (*zeros)[:n]
}

// probePassed reports whether the server refused a probe only because it is a probe. A stream without AllowRollup
// refuses each rollup, so that tells nothing about an event without one, and refuses an event that has one.
func probePassed(probe *nats.Msg, err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	switch {
	case !ok:
		return false
	case api.ErrorCode == codeRollupFailed:
		return probe.Header.Get(headerRollup) == refusedRollup || strings.HasPrefix(api.Description, "rollup value invalid")
	}
	return api.ErrorCode == jetstream.JSErrCodeScheduleRollupInvalid
}

// isDryRun reports whether the options of a Publish ask for a dry run.
func isDryRun(o []jetbus.PublishOptions) bool { return len(o) == 1 && o[0].DryRun }
