package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// problem is an error over HTTP.
type problem struct {
	Detail       string          `json:"detail"`
	Code         string          `json:"code"`
	Retryable    bool            `json:"retryable"`
	RetryAfterMs int64           `json:"retry_after_ms"`
	Details      json.RawMessage `json:"details"`
}

// maxAnswer is how many bytes an answer over HTTP has at most.
const maxAnswer = 256 << 20

// web calls request with the method GET, or POST if there is a body.
func (c *Client) web(ctx context.Context, path string, query url.Values, body, into any) error {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	return c.request(ctx, method, path, query, body, into)
}

// request makes an HTTP request and repeats it while the error is temporary. A GET is also repeated if
// the gateway was not reached. If into is nil, the response body is ignored.
func (c *Client) request(ctx context.Context, method, path string, query url.Values, body, into any) error {
	if _, err := c.main(); err != nil {
		return err
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	fresh := false
	for wait := retryWait; ; wait = min(2*wait, maxRetryWait) {
		err := c.requestOnce(ctx, method, path, query, body, into)
		if e, ok := errors.AsType[*Error](err); ok && e.Code == "token_expired" && !fresh { // it ended while there was no connection
			fresh = true
			if _, err := c.token(ctx); err != nil {
				return err
			}
			continue
		}
		again := passes(err) || method == http.MethodGet && err != nil && unreached(err)
		if !again || sleep(ctx, max(wait, retryAfter(err))) != nil {
			return err
		}
	}
}

// unreachedError is the error of an HTTP request that got no response.
type unreachedError struct{ err error }

// Error gives the cause.
func (e *unreachedError) Error() string {
	return fmt.Sprintf("%v: the gateway was not reached: %v", jetbus.ErrUnavailable, e.err)
}

// Unwrap returns ErrUnavailable and the cause.
func (e *unreachedError) Unwrap() []error { return []error{jetbus.ErrUnavailable, e.err} }

func unreached(err error) bool {
	_, ok := err.(*unreachedError) //nolint:errorlint // made by requestOnce, as it is
	return ok
}

func (c *Client) requestOnce(ctx context.Context, method, path string, query url.Values, body, into any) error {
	at := c.base + path
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return fmt.Errorf("%w: %w", jetbus.ErrInvalidOption, err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("%w: %w", jetbus.ErrInvalidOption, err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	c.mu.Lock()
	token := c.bearer
	c.mu.Unlock()
	if token != "" {
		r.Header.Set("Authorization", bearer(token))
	}
	answer, err := c.c.HTTPClient.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return cause(ctx)
		}
		return &unreachedError{err}
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		if ctx.Err() != nil {
			return cause(ctx)
		}
		return &unreachedError{err}
	}
	if answer.StatusCode/100 != 2 {
		var p problem
		if json.Unmarshal(text, &p) != nil || p.Code == "" {
			return fmt.Errorf("%w: the gateway answered %s", jetbus.ErrUnavailable, answer.Status)
		}
		return refusal(&frame.Message{Code: p.Code, Msg: p.Detail, Retryable: p.Retryable, RetryAfterMs: p.RetryAfterMs, Details: p.Details})
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%w: an answer of the gateway: %w", jetbus.ErrUnavailable, err)
	}
	return nil
}

// longer gives a context without a deadline time for what waits at the gateway.
func (c *Client) longer(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.c.Timeout+by)
}
