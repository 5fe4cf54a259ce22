package mongod

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	mechanism       = "SCRAM-SHA-256"
	scramIterations = 4096
)

// An exchange is the authentication of one connection. Its conversation takes
// two messages of each side, and a third, empty one of clients that ask for it.
type exchange struct {
	step  int
	bare  string // the client's first message
	first string // the server's first message
	nonce string
	salt  []byte
	done  bool
}

func authFailed() error {
	return errorf(codeAuthFailed, "AuthenticationFailed", "Authentication failed.")
}

func (k *call) saslStart() (bson.D, error) {
	if k.srv.cfg.Username == "" {
		return nil, authFailed()
	}
	if m := asString(k.field("mechanism")); m != mechanism {
		return nil, errorf(334, "MechanismUnavailable", "Unsupported mechanism: %s", m)
	}
	x := &k.conn.auth
	*x = exchange{step: 1}
	payload, _ := k.field("payload").(bson.Binary)
	reply, err := x.begin(string(payload.Data), k.srv.cfg.Username)
	if err != nil {
		return nil, authFailed()
	}
	return saslReply(reply, false), nil
}

func (k *call) saslContinue() (bson.D, error) {
	x := &k.conn.auth
	payload, _ := k.field("payload").(bson.Binary)
	switch {
	case x.step == 1:
		reply, err := x.finish(string(payload.Data), k.srv.cfg.Password)
		if err != nil {
			*x = exchange{}
			return nil, authFailed()
		}
		x.step, x.done = 2, true
		return saslReply(reply, true), nil
	case x.step == 2 && len(payload.Data) == 0:
		return saslReply("", true), nil
	}
	*x = exchange{}
	return nil, authFailed()
}

func saslReply(payload string, done bool) bson.D {
	return ok(
		bson.E{Key: "conversationId", Value: int32(1)},
		bson.E{Key: "done", Value: done},
		bson.E{Key: "payload", Value: bson.Binary{Data: []byte(payload)}},
	)
}

var errScram = errors.New("malformed or wrong SCRAM message")

// begin answers the client's first message, "n,,n=user,r=nonce".
func (x *exchange) begin(msg, user string) (string, error) {
	bare, ok := strings.CutPrefix(msg, "n,,")
	if !ok {
		return "", errScram
	}
	attrs := scramAttributes(bare)
	name := strings.ReplaceAll(strings.ReplaceAll(attrs["n"], "=2C", ","), "=3D", "=")
	if name != user || attrs["r"] == "" {
		return "", errScram
	}
	x.bare = bare
	x.nonce = attrs["r"] + rand.Text()
	x.salt = make([]byte, 28)
	_, _ = rand.Read(x.salt) // never fails
	x.first = fmt.Sprintf("r=%s,s=%s,i=%d", x.nonce, base64.StdEncoding.EncodeToString(x.salt), scramIterations)
	return x.first, nil
}

// finish checks the client's proof, "c=biws,r=nonce,p=proof", and answers with
// the server's.
func (x *exchange) finish(msg, password string) (string, error) {
	attrs := scramAttributes(msg)
	proof, err := base64.StdEncoding.DecodeString(attrs["p"])
	if err != nil || attrs["r"] != x.nonce || attrs["c"] != "biws" {
		return "", errScram
	}
	without, _, _ := strings.Cut(msg, ",p=")
	client, server, err := proofs(password, x.salt, scramIterations, x.bare+","+x.first+","+without)
	if err != nil {
		return "", err
	}
	if !hmac.Equal(proof, client) {
		return "", errScram
	}
	return "v=" + base64.StdEncoding.EncodeToString(server), nil
}

// proofs are what client and server send to show that they know the password.
func proofs(password string, salt []byte, iterations int, messages string) (client, server []byte, err error) {
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return nil, nil, err
	}
	client = mac(salted, "Client Key")
	stored := sha256.Sum256(client)
	for i, b := range mac(stored[:], messages) {
		client[i] ^= b
	}
	return client, mac(mac(salted, "Server Key"), messages), nil
}

// newProof begins an exchange as a client and returns its first message.
func newProof(user string) (x *exchange, first string) {
	name := strings.ReplaceAll(strings.ReplaceAll(user, "=", "=3D"), ",", "=2C")
	x = &exchange{nonce: rand.Text()}
	x.bare = "n=" + name + ",r=" + x.nonce
	return x, "n,," + x.bare
}

// prove answers the server's first message as a client. Server is what the
// server has to prove.
func (x *exchange) prove(challenge, password string) (final string, server []byte, err error) {
	attrs := scramAttributes(challenge)
	salt, err := base64.StdEncoding.DecodeString(attrs["s"])
	iterations, atoiErr := strconv.Atoi(attrs["i"])
	if err != nil || atoiErr != nil || iterations < 1 || iterations > 1_000_000 || !strings.HasPrefix(attrs["r"], x.nonce) {
		return "", nil, errScram
	}
	final = "c=biws,r=" + attrs["r"]
	client, server, err := proofs(password, salt, iterations, x.bare+","+challenge+","+final)
	return final + ",p=" + base64.StdEncoding.EncodeToString(client), server, err
}

func mac(key []byte, msg string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(msg))
	return h.Sum(nil)
}

func scramAttributes(msg string) map[string]string {
	m := map[string]string{}
	for part := range strings.SplitSeq(msg, ",") {
		if name, value, ok := strings.Cut(part, "="); ok {
			m[name] = value
		}
	}
	return m
}
