package faults

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// frame is one thing that a NATS client says: a line, and behind PUB and HPUB a message.
type frame struct {
	raw     []byte // all of it, as it is forwarded
	subject string // of a message, else empty
	body    string // of a message, headers included
}

// readFrame reads what a client says next.
func readFrame(r *bufio.Reader) (frame, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return frame{}, err
	}
	f := frame{raw: line}
	fields := strings.Fields(string(line))
	if len(fields) < 3 || fields[0] != "PUB" && fields[0] != "HPUB" {
		return f, nil
	}
	size, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil || size < 0 {
		return frame{}, fmt.Errorf("read a message's size in %q: %w", line, err)
	}
	f.raw = append(f.raw, make([]byte, size+len("\r\n"))...)
	if _, err := io.ReadFull(r, f.raw[len(line):]); err != nil {
		return frame{}, err
	}
	f.subject, f.body = fields[1], string(f.raw[len(line):len(line)+size])
	return f, nil
}
