package adapter

import (
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// refusedRollup is a value of Nats-Rollup that no server accepts. The server checks it after everything else that
// it can check before it stores a message, and after it has looked for duplicates. Since 2.12 the leader of a
// replicated stream checks it before it proposes the message, so the ID remains unused.
const refusedRollup = "?"

// rehearse turns the message of an event into the question what the server would answer to it: a message with
// the same conditions, ID and size, that the server never stores.
//
// Subscribers of NATS that do not use JetStream would take it for the event. So it has neither the attributes of
// the event nor its payload, and it goes to the subject on which the topic's stream is asked for IDs. For an adopted
// topic that is the subject of its events.
func (srv *server) rehearse(to *destination, m *nats.Msg) error {
	if err := srv.needs("DryRun"); err != nil {
		return err
	}
	size := headerBytes(m.Header) + len(m.Data)
	h := nats.Header{headerRollup: {refusedRollup}}
	for name, values := range m.Header {
		if strings.HasPrefix(name, "Nats-") && name != headerRollup {
			h[name] = values
		}
	}
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
	m.Header, m.Data = h, make([]byte, max(size-headerBytes(h), 0))
	return nil
}

// isRehearsal reports whether a message was made by rehearse.
func isRehearsal(m *nats.Msg) bool {
	v := m.Header[headerRollup]
	return len(v) == 1 && v[0] == refusedRollup
}

// isRehearsed reports whether the server refused a rehearsal for no other reason than that it is one.
func isRehearsed(err error) bool {
	code := apiCode(err)
	return code == codeRollupFailed || code == jetstream.JSErrCodeScheduleRollupInvalid
}

// isDryRun reports whether the options of a Publish ask for a dry run.
func isDryRun(o []jetbus.PublishOptions) bool { return len(o) == 1 && o[0].DryRun }
