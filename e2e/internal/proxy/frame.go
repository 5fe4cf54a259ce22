package proxy

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxBody is more than a server lets a client say at once.
const maxBody = 64 << 20

// Frame is one thing that a NATS client says: a line, and behind PUB and HPUB a message.
type Frame struct {
	Raw     []byte // all of it, as it is forwarded
	Subject string // of a message, else empty
	Body    string // of a message, headers included
}

// readFrame reads what a client says next.
func readFrame(r *bufio.Reader) (Frame, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return Frame{}, err
	}
	f := Frame{Raw: line}
	fields := strings.Fields(string(line))
	if len(fields) < 3 || fields[0] != "PUB" && fields[0] != "HPUB" {
		return f, nil
	}
	size, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil || size < 0 || size > maxBody {
		return Frame{}, fmt.Errorf("%q says no size of a message", line)
	}
	f.Raw = append(f.Raw, make([]byte, size+len("\r\n"))...)
	if _, err := io.ReadFull(r, f.Raw[len(line):]); err != nil {
		return Frame{}, err
	}
	f.Subject, f.Body = fields[1], string(f.Raw[len(line):len(line)+size])
	return f, nil
}
