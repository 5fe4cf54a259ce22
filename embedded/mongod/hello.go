package mongod

import (
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// standIn is what buildInfo says about itself.
const standIn = "this is jetbus/embedded/mongod, an in-process stand-in for tests and development; it is no database"

func (k *call) hello() (bson.D, error) {
	s := k.srv
	addr := s.Addr()
	flag := "isWritablePrimary"
	if k.name != "hello" {
		flag = "ismaster"
	}
	now := bson.NewDateTimeFromTime(time.Now())
	d := bson.D{{Key: "helloOk", Value: true}, {Key: flag, Value: s.primary}}
	if !s.cfg.Standalone {
		op := bson.D{{Key: "ts", Value: s.st.clock}, {Key: "t", Value: int64(s.term)}}
		d = append(d, bson.D{
			{Key: "secondary", Value: !s.primary},
			{Key: "setName", Value: s.cfg.ReplicaSet},
			{Key: "setVersion", Value: int32(1)},
			{Key: "hosts", Value: bson.A{addr}},
			{Key: "me", Value: addr},
			{Key: "lastWrite", Value: bson.D{
				{Key: "opTime", Value: op},
				{Key: "lastWriteDate", Value: now},
				{Key: "majorityOpTime", Value: op},
				{Key: "majorityWriteDate", Value: now},
			}},
		}...)
		if s.primary {
			var election bson.ObjectID
			election[10], election[11] = byte(s.term>>8), byte(s.term)
			d = append(d, bson.E{Key: "primary", Value: addr}, bson.E{Key: "electionId", Value: election})
		}
	}
	if user := asString(k.field("saslSupportedMechs")); user != "" && s.cfg.Username != "" {
		d = append(d, bson.E{Key: "saslSupportedMechs", Value: bson.A{mechanism}})
	}
	return append(d, bson.D{
		{Key: "maxBsonObjectSize", Value: int32(maxDocumentBytes)},
		{Key: "maxMessageSizeBytes", Value: int32(maxMessageBytes)},
		{Key: "maxWriteBatchSize", Value: int32(maxWriteBatch)},
		{Key: "localTime", Value: now},
		{Key: "logicalSessionTimeoutMinutes", Value: int32(max(1, s.cfg.SessionTimeout/time.Minute))},
		{Key: "connectionId", Value: k.conn.id},
		{Key: "minWireVersion", Value: int32(0)},
		{Key: "maxWireVersion", Value: wireVersions[major(s.cfg.Version)]},
		{Key: "readOnly", Value: false},
		{Key: "ok", Value: 1.0},
	}...), nil
}

func (k *call) buildInfo() (bson.D, error) {
	version := bson.A{}
	for p := range strings.SplitSeq(k.srv.cfg.Version, ".") {
		var n int32
		for _, c := range p {
			n = n*10 + (c - '0')
		}
		version = append(version, n)
	}
	return ok(
		bson.E{Key: "version", Value: k.srv.cfg.Version},
		bson.E{Key: "versionArray", Value: append(version, int32(0))},
		bson.E{Key: "standIn", Value: standIn},
		bson.E{Key: "modules", Value: bson.A{"jetbus-stand-in"}},
		bson.E{Key: "storageEngines", Value: bson.A{"memory"}},
		bson.E{Key: "bits", Value: int32(64)},
		bson.E{Key: "debug", Value: false},
		bson.E{Key: "maxBsonObjectSize", Value: int32(maxDocumentBytes)},
	), nil
}

func (k *call) serverStatus() (bson.D, error) {
	s := k.srv
	return ok(
		bson.E{Key: "host", Value: s.Addr()},
		bson.E{Key: "version", Value: s.cfg.Version},
		bson.E{Key: "process", Value: "mongod"},
		bson.E{Key: "standIn", Value: standIn},
		bson.E{Key: "localTime", Value: bson.NewDateTimeFromTime(time.Now())},
		bson.E{Key: "connections", Value: bson.D{
			{Key: "current", Value: int32(len(s.conns))}, {Key: "available", Value: int32(s.cfg.MaxConnections - len(s.conns))},
		}},
		bson.E{Key: "storageEngine", Value: bson.D{{Key: "name", Value: "memory"}}},
		bson.E{Key: "logicalSessionRecordCache", Value: bson.D{{Key: "activeSessionsCount", Value: int32(len(s.sessions))}}},
		bson.E{Key: "metrics", Value: bson.D{{Key: "cursor", Value: bson.D{{Key: "open", Value: bson.D{{Key: "total", Value: int64(len(s.cursors))}}}}}}},
		bson.E{Key: "transactions", Value: bson.D{{Key: "currentOpen", Value: int64(len(s.st.open))}}},
	), nil
}

func (k *call) getParameter() (bson.D, error) {
	fcv := bson.D{{Key: "version", Value: major(k.srv.cfg.Version)}}
	return ok(
		bson.E{Key: "enableTestCommands", Value: true},
		bson.E{Key: "requireApiVersion", Value: false},
		bson.E{Key: "featureCompatibilityVersion", Value: fcv},
		bson.E{Key: "authenticationMechanisms", Value: bson.A{mechanism}},
	), nil
}

// setParameter takes what the driver's suites set, which is about members that
// the set does not have.
func (k *call) setParameter() (bson.D, error) { return ok(bson.E{Key: "was", Value: nil}), nil }

func (k *call) connectionStatus() (bson.D, error) {
	users := bson.A{}
	if k.conn.auth.done {
		users = append(users, bson.D{{Key: "user", Value: k.srv.cfg.Username}, {Key: "db", Value: "admin"}})
	}
	return ok(bson.E{Key: "authInfo", Value: bson.D{
		{Key: "authenticatedUsers", Value: users}, {Key: "authenticatedUserRoles", Value: bson.A{}},
	}}), nil
}

func (k *call) replSetGetStatus() (bson.D, error) {
	s := k.srv
	if s.cfg.Standalone {
		return nil, errorf(76, "NoReplicationEnabled", "not running with --replSet")
	}
	state, name := int32(1), "PRIMARY"
	if !s.primary {
		state, name = 2, "SECONDARY"
	}
	return ok(
		bson.E{Key: "set", Value: s.cfg.ReplicaSet},
		bson.E{Key: "myState", Value: state},
		bson.E{Key: "term", Value: int64(s.term)},
		bson.E{Key: "members", Value: bson.A{bson.D{
			{Key: "_id", Value: int32(0)},
			{Key: "name", Value: s.Addr()},
			{Key: "health", Value: 1.0},
			{Key: "state", Value: state},
			{Key: "stateStr", Value: name},
			{Key: "self", Value: true},
		}}},
	), nil
}

// replSetStepDown makes the member a secondary for as many seconds as it says:
// nobody else can become the primary then.
func (k *call) replSetStepDown() (bson.D, error) {
	d := time.Duration(asInt(k.body[0].Value, 60)) * time.Second
	s := k.srv
	s.stepDown()
	s.run(func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			s.StepUp()
		case <-s.stopping:
		}
	})
	return ok(), nil
}

func (k *call) replSetInitiate() (bson.D, error) {
	return nil, errorf(23, "AlreadyInitialized", "already initialized")
}
