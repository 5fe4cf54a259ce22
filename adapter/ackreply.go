package adapter

import "strings"

// ackReply is what the reply subject of a delivered message says:
// $JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<stored, ns>.<pending>,
// with a domain and an account hash behind ACK on newer servers and in leaf nodes.
type ackReply struct {
	consumer   string
	deliveries int
	seq        uint64
	consumed   uint64 // the durable's own count, without gaps
	storedNano int64
	pending    uint64
}

// parseAckReply splits the reply subject without allocating.
func parseAckReply(subject string) (a ackReply, ok bool) {
	rest, ok := strings.CutPrefix(subject, "$JS.ACK.")
	if !ok {
		return a, false
	}
	var tokens [11]string
	n := 0
	for ; n < len(tokens); n++ {
		var more bool
		if tokens[n], rest, more = strings.Cut(rest, "."); !more {
			n++
			break
		}
	}
	at := 0
	switch {
	case n == 7:
	case n >= 9: // domain and account hash first; something random may follow
		at = 2
	default:
		return a, false
	}
	numbers := [5]uint64{}
	for i := range numbers {
		if numbers[i], ok = parseDecimal(tokens[at+2+i]); !ok {
			return a, false
		}
	}
	a.consumer, a.deliveries, a.seq = tokens[at+1], int(numbers[0]), numbers[1]
	a.consumed, a.storedNano, a.pending = numbers[2], int64(numbers[3]), numbers[4]
	return a, true
}

// ackSubjects returns the beginning, with a dot at its end, of all subjects at which the
// deliveries of a durable are settled, from that of one.
func ackSubjects(reply string) string {
	tokens := 4 // $JS.ACK.<stream>.<consumer>
	if strings.Count(reply, ".") > 8 {
		tokens = 6 // with domain and account hash
	}
	end := 0
	for range tokens {
		i := strings.IndexByte(reply[end:], '.')
		if i < 0 {
			return reply
		}
		end += i + 1
	}
	return reply[:end]
}

func parseDecimal(s string) (n uint64, ok bool) {
	if s == "" || len(s) > 19 {
		return 0, false
	}
	for i := range len(s) {
		c := s[i] - '0'
		if c > 9 {
			return 0, false
		}
		n = n*10 + uint64(c)
	}
	return n, true
}
