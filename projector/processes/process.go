package processes

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
)

// Names used where the options leave them open.
const (
	DefaultHeartbeats = "heartbeat.received" // topic of Heartbeat events
	DefaultStates     = "process.state"      // topic of Process events
	DefaultGroup      = "process-projector"  // the projector's group on the heartbeats
)

// HeartbeatTopic publishes and receives heartbeats under their default name,
// keyed by process.
var HeartbeatTopic = jetbus.Topic[Heartbeat]{Name: DefaultHeartbeats, Key: Heartbeat.ProcessID}

// StateTopic publishes and receives process states under their default name,
// keyed by process.
var StateTopic = jetbus.Topic[Process]{Name: DefaultStates, Key: func(p Process) string { return p.ProcessID }}

// Heartbeat is a process saying that it lives. When it said so is the Time of
// the event.
type Heartbeat struct {
	PID    int     `json:"pid"`
	Name   string  `json:"name"`
	Host   string  `json:"host"`
	CPUPct float64 `json:"cpu_pct"`       // percent of one core
	MemMB  float64 `json:"mem_mb"`        // resident memory in MiB
	SID    string  `json:"sid,omitempty"` // boot or session id of the process
}

// ProcessID is the id of the process that beat; see [ID].
func (h Heartbeat) ProcessID() string { return ID(h.Host, h.Name, h.PID) }

// Status says whether a process beats.
type Status string

// The two states of a process.
const (
	Alive Status = "alive" // it beat within StaleAfter
	Stale Status = "stale" // it did not
)

// Process is what is known of a process: the content of its last heartbeat and
// whether there should have been another since. Its JSON has the names that clients of process
// states had before JetBus, processId beside cpu_pct: states are stored under them in topics
// and in collections, and to rename one would make each stored state unreadable for its readers.
type Process struct {
	ProcessID string  `json:"processId"`
	Name      string  `json:"name"`
	Host      string  `json:"host"`
	PID       int     `json:"pid"`
	SID       string  `json:"sid,omitempty"`
	CPUPct    float64 `json:"cpu_pct"`
	MemMB     float64 `json:"mem_mb"`
	LastSeen  int64   `json:"last_seen_ts"` // Time of the last heartbeat, epoch milliseconds
	Status    Status  `json:"status"`
}

// digestLen is the length of the digest that stands for the rest of a long name.
const digestLen = 32

// ID returns the id of a process, "host:name:pid", which is the key of
// its events. It is always a valid key, and two processes never share one: a
// percent sign or colon in host or name, a control character and a byte that is no
// UTF-8 stand there percent-encoded ("%3A" for a colon); and where the whole
// would exceed the length of a key, host and name are cut and followed by "%."
// and a digest of the two.
func ID(host, name string, pid int) string {
	tail := ":" + strconv.Itoa(pid)
	id := escape(host) + ":" + escape(name)
	if len(id)+len(tail) <= jetbus.MaxKeyBytes {
		return id + tail
	}
	digest := sha256.Sum256([]byte(id))
	cut := id[:jetbus.MaxKeyBytes-len(tail)-len("%.")-digestLen]
	for !utf8.ValidString(cut) { // do not end inside a character
		cut = cut[:len(cut)-1]
	}
	return cut + "%." + hex.EncodeToString(digest[:])[:digestLen] + tail
}

// escape percent-encodes what may not stand in a part of a process id.
func escape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == '%' || r == ':' || unicode.IsControl(r) || r == utf8.RuneError && size == 1 {
			for _, c := range []byte(s[i : i+size]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		} else {
			b.WriteString(s[i : i+size])
		}
		i += size
	}
	return b.String()
}

// decodeHeartbeat reads a heartbeat and refuses one that names no process.
func decodeHeartbeat(payload []byte) (Heartbeat, error) {
	var h Heartbeat
	if err := json.Unmarshal(payload, &h); err != nil {
		return h, err
	}
	switch {
	case h.Host == "" || h.Name == "":
		return h, errors.New("host and name must not be empty")
	case h.PID < 0:
		return h, fmt.Errorf("pid %d is negative", h.PID)
	}
	return h, nil
}
