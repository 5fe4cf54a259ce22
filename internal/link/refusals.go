package link

import (
	"errors"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// maxRefusals is how many refusals of a connection are remembered, the latest.
const maxRefusals = 64

// Refused reports whether the server refused a publish to subject at or after a
// time, for the lack of a permission, on the present connection: with the next one
// permissions may be others. A subject that ends with a dot stands for all that
// begin so. The server names the subject in an error that belongs to no request, so
// that of several refusals at once each must be kept.
func (l *Link) Refused(subject string, since time.Time) bool {
	l.mu.Lock()
	up := l.since
	l.mu.Unlock()
	if since.Before(up) {
		since = up
	}
	return l.refusals.has(subject, since)
}

// refusals are what the server refused on one connection. The links that follow
// the connection share them.
type refusals struct {
	links  int             // under connections.mu
	before nats.ErrHandler // of the connection's owner

	mu     sync.Mutex
	latest []refusal // a ring
	next   int
}

type refusal struct {
	subject string // lower case, as older versions of nats.go have it
	at      time.Time
}

// connections are those that links follow.
var connections = struct {
	mu sync.Mutex
	of map[*nats.Conn]*refusals
}{of: map[*nats.Conn]*refusals{}}

// watchRefusals has the connection's errors pass by the refusals, until release.
func watchRefusals(nc *nats.Conn) *refusals {
	connections.mu.Lock()
	defer connections.mu.Unlock()
	r := connections.of[nc]
	if r == nil {
		r = &refusals{before: nc.ErrorHandler()}
		nc.SetErrorHandler(r.handle)
		connections.of[nc] = r
	}
	r.links++
	return r
}

// release gives the owner's handler back with the last link, unless the owner has
// set another one since.
func (r *refusals) release(nc *nats.Conn) {
	connections.mu.Lock()
	defer connections.mu.Unlock()
	if r.links--; r.links > 0 {
		return
	}
	delete(connections.of, nc)
	ours := reflect.ValueOf(nats.ErrHandler(r.handle)).Pointer()
	if h := nc.ErrorHandler(); h != nil && reflect.ValueOf(h).Pointer() == ours {
		nc.SetErrorHandler(r.before)
	}
}

func (r *refusals) handle(nc *nats.Conn, sub *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrPermissionViolation) {
		if subject, ok := refusedSubject(err.Error()); ok {
			r.note(subject)
		}
	}
	if r.before != nil {
		r.before(nc, sub, err)
	}
}

// refusedSubject finds the subject in the words of the server, which are
// 'Permissions Violation for Publish to "orders"'.
func refusedSubject(text string) (subject string, ok bool) {
	_, rest, _ := strings.Cut(strings.ToLower(text), `publish to "`)
	subject, _, ok = strings.Cut(rest, `"`)
	return subject, ok
}

func (r *refusals) note(subject string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := refusal{subject, time.Now()}
	if len(r.latest) < maxRefusals {
		r.latest = append(r.latest, one)
		return
	}
	r.latest[r.next] = one
	r.next = (r.next + 1) % maxRefusals
}

func (r *refusals) has(subject string, since time.Time) bool {
	subject = strings.ToLower(subject)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.latest {
		if !one.at.Before(since) && (one.subject == subject || strings.HasSuffix(subject, ".") && strings.HasPrefix(one.subject, subject)) {
			return true
		}
	}
	return false
}
