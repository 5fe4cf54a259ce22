package mongod

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// writeTimeout is how long a client may leave an answer unread.
const writeTimeout = time.Minute

// Server is a stand-in for a replica set of one member. Its methods may be
// called concurrently. A Server is made by [Start] and must be stopped.
type Server struct {
	cfg      Config
	log      *slog.Logger
	ln       net.Listener
	stopping chan struct{} // closed by Stop
	stopOnce sync.Once
	work     sync.WaitGroup // every goroutine of the server
	replyID  atomic.Int32
	connID   atomic.Int32

	hookMu  sync.RWMutex
	before  hooks
	after   hooks
	upserts upsertHooks
	watches watchHooks

	mu        sync.Mutex
	st        *store
	sessions  map[string]*session
	cursors   map[int64]*cursor
	lastID    int64
	failures  map[string]*failPoint
	conns     map[*conn]struct{}
	primary   bool
	term      int32
	suspended bool
	stopped   bool
}

// A conn is the connection of one client.
type conn struct {
	net.Conn
	id      int32
	gone    chan struct{} // closed when the connection is
	once    sync.Once
	appName string // of the goroutine that serves the connection
	auth    exchange
}

// cut closes the connection and ends what its command waits for.
func (c *conn) cut() {
	c.once.Do(func() {
		close(c.gone)
		c.Close()
	})
}

// Start starts a server and returns when it accepts connections. The context
// bounds the start only. Errors are those of [Config.Validate], and what keeps
// the server from listening.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("mongod: start: %w", err)
	}
	cfg = cfg.withDefaults()
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("mongod: start: %w", err)
	}
	s := &Server{
		cfg: cfg, log: cfg.Log, ln: ln,
		stopping: make(chan struct{}),
		st:       newStore(cfg.OplogBytes),
		sessions: map[string]*session{},
		cursors:  map[int64]*cursor{},
		failures: map[string]*failPoint{},
		conns:    map[*conn]struct{}{},
		primary:  true,
		term:     1,
	}
	s.log.LogAttrs(ctx, slog.LevelInfo, "stand-in for MongoDB started: for tests and development, no database, nothing is kept",
		slog.String("uri", s.redacted()), slog.String("version", cfg.Version))
	s.run(s.accept)
	s.run(s.tidy)
	return s, nil
}

// run starts a goroutine that Stop waits for.
func (s *Server) run(f func()) { s.work.Go(f) }

// Addr is the host:port that the server listens on.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// URI is the connection string of the server, with its credentials.
func (s *Server) URI() string {
	return s.uri(url.UserPassword(s.cfg.Username, s.cfg.Password))
}

// redacted is URI without the password.
func (s *Server) redacted() string { return s.uri(url.User(s.cfg.Username)) }

func (s *Server) uri(user *url.Userinfo) string {
	u := url.URL{Scheme: "mongodb", Host: s.Addr(), Path: "/"}
	if s.cfg.Username != "" {
		u.User = user
	}
	if !s.cfg.Standalone {
		u.RawQuery = url.Values{"replicaSet": {s.cfg.ReplicaSet}}.Encode()
	}
	return u.String()
}

// Stop closes all connections, forgets everything and returns when all
// goroutines of the server have ended. Stopping again does nothing.
func (s *Server) Stop() {
	s.stopOnce.Do(func() {
		close(s.stopping)
		s.ln.Close()
		s.mu.Lock()
		s.stopped = true
		for c := range s.conns {
			c.cut()
		}
		s.mu.Unlock()
		s.work.Wait()
		s.mu.Lock()
		s.st = newStore(0)
		s.sessions, s.cursors = nil, nil
		s.mu.Unlock()
		s.log.LogAttrs(context.Background(), slog.LevelInfo, "stand-in for MongoDB stopped", slog.String("addr", s.Addr()))
	})
	s.work.Wait()
}

func (s *Server) accept() {
	for {
		nc, err := s.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.LogAttrs(context.Background(), slog.LevelWarn, "accept failed", slog.Any("error", err))
			select {
			case <-time.After(10 * time.Millisecond):
				continue
			case <-s.stopping:
				return
			}
		}
		s.admit(&conn{Conn: nc, id: s.connID.Add(1), gone: make(chan struct{})})
	}
}

// admit serves a connection if there is room for it.
func (s *Server) admit(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.suspended || len(s.conns) >= s.cfg.MaxConnections {
		if len(s.conns) >= s.cfg.MaxConnections {
			s.log.LogAttrs(context.Background(), slog.LevelWarn, "connection refused: too many are open", slog.Int("limit", s.cfg.MaxConnections))
		}
		c.cut()
		return
	}
	s.conns[c] = struct{}{}
	s.run(func() { s.serve(c) })
}

func (s *Server) serve(c *conn) {
	defer func() {
		c.cut()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	in := bufio.NewReader(c)
	for {
		cmd, err := readCommand(in)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				s.log.LogAttrs(context.Background(), slog.LevelDebug, "connection closed", slog.Int("conn", int(c.id)), slog.Any("error", err))
			}
			return
		}
		reply, cut := s.handle(c, cmd)
		if cut {
			return
		}
		if cmd.moreToCome {
			continue
		}
		if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return
		}
		if err := writeReply(c, cmd, s.replyID.Add(1), reply); err != nil {
			return
		}
	}
}

// wait lets go of the mutex until something changes, and says false when the
// time or the connection is over.
func (s *Server) wait(c *conn, until time.Time) bool {
	l := &s.st.log
	l.waiters++
	changed := l.notify
	s.mu.Unlock()
	t := time.NewTimer(time.Until(until))
	ok := false
	select {
	case <-changed:
		ok = true
	case <-t.C:
	case <-c.gone:
	case <-s.stopping:
	}
	t.Stop()
	s.mu.Lock()
	l.waiters--
	return ok
}

// pause waits for d, or for the end of the connection.
func (s *Server) pause(c *conn, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.gone:
	case <-s.stopping:
	}
}
