package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
	"github.com/seed-63e9a637/jetbus/internal/exactjson"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// httpRoutes are the paths beside the WebSocket's. What no path has is a problem document,
// too.
func (g *Gateway) httpRoutes(mux *http.ServeMux) {
	handle := mux.HandleFunc
	handle("POST /v1/topics/{topic}", g.publishTopic)
	handle("POST /publish/{topic}", g.publishFirst)
	handle("GET /v1/topics/{topic}/events", g.readTopic)
	handle("GET /v1/topics", g.listTopics)
	handle("GET /v1/topics/{topic}", g.describeTopic)
	handle("GET /v1/topics/{topic}/snapshot", g.snapshot)
	handle("GET /v1/topics/{topic}/snapshot/{key...}", g.snapshotKey)
	handle("GET /v1/topics/{topic}/state", g.stateAt)
	handle("GET /v1/groups/{topic}", g.listGroups)
	handle("GET /v1/groups/{topic}/{group}", g.describeGroup)
	handle("DELETE /v1/groups/{topic}/{group}", g.deleteGroup)
	if g.c.PartitionsOf != nil {
		handle("GET /v1/groups/{topic}/{group}/partitions", g.listPartitions)
	}
	handle("POST /v1/groups/{topic}/{call}", g.callGroup)
	handle("GET /v1/dlq/{topic}", g.listDead)
	handle("GET /v1/dlq/{topic}/{seq}", g.oneDead)
	handle("POST /v1/dlq/{call}", g.replayDead)
	handle("GET /openapi.json", g.openAPI)
	handle("GET /asyncapi.json", g.asyncAPI)
	handle("GET /livez", g.alive)
	handle("GET /readyz", g.ready)
	handle("/", g.nowhere)
}

// methods are those that a path may have.
var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete}

// nowhere answers where there is nothing, or nothing with that method.
func (g *Gateway) nowhere(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, method := range methods {
		other := r.WithContext(r.Context()) // a copy
		other.Method = method
		if _, pattern := g.mux.Handler(other); pattern != "/" && method != r.Method {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		g.problem(w, r, refuse(CodeBadMethod, "%.20s is no method of this path; use %s", r.Method, strings.Join(allowed, " or ")))
		return
	}
	g.problem(w, r, refuse(CodeNotFound, "there is nothing at this path; see /openapi.json"))
}

// refuseHeaders refuses the headers that are instructions to the broker: through a client's
// hands they could purge a topic.
func refuseHeaders(h http.Header) error {
	for name := range h {
		if len(name) >= 5 && strings.EqualFold(name[:5], "Nats-") {
			return refuse(CodeBadRequest, "the header %.100s is the broker's own; leave it out", name)
		}
	}
	return nil
}

// answer writes a JSON answer.
func answer(w http.ResponseWriter, status int, v any) {
	var out jsonBuffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil { // nothing that the gateway answers with fails
		status, out = http.StatusInternalServerError, []byte("{}\n")
	}
	answerText(w, status, out)
}

// answerText writes an answer that is JSON already.
func answerText(w http.ResponseWriter, status int, text []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text) // a client that went away is none of the gateway's errors
}

// jsonBuffer is an io.Writer that appends.
type jsonBuffer []byte

// Write appends p and never fails.
func (b *jsonBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// bodyTime is how long a client may take to send a body, from when readBody begins to read it.
const bodyTime = 30 * time.Second

// readBody reads the body of a request, and refuses a body larger than most bytes. It acquires cost times the
// length of the body from the account, in steps as the body arrives: a client that announces a large body
// and sends little of it reserves little.
func readBody(w http.ResponseWriter, r *http.Request, a *budget.Account, most, cost int64) ([]byte, error) {
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return nil, refuse(CodeUnsupportedEncoding, "the content encoding %.40q is not supported; send the body as it is", e)
	}
	if r.ContentLength > most {
		return nil, refuse(CodeTooLarge, "the body has %d bytes, at most %d are allowed", r.ContentLength, most)
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime)) // writers of tests have no deadlines
	limit := most
	if r.ContentLength >= 0 {
		limit = r.ContentLength
	}
	body, err := readSteps(r.Context(), http.MaxBytesReader(w, r.Body, most), a, limit, cost)
	if err != nil {
		_ = rc.SetReadDeadline(time.Now().Add(unreadTime)) // for the rest of the body
	} else {
		_ = rc.SetReadDeadline(time.Time{}) // the response may take longer
	}
	return body, err
}

// readSteps implements readBody. The body has at most limit bytes.
func readSteps(ctx context.Context, in io.Reader, a *budget.Account, limit, cost int64) ([]byte, error) {
	var body []byte
	room := int64(0) // bytes of the body that are acquired
	for {
		if len(body) == cap(body) {
			acquireStep, next := acquireInLine, min(limit, 4*room)
			if room == 0 {
				acquireStep, next = acquire, min(limit, smallBytes/cost)
			}
			if err := acquireStep(ctx, a, budget.Bytes, cost*(next-room)); err != nil {
				return nil, err
			}
			room = next
			body = append(make([]byte, 0, room+1), body...) // one byte more, to find the end
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			a.Release(budget.Bytes, cost*(room-int64(len(body))))
			return body, nil
		}
		if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, refuse(CodeTooLarge, "the body has more than %d bytes", tooLarge.Limit)
		}
		if err != nil {
			return nil, refuse(CodeBadRequest, "the body ended before it was complete")
		}
	}
}

// readJSON decodes a body that is a JSON object or empty. Member names must match exactly, as in
// frames. The memory of the body is charged to the account.
func (g *Gateway) readJSON(w http.ResponseWriter, r *http.Request, a *budget.Account, into any) error {
	body, err := readBody(w, r, a, g.c.Limits.FrameBytes, jsonCost)
	if err != nil || len(body) == 0 {
		return err
	}
	return parse(r.Context(), a, len(body), func() error { return parseJSON(body, into) })
}

func parseJSON(body []byte, into any) error {
	if err := validJSON(body); err != nil {
		return err
	}
	if err := exactjson.Unmarshal(body, into, exactjson.RefuseVariants); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return refuse(CodeBadRequest, "the body's member %q is %s", wrong.Field, wrong.Value)
		}
		return refuse(CodeBadRequest, "invalid body: %v", err)
	}
	return nil
}

// validJSON reports what keeps a text from being JSON that an event may have as its payload.
func validJSON(text []byte) error {
	switch {
	case !utf8.Valid(text):
		return refuse(CodeBadJSON, "the body is no UTF-8")
	case frame.Depth(text) > frame.MaxPayloadDepth:
		return refuse(CodeBadJSON, "the JSON nests deeper than %d", frame.MaxPayloadDepth)
	case !json.Valid(text):
		return refuse(CodeBadJSON, "the body is no JSON")
	}
	return nil
}

// mediaType is that of the body, in lower case and without parameters. Empty: it says none.
func mediaType(h http.Header) (string, error) {
	text := h.Get("Content-Type")
	if text == "" {
		return "", nil
	}
	kind, params, err := mime.ParseMediaType(text)
	if err != nil {
		return "", refuse(CodeUnsupportedEncoding, "the content type %.100q cannot be read", text)
	}
	if set := params["charset"]; set != "" && !strings.EqualFold(set, "utf-8") && isJSONType(kind) {
		return "", refuse(CodeUnsupportedEncoding, "JSON is sent in UTF-8, not in %.40q", set)
	}
	return kind, nil
}

// isJSONType reports whether a media type is JSON, as the empty one is.
func isJSONType(kind string) bool {
	base, _, _ := strings.Cut(kind, ";")
	base = strings.ToLower(strings.TrimSpace(base))
	return base == "" || strings.HasSuffix(base, "/json") || strings.HasSuffix(base, "+json")
}

// parseTime reads a time of a client: epoch milliseconds, or RFC 3339.
func parseTime(text string) (time.Time, error) {
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.UnixMilli(ms).UTC(), nil
	}
	t, err := time.Parse(time.RFC3339Nano, strings.ToUpper(text))
	if err != nil {
		return t, refuse(CodeBadRequest, "the time %.60q is neither epoch milliseconds nor RFC 3339", text)
	}
	return t.UTC(), nil
}

// limitOf reads how many things an answer has at most. The client does not say: other.
func (g *Gateway) limitOf(r *http.Request, other int) (int, error) {
	most := g.c.Limits.PageEvents
	text := r.URL.Query().Get("limit")
	if text == "" {
		return min(other, most), nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, refuse(CodeBadRequest, "limit is %.40q, use 1 to %d", text, most)
	}
	return min(n, most), nil
}

// isSet reports whether a query parameter says yes.
func isSet(r *http.Request, name string) (bool, error) {
	q := r.URL.Query()
	if !q.Has(name) {
		return false, nil
	}
	v, err := strconv.ParseBool(q.Get(name))
	if err != nil {
		return false, refuse(CodeBadRequest, "%s is %.40q, use 1 or 0", name, q.Get(name))
	}
	return v, nil
}

// topicOf is the topic of the path, where it is a name.
func topicOf(r *http.Request) (string, error) {
	topic := r.PathValue("topic")
	return topic, jetbus.ValidTopic(topic)
}

// enterTopic lets a request in that is about the topic of its path.
func (g *Gateway) enterTopic(w http.ResponseWriter, r *http.Request, p Permission) (who Principal, topic string, ok bool) {
	topic, err := topicOf(r)
	if err != nil { // said to those alone who may ask at all
		if who, ok = g.admit(w, r, "", ""); ok {
			g.problem(w, r, err)
		}
		return who, topic, false
	}
	who, ok = g.admit(w, r, p, topic)
	return who, topic, ok
}
