package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// lagRetry is how soon a replica that lags is asked again at first: it is moments behind.
const lagRetry = 5 * time.Millisecond

// lastMessages hands each the last message of every subject, in the order of their
// sequences: none from before what the stream's leader had when this was called. Any
// replica answers, and says as of which sequence; it is asked again until that has what
// was acknowledged. What a replica that is behind says is not handed out.
//
// A replica that has none of the subjects does not say how far it is. So it is asked once
// more, for a subject that is surely there as well.
func (srv *server) lastMessages(ctx context.Context, stream string, subjects []string, each func(*nats.Msg, uint64, time.Time) bool) error {
	info, err := srv.streamInfo(ctx, stream)
	if err != nil || info.State.Msgs == 0 {
		return err
	}
	request := directRequest{MultiLast: subjects, atLeast: info.State.LastSeq}
	beside := "" // the subject that is surely there
	for wait := lagRetry; ; wait = min(2*wait, publishRetryMax) {
		var got []keyMessage
		err := srv.directGet(ctx, stream, request, func(m *nats.Msg, seq uint64, stored time.Time) bool {
			got = append(got, keyMessage{Msg: *m, seq: seq, time: stored})
			return true
		})
		switch {
		case err == nil:
			handOut(got, beside, each)
			return nil
		case !errors.Is(err, errBehind):
			return err
		}
		if len(got) == 0 {
			said := len(request.MultiLast) > len(subjects)
			there, empty, err := srv.someSubject(ctx, stream)
			if empty || err != nil {
				return err
			}
			request.MultiLast, beside = append(slices.Clip(subjects), there), there
			if slices.ContainsFunc(subjects, func(s string) bool { return subjectsOverlap(s, there) }) {
				beside = ""
			}
			if !said {
				continue
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("%w: no replica that answers has message %d yet", jetbus.ErrUnavailable, request.atLeast)
		}
	}
}

// handOut passes on messages except for those of the subject that was only asked for
// beside the others.
func handOut(got []keyMessage, beside string, each func(*nats.Msg, uint64, time.Time) bool) {
	for i := range got {
		if m := &got[i]; m.Subject != beside && !each(&m.Msg, m.seq, m.time) {
			return
		}
	}
}

// someSubject is one that the stream's leader has a message of: that of its last one, or
// where that was removed, of its first.
func (srv *server) someSubject(ctx context.Context, stream string) (subject string, empty bool, err error) {
	for {
		info, err := srv.streamInfo(ctx, stream)
		if err != nil || info.State.Msgs == 0 {
			return "", true, err
		}
		for _, seq := range []uint64{info.State.LastSeq, info.State.FirstSeq} {
			if m, err := srv.leaderMessage(ctx, stream, map[string]any{"seq": seq}); err != nil || m.seq > 0 {
				return m.Subject, false, err
			}
		}
	}
}
