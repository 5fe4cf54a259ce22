package mongod

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A call is a command being run. The server's mutex is held, except in wait.
type call struct {
	*command
	srv   *Server
	conn  *conn
	retry *session // of a retryable write, and of what ends a transaction; nil otherwise
	view
}

// handlers are the commands that the server knows.
var handlers map[string]func(*call) (bson.D, error)

func init() { // some handlers look others up
	handlers = map[string]func(*call) (bson.D, error){
		"hello": (*call).hello, "isMaster": (*call).hello, "ismaster": (*call).hello,
		"ping": (*call).nothing, "endSessions": (*call).endSessions, "refreshSessions": (*call).nothing,
		"killSessions": (*call).endSessions, "killAllSessions": (*call).killAllSessions,
		"killAllSessionsByPattern": (*call).killAllSessions, "logout": (*call).nothing,
		"fsync": (*call).nothing, "replSetFreeze": (*call).nothing,
		"saslStart": (*call).saslStart, "saslContinue": (*call).saslContinue,
		"buildInfo": (*call).buildInfo, "buildinfo": (*call).buildInfo, "serverStatus": (*call).serverStatus,
		"getParameter": (*call).getParameter, "setParameter": (*call).setParameter,
		"connectionStatus": (*call).connectionStatus, "replSetGetStatus": (*call).replSetGetStatus,
		"configureFailPoint": (*call).configureFailPoint, "replSetInitiate": (*call).replSetInitiate,
		"replSetStepDown": (*call).replSetStepDown,

		"listDatabases": (*call).listDatabases, "listCollections": (*call).listCollections, "create": (*call).createCollection,
		"collMod": (*call).collMod, "drop": (*call).drop, "dropDatabase": (*call).dropDatabase, "renameCollection": (*call).rename,
		"createIndexes": (*call).createIndexes, "dropIndexes": (*call).dropIndexes, "listIndexes": (*call).listIndexes,

		"insert": (*call).insertCmd, "update": (*call).updateCmd, "delete": (*call).deleteCmd,
		"findAndModify": (*call).findAndModify, "findandmodify": (*call).findAndModify,
		"find": (*call).findCmd, "aggregate": (*call).aggregate, "count": (*call).count, "distinct": (*call).distinct,
		"getMore": (*call).getMore, "killCursors": (*call).killCursors,
		"commitTransaction": (*call).commitTransaction, "abortTransaction": (*call).abortTransaction,
	}
}

// anyState are the commands that a member answers in every state of the set,
// and before a client has authenticated.
var anyState = []string{"hello", "isMaster", "ismaster", "ping", "buildInfo", "buildinfo", "saslStart", "saslContinue", "endSessions", "getParameter", "connectionStatus", "replSetGetStatus", "configureFailPoint"}

// inTransaction are the commands that may be part of a transaction.
var inTransaction = []string{"insert", "update", "delete", "findAndModify", "findandmodify", "find", "aggregate", "distinct", "getMore", "killCursors", "create", "createIndexes", "commitTransaction", "abortTransaction"}

// withExpressions are the commands that may use $$NOW.
var withExpressions = []string{"update", "delete", "findAndModify", "findandmodify", "find", "aggregate", "count", "distinct"}

// handle runs a command and returns the reply, or that the connection is cut.
func (s *Server) handle(c *conn, cmd *command) (reply bson.D, cut bool) {
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.log.LogAttrs(context.Background(), slog.LevelDebug, "command", slog.Int("conn", int(c.id)), slog.String("db", cmd.db), slog.String("name", cmd.name))
	}
	if client := asDoc(cmd.field("client")); client != nil && isHello(cmd.name) {
		c.appName = asString(field(asDoc(field(client, "application")), "name"))
	}
	if err := s.runHooks(&s.before, c, cmd); err != nil {
		return s.answer(cmd, nil, err, nil)
	}
	outcome := s.fail(c, cmd, failCommand)
	if outcome.cut || outcome.err != nil {
		return s.answer(cmd, nil, outcome.failure(), nil)
	}
	reply, err := s.dispatch(c, cmd)
	if late := s.runHooks(&s.after, c, cmd); late != nil {
		err = late
	}
	return s.answer(cmd, reply, err, outcome.writeConcern)
}

func isHello(name string) bool { return name == "hello" || name == "isMaster" || name == "ismaster" }

// answer makes the reply of a command, or says that the connection is cut.
func (s *Server) answer(cmd *command, reply bson.D, err error, wce *writeConcernError) (bson.D, bool) {
	switch {
	case errors.Is(err, ErrCut):
		return nil, true
	case err != nil:
		e := *commandError(err)
		if e.Labels == nil {
			e.Labels = labelsFor(cmd, e.Code, false)
		}
		reply = e.reply()
	case wce != nil:
		reply = append(slices.Clip(reply), wce.fields(cmd)...)
	}
	if s.cfg.Standalone {
		return reply, false
	}
	s.mu.Lock()
	now := s.st.clock
	s.mu.Unlock()
	signature := bson.D{{Key: "hash", Value: bson.Binary{Data: make([]byte, 20)}}, {Key: "keyId", Value: int64(0)}}
	return append(slices.Clip(reply), // a reply may be shared
		bson.E{Key: "$clusterTime", Value: bson.D{{Key: "clusterTime", Value: now}, {Key: "signature", Value: signature}}},
		bson.E{Key: "operationTime", Value: now},
	), false
}

func (s *Server) dispatch(c *conn, cmd *command) (reply bson.D, err error) {
	defer func() { // a mistake of ours is the end of a command, not of the process
		if p := recover(); p != nil {
			s.log.LogAttrs(context.Background(), slog.LevelError, "command panicked",
				slog.String("name", cmd.name), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			reply, err = nil, errorf(8, "UnknownError", "the stand-in for MongoDB failed in %s: %v", cmd.name, p)
		}
	}()
	h, ok := handlers[cmd.name]
	if !ok {
		return nil, errorf(codeCommandNotFound, "CommandNotFound", "no such command: '%s'", cmd.name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, ErrCut
	}
	if !slices.Contains(anyState, cmd.name) {
		if s.cfg.Username != "" && !c.auth.done {
			return nil, errorf(codeUnauthorized, "Unauthorized", "Command %s requires authentication", cmd.name)
		}
		if !s.primary && cmd.name != "getMore" && cmd.name != "killCursors" { // cursors outlive a term
			return nil, errorf(codeNotPrimary, "NotWritablePrimary", "not primary")
		}
	}
	if slices.Contains(withExpressions, cmd.name) {
		cmd.body = bindNow(cmd.body, time.Now())
	}
	k := &call{command: cmd, srv: s, conn: c, view: view{st: s.st}}
	if reply, err = k.inSession(h); err != nil {
		return nil, err
	}
	return k.concern(reply)
}

// deadline is when a command gives up waiting for others.
func (k *call) deadline() time.Time {
	if ms := asInt(k.field("maxTimeMS"), 0); ms > 0 && k.name != "getMore" {
		return time.Now().Add(time.Duration(ms) * time.Millisecond)
	}
	return time.Now().Add(k.srv.cfg.TransactionLifetime + time.Second)
}

// wait waits for a change; see Server.wait.
func (k *call) wait(until time.Time) error {
	if k.srv.wait(k.conn, until) {
		return nil
	}
	select {
	case <-k.conn.gone:
		return ErrCut
	case <-k.srv.stopping:
		return ErrCut
	default:
	}
	if time.Now().Before(until) {
		return nil
	}
	return errorf(50, "MaxTimeMSExpired", "operation exceeded time limit")
}

// unlocked waits until no transaction holds documents of c, as commands that
// change a collection as a whole do. It returns false if c is no longer what the
// name stands for.
func (k *call) unlocked(c *collection) error {
	for until := k.deadline(); len(c.locks) > 0; {
		if k.txn != nil {
			return writeConflict()
		}
		if err := k.wait(until); err != nil {
			return err
		}
	}
	return nil
}

// A writeConcernError says that what was written is not known to be durable.
type writeConcernError struct {
	doc    bson.D
	labels bson.A // nil: those that the code has
}

func (e *writeConcernError) fields(cmd *command) bson.D {
	d := bson.D{{Key: "writeConcernError", Value: e.doc}}
	labels := e.labels
	if labels == nil {
		labels = labelArray(labelsFor(cmd, int32(asInt(field(e.doc, "code"), 0)), true))
	}
	if len(labels) > 0 {
		d = append(d, bson.E{Key: "errorLabels", Value: labels})
	}
	return d
}

// concern waits for the write concern of a command that succeeded.
func (k *call) concern(reply bson.D) (bson.D, error) {
	wc := asDoc(k.field("writeConcern"))
	w, ok := get(wc, "w")
	if !ok {
		return reply, nil
	}
	if _, already := get(reply, "writeConcernError"); already {
		return reply, nil
	}
	failed := func(code int32, name, msg string) (bson.D, error) {
		e := &writeConcernError{doc: bson.D{
			{Key: "code", Value: code},
			{Key: "codeName", Value: name},
			{Key: "errmsg", Value: msg},
			{Key: "errInfo", Value: bson.D{{Key: "writeConcern", Value: wc}}},
		}}
		return append(slices.Clip(reply), e.fields(k.command)...), nil
	}
	switch tag, isTag := w.(string); {
	case isTag && tag != "majority":
		return failed(79, "UnknownReplWriteConcern", "No write concern mode named '"+tag+"' found in replica set configuration")
	case !isTag && asInt(w, 0) > 1:
		return failed(100, "UnsatisfiableWriteConcern", "Not enough data-bearing nodes")
	case !isTag:
		return reply, nil
	}
	until := time.Now().Add(24 * time.Hour)
	if ms := asInt(field(wc, "wtimeout"), 0); ms > 0 {
		until = time.Now().Add(time.Duration(ms) * time.Millisecond)
	}
	for k.st.log.held {
		if err := k.wait(until); errors.Is(err, ErrCut) {
			return nil, err
		} else if err != nil {
			return failed(codeWriteConcern, "WriteConcernFailed", "waiting for replication timed out")
		}
		if !k.srv.primary {
			return nil, errorf(codeStepDown, "", "operation was interrupted")
		}
	}
	return reply, nil
}

func ok(fields ...bson.E) bson.D { return append(slices.Clone(fields), bson.E{Key: "ok", Value: 1.0}) }

func (k *call) nothing() (bson.D, error) { return ok(), nil }

// only reports the first field of a command that is neither generic nor in
// names: it would be ignored otherwise.
func (k *call) only(names ...string) error {
	for _, e := range k.body[1:] {
		if slices.Contains(generic, e.Key) || slices.Contains(names, e.Key) {
			continue
		}
		switch e.Key {
		case "collation":
			if err := checkCollation(e.Value); err != nil {
				return err
			}
		case "let":
			if len(asDoc(e.Value)) > 0 {
				return unsupported("the option let of " + k.name)
			}
		default:
			return errorf(40415, "", "BSON field '%s.%s' is an unknown field, or one that this stand-in for MongoDB does not support.", k.name, e.Key)
		}
	}
	return nil
}

// generic are the fields that every command may have.
var generic = []string{"$db", "lsid", "$clusterTime", "writeConcern", "readConcern", "$readPreference", "txnNumber", "autocommit", "startTransaction", "apiVersion", "apiStrict", "apiDeprecationErrors", "comment", "maxTimeMS", "stmtId", "stmtIds"}

// options are the fields of a command that are not generic, without the first.
func (k *call) options() bson.D {
	return slices.DeleteFunc(slices.Clone(k.body[1:]), func(e bson.E) bool { return slices.Contains(generic, e.Key) })
}

func checkCollation(v any) error {
	d := asDoc(v)
	if locale := asString(field(d, "locale")); len(d) > 0 && locale != "simple" {
		return unsupported("the collation " + locale)
	}
	return nil
}
