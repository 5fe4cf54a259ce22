package mongod

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A Command is what hooks are told about a command of a client.
type Command struct {
	Name       string // such as "insert"
	Database   string
	Collection string // "" if the command is not about one
	AppName    string // that the client gave itself
	Body       bson.D // the whole command; must not be changed
}

// A hook is called with commands. See [Server.OnCommand].
type hook struct {
	f func(Command) error
}

type hooks []*hook

type upsertHook struct {
	f func(namespace string, id any)
}

type upsertHooks []*upsertHook

type watchHook struct {
	f func(namespace string)
}

type watchHooks []*watchHook

// OnCommand has f called before each command is run, in the order of the calls of
// OnCommand, until remove is called. If f returns nil, the command goes on. A
// [*CommandError] is sent to the client instead of running the command; [ErrCut]
// closes the connection; any other error is sent as an unknown error. f sees all
// commands, also the hello by which drivers watch the server. It is called
// concurrently. It may block, and holds up that connection and Stop only.
func (s *Server) OnCommand(f func(Command) error) (remove func()) {
	return addHook(s, &s.before, &hook{f})
}

// OnReply is like [Server.OnCommand], but f is called after the command was run:
// what it did is done, and only the client does not get to know.
func (s *Server) OnReply(f func(Command) error) (remove func()) {
	return addHook(s, &s.after, &hook{f})
}

// OnUpsert has f called when an upsert found no document and before it inserts
// one. f may write to the same collection from another connection: this is the
// race in which the insert fails with a duplicate key. The id is nil if the
// filter does not give it. f is not called within transactions.
func (s *Server) OnUpsert(f func(namespace string, id any)) (remove func()) {
	return addHook(s, &s.upserts, &upsertHook{f})
}

// OnWatch has f called when a change stream knows where it begins and before its first
// batch is read. f may write to what it watches from another connection: this is the
// race in which a stream that begins now has changes in its first batch.
func (s *Server) OnWatch(f func(namespace string)) (remove func()) {
	return addHook(s, &s.watches, &watchHook{f})
}

// Delay has the named commands, or all if none is named, wait for d before they
// are run, until remove is called.
func (s *Server) Delay(d time.Duration, commands ...string) (remove func()) {
	return s.OnCommand(func(c Command) error {
		if len(commands) > 0 && !slices.Contains(commands, c.Name) {
			return nil
		}
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.stopping:
			return ErrCut
		}
		return nil
	})
}

func addHook[H ~[]*T, T any](s *Server, list *H, h *T) (remove func()) {
	s.hookMu.Lock()
	defer s.hookMu.Unlock()
	*list = append(slices.Clone(*list), h) // running calls read the old one
	return func() {
		s.hookMu.Lock()
		defer s.hookMu.Unlock()
		*list = slices.DeleteFunc(slices.Clone(*list), func(o *T) bool { return o == h })
	}
}

func (s *Server) runHooks(list *hooks, c *conn, cmd *command) error {
	s.hookMu.RLock()
	hs := *list
	s.hookMu.RUnlock()
	if len(hs) == 0 {
		return nil
	}
	info := Command{Name: cmd.name, Database: cmd.db, Collection: cmd.target(), AppName: c.appName, Body: cmd.body}
	if cmd.name == "getMore" {
		info.Collection = asString(cmd.field("collection"))
	}
	for _, h := range hs {
		if err := h.f(info); err != nil {
			return err
		}
	}
	return nil
}

// raceUpsert calls the upsert hooks without the mutex and says whether it did.
func (s *Server) raceUpsert(ns string, id any) bool {
	s.hookMu.RLock()
	hs := s.upserts
	s.hookMu.RUnlock()
	if len(hs) == 0 {
		return false
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	for _, h := range hs {
		h.f(ns, id)
	}
	return true
}

// raceWatch calls the watch hooks without the mutex.
func (s *Server) raceWatch(ns string) {
	s.hookMu.RLock()
	hs := s.watches
	s.hookMu.RUnlock()
	if len(hs) == 0 {
		return
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	for _, h := range hs {
		h.f(ns)
	}
}

// fault logs a fault that was asked for.
func (s *Server) fault(name string, attrs ...slog.Attr) {
	s.log.LogAttrs(context.Background(), slog.LevelInfo, "fault", append([]slog.Attr{slog.String("fault", name)}, attrs...)...)
}

// CutConnections closes the connections of all clients and returns how many
// there were. What their commands waited for is given up; what they did stays
// done.
func (s *Server) CutConnections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.cut()
	}
	s.fault("cut connections", slog.Int("count", len(s.conns)))
	return len(s.conns)
}

// Suspend makes the server unreachable until [Server.Resume]: it cuts all
// connections and closes new ones at once. The data stays.
func (s *Server) Suspend() {
	s.mu.Lock()
	s.suspended = true
	s.mu.Unlock()
	s.CutConnections()
}

// Resume ends [Server.Suspend].
func (s *Server) Resume() {
	s.mu.Lock()
	s.suspended = false
	s.mu.Unlock()
	s.fault("resume")
}

// KillCursors closes all cursors and returns how many there were. Their clients
// get CursorNotFound.
func (s *Server) KillCursors() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.cursors)
	clear(s.cursors)
	s.st.log.wake()
	s.fault("kill cursors", slog.Int("count", n))
	return n
}

// StepDown makes the member a secondary until [Server.StepUp]: commands get
// NotWritablePrimary, change streams are interrupted, transactions are aborted.
func (s *Server) StepDown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stepDown()
}

func (s *Server) stepDown() {
	s.primary = false
	for t := range s.st.open {
		s.st.finish(t, txnAborted)
	}
	s.st.log.wake()
	s.fault("step down")
}

// StepUp makes the member the primary again, in a new term.
func (s *Server) StepUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.primary {
		s.primary = true
		s.term++
	}
	s.fault("step up")
}

// LoseMajority makes the set behave as if most of its members were away, until
// [Server.RegainMajority]: change streams show nothing new, and writes with write
// concern majority wait.
func (s *Server) LoseMajority() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := &s.st.log; !l.held {
		l.held, l.stalled = true, l.end()
	}
	s.fault("lose majority")
}

// RegainMajority ends [Server.LoseMajority].
func (s *Server) RegainMajority() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.log.held = false
	s.st.log.wake()
	s.fault("regain majority")
}

// TruncateOplog forgets the history: change streams cannot be resumed from
// tokens and times before now (ChangeStreamHistoryLost), and those that lag fail.
func (s *Server) TruncateOplog() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.log.truncate(s.st.tick())
	s.fault("truncate oplog")
}
