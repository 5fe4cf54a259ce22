package mongod

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Run sends one command to the primary of the server at uri and returns its
// reply. Command and reply are extended JSON. It is for what has to be done
// without a driver, such as to initiate a replica set; it knows neither TLS nor
// mongodb+srv, and SCRAM-SHA-256 only.
//
// An error of the server is a [*CommandError]. Without a deadline in ctx, Run
// gives up after ten seconds.
func Run(ctx context.Context, uri, db, command string) (string, error) {
	var body bson.D
	if err := bson.UnmarshalExtJSON([]byte(command), false, &body); err != nil {
		return "", fmt.Errorf("mongod: run %s: %w", command, err)
	}
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "mongodb" || u.Query().Get("tls") == "true" || u.Query().Get("ssl") == "true" {
		return "", errors.New("mongod: run: want a URI mongodb://... without TLS")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for host := range strings.SplitSeq(u.Host, ",") {
		var reply bson.D
		if reply, err = runAt(ctx, host, u, db, body); err == nil {
			var raw []byte
			if raw, err = bson.MarshalExtJSON(reply, false, false); err == nil {
				return string(raw), nil
			}
		}
	}
	return "", fmt.Errorf("mongod: run %s: %w", command, err)
}

// runAt runs a command at a host, or at the primary that the host names.
func runAt(ctx context.Context, host string, u *url.URL, db string, body bson.D) (bson.D, error) {
	for range 2 {
		c, err := dial(ctx, host)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		hello, err := c.run("admin", bson.D{{Key: "hello", Value: int32(1)}})
		if err != nil {
			return nil, err
		}
		if primary := asString(field(hello, "primary")); primary != "" && primary != asString(field(hello, "me")) {
			host = primary
			continue
		}
		if u.User != nil {
			if err := c.authenticate(u); err != nil {
				return nil, err
			}
		}
		return c.run(db, body)
	}
	return nil, fmt.Errorf("%s is not the primary", host)
}

// A caller is a connection to a server, one command at a time.
type caller struct {
	net.Conn
	in *bufio.Reader
}

func dial(ctx context.Context, host string) (*caller, error) {
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(host, "27017")
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := nc.SetDeadline(deadline); err != nil {
			nc.Close()
			return nil, err
		}
	}
	return &caller{nc, bufio.NewReader(nc)}, nil
}

func (c *caller) run(db string, body bson.D) (bson.D, error) {
	raw, err := bson.Marshal(append(slices.Clip(body), bson.E{Key: "$db", Value: db}))
	if err != nil {
		return nil, err
	}
	b := make([]byte, headerLen+5, headerLen+5+len(raw))
	binary.LittleEndian.PutUint32(b[12:], opMsg)
	b = append(b, raw...)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	if _, err := c.Write(b); err != nil {
		return nil, err
	}
	var h [headerLen]byte
	if _, err := io.ReadFull(c.in, h[:]); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(h[:]))
	if n < headerLen+5 || n > maxMessageBytes {
		return nil, fmt.Errorf("%w: length %d", errWire, n)
	}
	answer := make([]byte, n-headerLen)
	if _, err := io.ReadFull(c.in, answer); err != nil {
		return nil, err
	}
	reply, _, err := parseDoc(answer[5:])
	if err != nil {
		return nil, err
	}
	if !truth(field(reply, "ok")) {
		return nil, errorf(int32(asInt(field(reply, "code"), 8)), asString(field(reply, "codeName")), "%s", asString(field(reply, "errmsg")))
	}
	return reply, nil
}

// authenticate presents the credentials of a URI.
func (c *caller) authenticate(u *url.URL) error {
	source := u.Query().Get("authSource")
	if source == "" {
		source = strings.Trim(u.Path, "/")
	}
	if source == "" {
		source = "admin"
	}
	password, _ := u.User.Password()
	x, first := newProof(u.User.Username())
	reply, err := c.run(source, bson.D{
		{Key: "saslStart", Value: int32(1)}, {Key: "mechanism", Value: mechanism}, {Key: "payload", Value: bson.Binary{Data: []byte(first)}},
	})
	if err != nil {
		return err
	}
	challenge, _ := field(reply, "payload").(bson.Binary)
	final, server, err := x.prove(string(challenge.Data), password)
	if err != nil {
		return err
	}
	next := func(payload string) (bson.D, error) {
		return c.run(source, bson.D{
			{Key: "saslContinue", Value: int32(1)},
			{Key: "conversationId", Value: field(reply, "conversationId")},
			{Key: "payload", Value: bson.Binary{Data: []byte(payload)}},
		})
	}
	answer, err := next(final)
	if err != nil {
		return err
	}
	if p, _ := field(answer, "payload").(bson.Binary); string(p.Data) != "v="+base64.StdEncoding.EncodeToString(server) {
		return errors.New("the server does not know the password")
	}
	if !truth(field(answer, "done")) {
		_, err = next("")
	}
	return err
}
