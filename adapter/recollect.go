package adapter

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// recollection is which events of a durable something is recorded of. After a
// crash thousands of events come again at once, of nearly all of which there is
// nothing; to ask for each would take longer than their leases last.
//
// What was asked for when an event had come holds for that event: whatever is
// recorded of its attempts was recorded before it came again. Guarded by
// leaseSet.mu.
type recollection struct {
	consumer string
	upTo     uint64            // arrivals before the question
	keys     map[string]uint64 // subjects of records, as of the answer
	unknown  bool              // there was none
	asking   chan struct{}     // closed with the answer; nil: nobody asks
}

// mayBeRecorded reports whether the record of an event's attempts must be looked
// for. One caller at a time asks, for all that has come until then.
func (p *puller) mayBeRecorded(ctx context.Context, l *lease) bool {
	s, r := p.s, &p.recollection
	s.mu.Lock()
	for {
		if r.consumer == l.consumer && l.arrival <= r.upTo {
			_, has := r.keys[keySubject(attemptsBucket, l.attemptKey())]
			unknown := r.unknown
			s.mu.Unlock()
			return has || unknown
		}
		asking := r.asking
		if asking == nil {
			break
		}
		s.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
			return true
		}
		s.mu.Lock()
	}
	r.asking = make(chan struct{})
	// Read before the lock is let go of: what arrives while the server is asked may have got its
	// record after the answer was made, and asks again.
	upTo := s.arrivals
	s.mu.Unlock()
	keys, err := s.b.recorded(ctx, p.t.stream, l.consumer)
	s.mu.Lock()
	close(r.asking)
	*r = recollection{consumer: l.consumer, upTo: upTo, keys: keys, unknown: err != nil}
	s.mu.Unlock()
	_, has := keys[keySubject(attemptsBucket, l.attemptKey())]
	return has || err != nil
}

// recorded lists the subjects of the records of a durable's events. It fails where
// there are more than one answer holds.
func (srv *server) recorded(ctx context.Context, stream, consumer string) (map[string]uint64, error) {
	filter := keySubject(attemptsBucket, strings.Join([]string{stream, consumer}, ".")) + ".>"
	subjects, total, err := srv.subjectsIn(ctx, bucketStream(attemptsBucket), filter, 0)
	if err == nil && total > len(subjects) {
		err = fmt.Errorf("%d records, of which the server lists %d", total, len(subjects))
	}
	return subjects, err
}

// subjectsIn returns the subjects of a stream with the number of their messages, starting at an
// offset, and the total number of subjects.
func (srv *server) subjectsIn(ctx context.Context, stream, filter string, offset int) (subjects map[string]uint64, total int, err error) {
	body, err := json.Marshal(map[string]any{"subjects_filter": filter, "offset": offset})
	if err != nil {
		return nil, 0, err
	}
	m, err := srv.request(ctx, &nats.Msg{Subject: srv.api + "STREAM.INFO." + stream, Data: body})
	if err != nil {
		return nil, 0, err
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		Total int                 `json:"total"`
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, 0, err
	}
	if answer.Error != nil {
		return nil, 0, answer.Error
	}
	return answer.State.Subjects, answer.Total, nil
}
