package adapter

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// countEvents counts the messages of a topic in a stream that holds others as well: those
// of other topics, or its own that wait for their time. The server counts what lies behind
// a message that it sends, which is one request whatever the number of keys; a list of all
// subjects takes seconds for hundreds of thousands. Any replica answers that, as of where
// it is. The leader is asked for the list where none is there, since who asks may go by
// that, and where there is no answer: the stream does not allow direct gets, or the
// server does not allow them to this user.
func (srv *server) countEvents(ctx context.Context, t *topic) (uint64, error) {
	if n := srv.countDirect(ctx, t); n > 0 {
		return n, nil
	}
	info, err := srv.streamInfo(ctx, t.stream, jetstream.WithSubjectFilter(t.filter))
	if err != nil {
		return 0, srv.translate("count its events", srv.api+"STREAM.INFO."+t.stream, err)
	}
	var n uint64
	for _, of := range info.State.Subjects {
		n += of
	}
	return n, nil
}

// countDirect counts the messages of a topic at one of its stream's replicas; 0: none is
// there, or there is no answer.
func (srv *server) countDirect(ctx context.Context, t *topic) uint64 {
	subject := srv.api + "DIRECT.GET." + t.stream
	ctx, release := srv.guard(ctx, subject)
	defer release()
	some := uint64(0)
	request := directRequest{Seq: 1, NextBySubject: t.filter, Batch: 1, within: askTimeout}
	tail, err := directGet(ctx, srv.nc, subject, request, func(*nats.Msg, uint64, time.Time) bool {
		some = 1
		return false
	})
	if err != nil || some == 0 {
		return 0
	}
	return some + tail.pending
}
