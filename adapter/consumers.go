package adapter

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// listTimeout bounds one try of a page of a list. A cluster takes 4 seconds for one
// where a durable's leader does not answer.
const listTimeout = 6 * time.Second

// pageOverlap is how much of a page the next one has again: durables that are deleted
// between them make the others move up.
const pageOverlap = 32

// listPage is the server's answer to CONSUMER.LIST, to CONSUMER.NAMES, which has names, or to
// STREAM.LIST.
type listPage[T any] struct {
	Error     *jetstream.APIError `json:"error"`
	Total     int                 `json:"total"`
	Limit     int                 `json:"limit"`
	Consumers []T                 `json:"consumers"`
	Streams   []T                 `json:"streams"`
	Missing   []string            `json:"missing"`
}

// listQuestion asks for a list.
type listQuestion struct {
	what    string // in errors
	subject string
	taking  string        // of streams: subjects that they take
	within  time.Duration // how long one try of a page may take
}

// consumersOf lists the durables of a stream, all of them: those whose leader is just
// away a cluster leaves out, and says so, which jetstream's own list does not pass on.
// They are asked for one by one, which waits for a leader. One that is replaced meanwhile
// may be in it twice, or not at all: whether a group is there, its names tell (see
// durableNow).
func (srv *server) consumersOf(ctx context.Context, stream string) ([]*jetstream.ConsumerInfo, error) {
	var out []*jetstream.ConsumerInfo
	listed := map[string]bool{}
	all := listQuestion{what: "list consumers", subject: srv.api + "CONSUMER.LIST." + stream, within: listTimeout}
	err := eachPage(ctx, srv, all, func(page listPage[*jetstream.ConsumerInfo]) error {
		for _, info := range page.Consumers {
			if !listed[info.Name] {
				listed[info.Name], out = true, append(out, info)
			}
		}
		for _, name := range page.Missing {
			c, err := srv.consumer(ctx, &topic{stream: stream, elects: true}, name) // only a cluster has any that are missing
			switch {
			case listed[name]:
			case err == nil:
				listed[name], out = true, append(out, c.CachedInfo())
			case apiCode(err) != jetstream.JSErrCodeConsumerNotFound: // it has gone meanwhile
				return srv.translate("look up consumer "+name, srv.api+"CONSUMER.INFO."+stream+"."+name, err)
			}
		}
		return nil
	})
	return out, err
}

// eachPage asks for a list page by page. One that nobody answers in its time, since
// its leader was lost with it, is asked for again.
func eachPage[T any](ctx context.Context, srv *server, q listQuestion, f func(listPage[T]) error) error {
	for offset := 0; ; {
		page, err := retriedFor(ctx, srv.js, isUnanswered, func() (listPage[T], error) { return askPage[T](ctx, srv, q, offset) })
		if err != nil {
			return srv.translate(q.what, q.subject, err)
		}
		if err := f(page); err != nil {
			return err
		}
		offset += max(cmp.Or(page.Limit, len(page.Consumers)+len(page.Streams)+len(page.Missing)), 1) // what is missing may be there as well
		if offset >= page.Total {
			return nil
		}
		offset = max(offset-pageOverlap, offset-page.Limit+1)
	}
}

func askPage[T any](ctx context.Context, srv *server, q listQuestion, offset int) (page listPage[T], err error) {
	body, err := json.Marshal(struct {
		Offset  int    `json:"offset"`
		Subject string `json:"subject,omitempty"`
	}{offset, q.taking})
	if err != nil {
		return page, err
	}
	ctx, release := srv.guard(ctx, q.subject)
	defer release()
	ctx, cancel := context.WithTimeout(ctx, q.within)
	defer cancel()
	m, err := srv.requestWithin(ctx, &nats.Msg{Subject: q.subject, Data: body}, q.within)
	if err == nil {
		err = json.Unmarshal(m.Data, &page)
	}
	if err == nil && page.Error != nil {
		err = page.Error
	}
	return page, err
}
