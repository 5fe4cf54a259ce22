package gateway

import (
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// problemDocument is an error over HTTP (RFC 9457). Programs go by Code and Retryable.
type problemDocument struct {
	Type         string `json:"type"`
	Title        string `json:"title"`
	Status       int    `json:"status"`
	Detail       string `json:"detail,omitempty"`
	Code         Code   `json:"code"`
	Retryable    bool   `json:"retryable"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
	Details      any    `json:"details,omitempty"`
	Error        string `json:"error,omitempty"` // what the first clients read, at the path they know
}

// document makes the document of an error.
func document(err error) problemDocument {
	f := explain(err)
	status := f.Code.Status()
	return problemDocument{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: f.Msg,
		Code: f.Code, Retryable: f.retryable(), RetryAfterMS: f.After.Milliseconds(), Details: f.Details,
	}
}

// problem answers a request with an error. What the client is not told is logged.
func (g *Gateway) problem(w http.ResponseWriter, r *http.Request, err error) {
	d := document(err)
	if strings.HasPrefix(r.URL.Path, firstPath) {
		d.Error = d.Detail
	}
	g.report(r, d.Code, err)
	body, err := json.Marshal(d)
	if err != nil { // of the details
		d.Details = nil
		body, _ = json.Marshal(d) // strings and numbers
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Del("ETag")
	if d.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", challenge(d.Code))
	}
	after := time.Duration(d.RetryAfterMS) * time.Millisecond
	if after == 0 && (d.Status == http.StatusTooManyRequests || d.Status == http.StatusServiceUnavailable) {
		after = budget.RetryAfter
	}
	if after > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	w.WriteHeader(d.Status)
	_, _ = w.Write(body) // a client that went away is none of the gateway's errors
}

// challenge says how to authenticate (RFC 6750).
func challenge(c Code) string {
	if c == CodeUnauthorized {
		return `Bearer realm="jetbus"`
	}
	return `Bearer realm="jetbus", error="invalid_token"`
}

// report logs an error whose text the client does not get.
func (g *Gateway) report(r *http.Request, c Code, err error) {
	_, told := errors.AsType[*failure](err)
	if g.c.Log == nil || told || plain[c] == "" || c == CodeBadToken || c == CodeTokenExpired || r.Context().Err() != nil {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, jetbus.ErrClosed) {
		level = slog.LevelDebug
	}
	g.c.Log.LogAttrs(r.Context(), level, "request failed",
		slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.String("code", string(c)), slog.Any("err", err))
}
