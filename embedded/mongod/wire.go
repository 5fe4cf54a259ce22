package mongod

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	opReply = 1
	opQuery = 2004
	opMsg   = 2013

	headerLen = 16

	flagChecksum   = 1 << 0
	flagMoreToCome = 1 << 1

	maxMessageBytes  = 48_000_000
	maxDocumentBytes = 16 << 20
	maxWriteBatch    = 100_000
)

var errWire = errors.New("malformed message")

// A command is one request of a client.
type command struct {
	id         int32
	legacy     bool // came as OP_QUERY and is answered by OP_REPLY
	moreToCome bool // the client wants no answer
	name       string
	db         string
	body       bson.D

	lsid         bson.D
	txnNumber    int64
	hasTxnNumber bool
	inTxn        bool // carries autocommit

	ofChangeStream bool // a getMore of a change stream
}

func (c *command) get(key string) (any, bool) { return get(c.body, key) }
func (c *command) field(key string) any       { return field(c.body, key) }

// target is the value of the command's own field, the collection as a rule.
func (c *command) target() string { return asString(c.body[0].Value) }

// endsTxn says whether the command commits or aborts a transaction.
func (c *command) endsTxn() bool {
	return c.name == "commitTransaction" || c.name == "abortTransaction"
}

// readCommand reads one message. After an error the connection is of no more use.
func readCommand(r io.Reader) (*command, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	n := int64(int32(binary.LittleEndian.Uint32(h[:])))
	if n < headerLen || n > maxMessageBytes {
		return nil, fmt.Errorf("%w: length %d", errWire, n)
	}
	// The buffer grows with what arrives, not with what the header claims.
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r, n-headerLen); err != nil {
		return nil, err
	}
	return parseCommand(h, b.Bytes())
}

func parseCommand(h [headerLen]byte, body []byte) (*command, error) {
	c := &command{id: int32(binary.LittleEndian.Uint32(h[4:]))}
	var err error
	switch op := binary.LittleEndian.Uint32(h[12:]); op {
	case opMsg:
		err = c.parseMsg(body)
	case opQuery:
		c.legacy = true
		err = c.parseQuery(body)
	default:
		err = fmt.Errorf("%w: opcode %d", errWire, op)
	}
	if err != nil {
		return nil, err
	}
	if len(c.body) == 0 {
		return nil, fmt.Errorf("%w: empty command", errWire)
	}
	c.name = c.body[0].Key
	c.lsid = asDoc(c.field("lsid"))
	if v, ok := c.get("txnNumber"); ok {
		c.txnNumber, c.hasTxnNumber = asInt(v, -1), true
	}
	_, c.inTxn = c.get("autocommit")
	return c, nil
}

func (c *command) parseMsg(b []byte) error {
	if len(b) < 4 {
		return fmt.Errorf("%w: short OP_MSG", errWire)
	}
	flags := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if known := uint32(flagChecksum | flagMoreToCome); flags&0xFFFF&^known != 0 {
		return fmt.Errorf("%w: flags %#x", errWire, flags)
	}
	c.moreToCome = flags&flagMoreToCome != 0
	if flags&flagChecksum != 0 {
		if len(b) < 4 {
			return fmt.Errorf("%w: no checksum", errWire)
		}
		b = b[:len(b)-4]
	}
	var sequences bson.D
	for len(b) > 0 {
		kind := b[0]
		var err error
		switch kind {
		case 0:
			if c.body != nil {
				return fmt.Errorf("%w: two bodies", errWire)
			}
			c.body, b, err = parseDoc(b[1:])
		case 1:
			var seq bson.E
			seq, b, err = parseSequence(b[1:])
			sequences = append(sequences, seq)
		default:
			err = fmt.Errorf("%w: section of kind %d", errWire, kind)
		}
		if err != nil {
			return err
		}
	}
	if len(c.body) == 0 {
		return fmt.Errorf("%w: no body", errWire)
	}
	c.body = append(c.body, sequences...)
	c.db = asString(c.field("$db"))
	return nil
}

// parseSequence takes a section of documents off the head of b.
func parseSequence(b []byte) (seq bson.E, rest []byte, err error) {
	n, ok := length(b, 5)
	if !ok || n > len(b) {
		return seq, nil, fmt.Errorf("%w: section of %d bytes in %d", errWire, n, len(b))
	}
	section, rest := b[4:n], b[n:]
	name, section, ok := bytes.Cut(section, []byte{0})
	if !ok {
		return seq, nil, fmt.Errorf("%w: section without a name", errWire)
	}
	docs := bson.A{}
	for len(section) > 0 {
		var d bson.D
		if d, section, err = parseDoc(section); err != nil {
			return seq, nil, err
		}
		docs = append(docs, d)
	}
	return bson.E{Key: string(name), Value: docs}, rest, nil
}

// parseQuery reads the command of an OP_QUERY, in which drivers send their
// first hello.
func (c *command) parseQuery(b []byte) error {
	if len(b) < 4 {
		return fmt.Errorf("%w: short OP_QUERY", errWire)
	}
	ns, b, ok := bytes.Cut(b[4:], []byte{0})
	if !ok || len(b) < 8 {
		return fmt.Errorf("%w: short OP_QUERY", errWire)
	}
	db, _, _ := bytes.Cut(ns, []byte{'.'})
	c.db = string(db)
	var err error
	c.body, _, err = parseDoc(b[8:])
	return err
}

// writeReply answers c.
func writeReply(w io.Writer, c *command, id int32, reply bson.D) error {
	raw, err := bson.Marshal(reply)
	if err != nil {
		return fmt.Errorf("reply to %s: %w", c.name, err)
	}
	head := 21
	if c.legacy {
		head = 36
	}
	b := make([]byte, head, head+len(raw))
	if c.legacy {
		binary.LittleEndian.PutUint32(b[12:], opReply)
		binary.LittleEndian.PutUint32(b[16:], 8) // can await data
		binary.LittleEndian.PutUint32(b[32:], 1) // one document
	} else {
		binary.LittleEndian.PutUint32(b[12:], opMsg)
	}
	b = append(b, raw...)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	binary.LittleEndian.PutUint32(b[4:], uint32(id))
	binary.LittleEndian.PutUint32(b[8:], uint32(c.id))
	_, err = w.Write(b)
	return err
}
