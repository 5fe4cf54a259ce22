package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// partitionOperation describes listPartitions, which is served if Config.PartitionsOf is set.
var partitionOperation = operation{
	"GET", "/v1/groups/{topic}/{group}/partitions", "listPartitions", "The partitions of a group and their members of the default bucket (ops:read)", "limit after", nil,
	object{"200": ref("Partitions")},
}

// listPartitions serves GET /v1/groups/{topic}/{group}/partitions, in pages by generation and number.
func (g *Gateway) listPartitions(w http.ResponseWriter, r *http.Request) {
	who, ok := g.admit(w, r, OpsRead, "")
	if !ok {
		return
	}
	a, ok := g.call(w, r, who)
	if !ok {
		return
	}
	defer a.Close()
	body, err := g.partitionsPage(r, a)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	answerText(w, http.StatusOK, body)
}

// partitionsPage returns the response of listPartitions.
func (g *Gateway) partitionsPage(r *http.Request, a *budget.Account) ([]byte, error) {
	topic, err := topicOf(r)
	if err != nil {
		return nil, err
	}
	group := r.PathValue("group")
	if err = jetbus.ValidGroup(group); err != nil {
		return nil, err
	}
	limit, err := g.limitOf(r, g.c.Limits.PageEvents)
	if err != nil {
		return nil, err
	}
	after, err := partitionOf(r.URL.Query().Get("after"))
	if err != nil {
		return nil, err
	}
	if err = acquire(r.Context(), a, budget.Bytes, g.pageBytes()); err != nil {
		return nil, err
	}
	list, err := g.c.PartitionsOf(r.Context(), topic, group)
	if err != nil {
		return nil, err
	}
	b := []byte(`{"partitions":[`)
	n, last, rest := 0, "", "]}\n"
	for _, s := range list {
		if s.Generation < after.Generation || s.Generation == after.Generation && s.Number <= after.Number {
			continue
		}
		one, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		if n == limit || n > 0 && len(b)+len(one) > g.c.Limits.QueueBytes {
			rest = `],"next":"` + last + "\"}\n"
			break
		}
		if n > 0 {
			b = append(b, ',')
		}
		b, last = append(b, one...), s.String()
		n++
	}
	return append(b, rest...), nil
}

// partitionOf reads the name of a partition, as P1.3. An empty text is before all partitions.
func partitionOf(text string) (p jetbus.Partition, err error) {
	if text == "" {
		return p, nil
	}
	if _, err = fmt.Sscanf(text, "P%d.%d", &p.Generation, &p.Number); err != nil || p.String() != text {
		return p, refuse(CodeBadRequest, "invalid after %.40q: use a partition name, for example P1.3", text)
	}
	return p, nil
}
