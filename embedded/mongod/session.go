package mongod

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxSessions bounds the sessions that are known at a time. Above it, those that
// were idle longest make room.
const maxSessions = 100_000

// A session is a logical session of a client. It remembers the results of the
// latest retryable write, so that a write that is sent again is not done again.
type session struct {
	lsid      bson.D
	txnNumber int64
	txn       *txn
	done      []outcome // of the statements of write txnNumber, by index
	reply     bson.D    // of a findAndModify
	used      time.Time
	busy      int // commands that run in it
}

// An outcome is what one statement of a write command did.
type outcome struct {
	done        bool
	n, modified int32
	upserted    bool
	id          any // of an upserted document
}

// inSession runs a handler within the session and transaction of the command.
func (k *call) inSession(h func(*call) (bson.D, error)) (bson.D, error) {
	if err := k.checkReadConcern(); err != nil {
		return nil, err
	}
	sess, err := k.srv.session(k.lsid)
	if err != nil {
		return nil, err
	}
	if sess == nil {
		if k.hasTxnNumber {
			return nil, errorf(codeInvalidOptions, "InvalidOptions", "Transaction number requires a session ID to also be specified")
		}
		return h(k)
	}
	sess.busy++
	defer func() {
		sess.busy--
		sess.used = time.Now()
	}()
	if !k.hasTxnNumber {
		return h(k)
	}
	if k.srv.cfg.Standalone {
		return nil, errorf(codeIllegalOperation, "IllegalOperation", "Transaction numbers are only allowed on a replica set member or mongos")
	}
	if err := k.advance(sess); err != nil {
		return nil, err
	}
	if !k.inTxn {
		k.retry = sess
		return h(k)
	}
	return k.inTransaction(sess, h)
}

func (k *call) checkReadConcern() error {
	level := asString(field(asDoc(k.field("readConcern")), "level"))
	switch level {
	case "", "local", "available", "majority", "linearizable":
		return nil
	case "snapshot":
		if k.inTxn {
			return nil
		}
		return unsupported("read concern snapshot outside a transaction")
	}
	return badValue("readConcern.level must be either 'local', 'majority', 'linearizable', 'available', or 'snapshot', not '%s'", level)
}

// session is the session of an lsid, made if it is new; nil for no lsid.
func (s *Server) session(lsid bson.D) (*session, error) {
	if lsid == nil {
		return nil, nil
	}
	key := keyOf(field(lsid, "id"))
	sess := s.sessions[key]
	if sess == nil {
		if len(s.sessions) >= maxSessions {
			s.dropSessions(s.cfg.SessionTimeout / 2)
		}
		if len(s.sessions) >= maxSessions {
			return nil, errorf(261, "TooManyLogicalSessions", "cannot add session into the cache: at most %d", maxSessions)
		}
		sess = &session{lsid: lsid, txnNumber: -1, used: time.Now()}
		s.sessions[key] = sess
	}
	return sess, nil
}

// dropSessions forgets the sessions that were idle for at least d.
func (s *Server) dropSessions(d time.Duration) {
	for key, sess := range s.sessions {
		if sess.busy == 0 && time.Since(sess.used) >= d {
			s.endSession(key)
		}
	}
}

func (s *Server) endSession(key string) {
	if sess := s.sessions[key]; sess != nil {
		s.abort(sess)
		delete(s.sessions, key)
	}
}

// abort ends the open transaction of a session, if there is one.
func (s *Server) abort(sess *session) {
	if sess.txn != nil && sess.txn.state == txnOpen {
		s.st.finish(sess.txn, txnAborted)
	}
}

// advance moves a session to the transaction number of the command.
func (k *call) advance(sess *session) error {
	switch {
	case k.txnNumber < sess.txnNumber:
		return errorf(225, "TransactionTooOld", "Cannot start transaction %d on a session that has already started transaction %d", k.txnNumber, sess.txnNumber)
	case k.txnNumber > sess.txnNumber:
		k.srv.abort(sess)
		sess.txnNumber, sess.txn, sess.done, sess.reply = k.txnNumber, nil, nil, nil
	}
	return nil
}

// inTransaction runs a handler as part of a transaction. An error ends the
// transaction.
func (k *call) inTransaction(sess *session, h func(*call) (bson.D, error)) (bson.D, error) {
	if !slices.Contains(inTransaction, k.name) {
		return nil, errorf(263, "OperationNotSupportedInTransaction", "Cannot run '%s' in a multi-document transaction.", k.name)
	}
	if k.endsTxn() {
		k.retry = sess
		return h(k)
	}
	if truth(k.field("startTransaction")) {
		if sess.txn != nil {
			k.srv.abort(sess)
			return nil, errorf(117, "ConflictingOperationInProgress", "Given transaction number %d has already been started", k.txnNumber)
		}
		sess.txn = k.st.begin(sess, k.txnNumber)
	}
	if sess.txn == nil || sess.txn.state != txnOpen {
		return nil, noSuchTransaction("Given transaction number does not match any in-progress transactions.")
	}
	k.txn = sess.txn
	reply, err := h(k)
	if err == nil {
		err = conflictIn(reply)
	}
	_, writeErrors := get(reply, "writeErrors")
	if (err != nil || writeErrors) && k.txn.state == txnOpen {
		k.st.finish(k.txn, txnAborted)
	}
	return reply, err
}

// conflictIn is the write conflict among the write errors of a reply: it fails
// the command as a whole, so that it can carry its label.
func conflictIn(reply bson.D) error {
	for _, e := range asArray(field(reply, "writeErrors")) {
		if asInt(field(asDoc(e), "code"), 0) == codeWriteConflict {
			return writeConflict()
		}
	}
	return nil
}

func (k *call) commitTransaction() (bson.D, error) {
	t, err := k.ending()
	if err != nil {
		return nil, err
	}
	switch t.state {
	case txnAborted:
		return nil, noSuchTransaction("Transaction with number has been aborted.")
	case txnOpen:
		if err := k.st.commit(t); err != nil {
			return nil, err
		}
	case txnCommitted: // sent again
	}
	return ok(), nil
}

func (k *call) abortTransaction() (bson.D, error) {
	t, err := k.ending()
	if err != nil {
		return nil, err
	}
	switch t.state {
	case txnCommitted:
		return nil, errorf(256, "TransactionCommitted", "Transaction has been committed")
	case txnAborted:
		return nil, noSuchTransaction("Transaction has been aborted")
	case txnOpen:
		k.st.finish(t, txnAborted)
	}
	return ok(), nil
}

// ending is the transaction that the command wants to end.
func (k *call) ending() (*txn, error) {
	if k.retry == nil || k.retry.txn == nil {
		return nil, noSuchTransaction("Given transaction number does not match any in-progress transactions.")
	}
	return k.retry.txn, nil
}

func (k *call) endSessions() (bson.D, error) {
	for _, id := range asArray(k.body[0].Value) {
		key := keyOf(field(asDoc(id), "id"))
		if sess := k.srv.sessions[key]; sess != nil && sess.busy == 0 {
			k.srv.endSession(key)
		}
	}
	return ok(), nil
}

func (k *call) killAllSessions() (bson.D, error) {
	for _, sess := range k.srv.sessions {
		k.srv.abort(sess)
	}
	return ok(), nil
}

// earlier is the outcome of a statement that was already done, when the command
// is a write that is sent again.
func (k *call) earlier(i int) (outcome, bool) {
	if k.retry == nil || k.retry.txnNumber != k.txnNumber || i >= len(k.retry.done) {
		return outcome{}, false
	}
	return k.retry.done[i], k.retry.done[i].done
}

// remember keeps the outcome of a statement for when it is sent again.
func (k *call) remember(i int, o outcome) {
	if k.retry == nil || k.retry.txnNumber != k.txnNumber {
		return
	}
	for len(k.retry.done) <= i {
		k.retry.done = append(k.retry.done, outcome{})
	}
	o.done = true
	k.retry.done[i] = o
}
