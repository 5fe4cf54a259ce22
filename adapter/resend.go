package adapter

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// resendMargin is what a message may take on its way to the server.
const resendMargin = 250 * time.Millisecond

// errForgotten: what may be stored is not sent again, since the server may have forgotten
// its ID and would store it a second time.
var errForgotten error = &jetbus.RemedyError{
	Err: fmt.Errorf("%w: no answer for as long as the topic knows the event's ID: look whether it is stored before you publish it again", jetbus.ErrUnavailable),
	See: "TopicConfig.DuplicateWindow",
}

// tries are the tries to store something, which is recognized when it comes again: by its
// ID, as long as the server remembers that, or by its condition, which holds only once
// where what is stored does not expire.
type tries struct {
	window      time.Duration // as long as which the server remembers
	conditional bool          // what is stored is refused when it comes again
	dry         bool          // the message is a probe, which is never stored
	sent        time.Time     // when the present try was
	since       time.Time     // when the first one was that may have been stored; zero: none may be
}

// triesOf are the tries to store a message in a topic.
func triesOf(t *topic, m *nats.Msg) tries {
	once := len(m.Header[jetstream.ExpectedLastSubjSeqHeader]) > 0 && len(m.Header[headerTTL]) == 0 ||
		t.retries // a retry takes the place of the one before
	return tries{window: t.config.DuplicateWindow, conditional: once}
}

// begin notes that a try is sent now, unless it comes too late to be recognized.
func (s *tries) begin() error {
	s.sent = time.Now()
	if s.unknown() && !s.conditional && s.forgotten() {
		return errForgotten
	}
	return nil
}

// failed notes that the present try may have been stored, if err leaves that open.
func (s *tries) failed(err error) {
	if !s.unknown() && s.mayBeStored(err) {
		s.since = s.sent
	}
}

// mayBeStored reports whether the present try, which failed with err, or an earlier one may have been stored.
func (s *tries) mayBeStored(err error) bool {
	return s.unknown() || !s.dry && !isUnsent(err)
}

// unknown reports whether an earlier try may have been stored.
func (s *tries) unknown() bool { return !s.since.IsZero() }

// forgotten reports whether the server may not remember the first of those any more.
func (s *tries) forgotten() bool { return isForgotten(s.since, s.window) }

// isForgotten reports whether what was sent at a time may not be remembered any more when
// something that is sent now arrives.
func isForgotten(sent time.Time, window time.Duration) bool {
	return time.Since(sent) > window-min(resendMargin, window/2)
}
