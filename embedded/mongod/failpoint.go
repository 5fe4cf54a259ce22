package mongod

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The fail points that configureFailPoint can set.
const (
	failCommand         = "failCommand"
	failGetMore         = "failGetMoreAfterCursorCheckout"
	failWriteCommit     = "onPrimaryTransactionalWrite"
	failPointNotEnabled = "the stand-in knows the fail points failCommand, failGetMoreAfterCursorCheckout and onPrimaryTransactionalWrite"
)

// A failPoint makes commands fail as the configureFailPoint command says.
type failPoint struct {
	times int64 // how often; -1: always
	skip  int64 // how many commands pass first
	data  bson.D
}

func (k *call) configureFailPoint() (bson.D, error) {
	name := k.target()
	switch name {
	case failCommand, failGetMore, failWriteCommit:
	default:
		return nil, badValue("fail point %q: %s", name, failPointNotEnabled)
	}
	fp := &failPoint{times: -1, data: asDoc(k.field("data"))}
	switch mode := k.field("mode").(type) {
	case string:
		switch mode {
		case "off":
			delete(k.srv.failures, name)
			return ok(), nil
		case "alwaysOn":
		default:
			return nil, badValue("unknown mode %q of a fail point", mode)
		}
	case bson.D:
		for _, e := range mode {
			switch e.Key {
			case "times":
				fp.times = asInt(e.Value, 0)
			case "skip":
				fp.skip = asInt(e.Value, 0)
			default:
				return nil, unsupported("the mode " + e.Key + " of a fail point")
			}
		}
	default:
		return nil, badValue("a fail point needs a mode")
	}
	if fp.times == 0 {
		delete(k.srv.failures, name)
	} else {
		k.srv.failures[name] = fp
	}
	return ok(), nil
}

// A failure is what a fail point does to a command.
type failure struct {
	cut          bool
	err          *CommandError
	writeConcern *writeConcernError // reported although the command ran
}

func (f failure) failure() error {
	if f.cut {
		return ErrCut
	}
	return f.err
}

// fail says what fail point name does to a command.
func (s *Server) fail(c *conn, cmd *command, name string) failure {
	s.mu.Lock()
	data, hit := s.hit(c, cmd, name)
	s.mu.Unlock()
	if !hit {
		return failure{}
	}
	return s.effect(c, cmd, data)
}

// hit says whether a fail point strikes a command, and counts that. The mutex is
// held.
func (s *Server) hit(c *conn, cmd *command, name string) (bson.D, bool) {
	fp := s.failures[name]
	if fp == nil || cmd.name == "configureFailPoint" {
		return nil, false
	}
	if name == failCommand {
		if !slices.ContainsFunc(asArray(field(fp.data, "failCommands")), func(n any) bool { return asString(n) == cmd.name }) {
			return nil, false
		}
		if app := asString(field(fp.data, "appName")); app != "" && app != c.appName {
			return nil, false
		}
		if ns := asString(field(fp.data, "namespace")); ns != "" && ns != cmd.db+"."+cmd.target() {
			return nil, false
		}
	}
	if fp.skip > 0 {
		fp.skip--
		return nil, false
	}
	if fp.times > 0 {
		if fp.times--; fp.times == 0 {
			delete(s.failures, name)
		}
	}
	return fp.data, true
}

// effect carries out a fail point. The mutex is not held.
func (s *Server) effect(c *conn, cmd *command, data bson.D) failure {
	if truth(field(data, "blockConnection")) {
		s.pause(c, time.Duration(asInt(field(data, "blockTimeMS"), 0))*time.Millisecond)
	}
	if truth(field(data, "closeConnection")) {
		return failure{cut: true}
	}
	labels, hasLabels := get(data, "errorLabels")
	if code, ok := get(data, "errorCode"); ok {
		e := errorf(int32(asInt(code, 0)), "", "Failing command via 'failCommand' failpoint")
		switch {
		case hasLabels:
			e.Labels = []string{}
			for _, l := range asArray(labels) {
				e.Labels = append(e.Labels, asString(l))
			}
		default:
			e.Labels = labelsFor(cmd, e.Code, false)
		}
		return failure{err: e}
	}
	if wce := asDoc(field(data, "writeConcernError")); wce != nil {
		e := &writeConcernError{doc: without(wce, "errorLabels")}
		if own, ok := get(wce, "errorLabels"); ok {
			labels, hasLabels = own, true
		}
		if hasLabels {
			e.labels = append(bson.A{}, asArray(labels)...)
		}
		return failure{writeConcern: e}
	}
	return failure{}
}
