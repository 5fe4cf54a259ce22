package adapter

import (
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

// consumerPage is the server's answer to CONSUMER.LIST.
type consumerPage struct {
	Error     *jetstream.APIError       `json:"error"`
	Total     int                       `json:"total"`
	Limit     int                       `json:"limit"`
	Consumers []*jetstream.ConsumerInfo `json:"consumers"`
	Missing   []string                  `json:"missing"`
}

// consumersOf lists the durables of a stream, all of them: those whose leader is just
// away a cluster leaves out, and says so, which jetstream's own list does not pass on.
// They are asked for one by one, which waits for a leader. A list that nobody answers,
// since its leader was lost with it, is asked for again.
func (b *Bus) consumersOf(ctx context.Context, stream string) ([]*jetstream.ConsumerInfo, error) {
	var out []*jetstream.ConsumerInfo
	listed := map[string]bool{}
	for offset := 0; ; {
		page, err := retriedFor(ctx, b.js, isUnanswered, func() (consumerPage, error) { return b.consumerPage(ctx, stream, offset) })
		if err != nil {
			return nil, b.translate("list consumers", b.api+"CONSUMER.LIST."+stream, err)
		}
		for _, info := range page.Consumers {
			if !listed[info.Name] {
				listed[info.Name], out = true, append(out, info)
			}
		}
		for _, name := range page.Missing {
			c, err := b.consumer(ctx, &topic{stream: stream}, name)
			switch {
			case listed[name]:
			case err == nil:
				listed[name], out = true, append(out, c.CachedInfo())
			case apiCode(err) != jetstream.JSErrCodeConsumerNotFound: // it has gone meanwhile
				return nil, b.translate("look up consumer "+name, b.api+"CONSUMER.INFO."+stream+"."+name, err)
			}
		}
		offset += max(page.Limit, len(page.Consumers)+len(page.Missing), 1)
		if offset >= page.Total {
			return out, nil
		}
		offset = max(offset-pageOverlap, offset-page.Limit+1)
	}
}

func (b *Bus) consumerPage(ctx context.Context, stream string, offset int) (page consumerPage, err error) {
	subject := b.api + "CONSUMER.LIST." + stream
	body, err := json.Marshal(map[string]int{"offset": offset})
	if err != nil {
		return page, err
	}
	ctx, release := b.guard(ctx, subject)
	defer release()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	m, err := b.requestWithin(ctx, &nats.Msg{Subject: subject, Data: body}, listTimeout)
	if err == nil {
		err = json.Unmarshal(m.Data, &page)
	}
	if err == nil && page.Error != nil {
		err = page.Error
	}
	return page, err
}
