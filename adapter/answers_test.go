package adapter

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

func TestParseAckReply(t *testing.T) {
	want := ackReply{consumer: "a__g", deliveries: 2, seq: 100, consumed: 7, storedNano: 1_700_000_000_000_000_001, pending: 9}
	const rest = "S.a__g.2.100.7.1700000000000000001.9"
	for _, subject := range []string{
		"$JS.ACK." + rest,                       // 9 tokens: no domain
		"$JS.ACK.hub.AbCdEf." + rest,            // 11: domain and account
		"$JS.ACK._.AbCdEf." + rest + ".x7yz",    // 12: something random behind
		"$JS.ACK._.AbCdEf." + rest + ".x7yz.12", // and more of it
	} {
		if got, ok := parseAckReply(subject); !ok || got != want {
			t.Errorf("%s: %+v, %t", subject, got, ok)
		}
	}
	for _, subject := range []string{
		"", "_INBOX.x", "$JS.ACK", "$JS.ACK.", "$JS.API." + rest, "$JS.ACK.x." + rest, // 10 tokens are no form
		"$JS.ACK.S.c.1.2.3.4", "$JS.ACK.S.c.x.100.7.17.9", "$JS.ACK.S.c.-1.100.7.17.9", "$JS.ACK.S.c.1..7.17.9",
		"$JS.ACK.S.c.1.99999999999999999999.7.17.9", "$JS.ACK.S.c.1.100.7.17.9a",
	} {
		if got, ok := parseAckReply(subject); ok {
			t.Errorf("%q was taken for %+v", subject, got)
		}
	}
	if n := testing.AllocsPerRun(100, func() { parseAckReply("$JS.ACK.hub.AbCdEf." + rest) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAckSubjects(t *testing.T) {
	for reply, want := range map[string]string{
		"$JS.ACK.S.c.2.100.7.17.9":                  "$JS.ACK.S.c.",
		"$JS.ACK.hub.AbCdEf.S.c.2.100.7.17.9":       "$JS.ACK.hub.AbCdEf.S.c.",
		"$JS.ACK._.AbCdEf.S.c.2.100.7.17.9.x7yz.12": "$JS.ACK._.AbCdEf.S.c.",
		"$JS.ACK.S": "$JS.ACK.S",
	} {
		if got := ackSubjects(reply); got != want {
			t.Errorf("%s: got %q, want %q", reply, got, want)
		}
	}
}

func FuzzParseAckReply(f *testing.F) {
	f.Add("$JS.ACK.S.c.1.100.7.17.9")
	f.Add("$JS.ACK.hub.AbCdEf.S.c.1.100.7.17.9.x")
	f.Add("$JS.ACK.S.c.18446744073709551615.0.0.0.0")
	f.Fuzz(func(t *testing.T, subject string) {
		a, ok := parseAckReply(subject)
		if !ok {
			if a != (ackReply{}) {
				t.Errorf("%q: refused with %+v", subject, a)
			}
			return
		}
		tokens := strings.Split(subject, ".")
		if len(tokens) < 9 || len(tokens) == 10 || a.storedNano < 0 || a.deliveries < 0 {
			t.Errorf("%q was taken for %+v", subject, a)
		}
		at := 4
		if len(tokens) > 9 {
			at = 6
		}
		for i, n := range []uint64{uint64(a.deliveries), a.seq, a.consumed, uint64(a.storedNano), a.pending} {
			if want, err := strconv.ParseUint(tokens[at+i], 10, 64); err != nil || n != want {
				t.Errorf("%q: number %d is %d: %v", subject, i, n, err)
			}
		}
	})
}

func TestParsePubAck(t *testing.T) {
	for text, want := range map[string]pubAck{
		`{"stream":"S","seq":1}`:                                           {seq: 1},
		`{"stream":"S","seq":1234567890123456789}`:                         {seq: 1234567890123456789},
		`{"stream":"S","seq":18446744073709551615}`:                        {seq: 1<<64 - 1},
		`{"stream":"S", "seq":7}`:                                          {seq: 7},
		`{"stream":"S","seq":7,"duplicate": true}`:                         {seq: 7, duplicate: true},
		`{"stream":"S","domain":"hub","seq":7}`:                            {seq: 7},
		`{"type":"io.nats.jetstream.api.v1.pub_ack","stream":"S","seq":7}`: {seq: 7},
		`{"stream":"S","seq":9,"batch":"b","count":3}`:                     {seq: 9},
		`{"stream":"a\",\"seq\":5}","seq":9}`:                              {seq: 9},
	} {
		if got, err := parsePubAck([]byte(text)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{``, `{}`, `null`, `[]`, `ok`, `{"stream":"S","seq":1`, `{"stream":"","seq":1}`, `{"stream":"S","seq":-1}`, `{"stream":"S","seq":99999999999999999999}`, `{"stream":"S","seq":01}`} {
		if got, err := parsePubAck([]byte(text)); err == nil {
			t.Errorf("%q was taken for %+v", text, got)
		}
	}
	_, err := parsePubAck([]byte(`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"S","seq":0}`))
	if api, ok := errors.AsType[*jetstream.APIError](err); !ok || api.ErrorCode != 10071 || !isWrongSequence(err) || !isUnsent(err) || isTransient(err) {
		t.Errorf("got %v", err)
	}
}

// The quick way and the JSON decoder agree.
func FuzzParsePubAck(f *testing.F) {
	for _, s := range []string{`{"stream":"S","seq":1}`, `{"stream":"S","seq":01}`, `{"stream":"S","seq":7,"duplicate":true}`, `{"error":{"code":503}}`, `{"stream":"a\"","seq":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := parsePubAck(text)
		var want struct {
			Stream    string
			Seq       uint64
			Duplicate bool
			Error     *jetstream.APIError
		}
		if jsonErr := json.Unmarshal(text, &want); err == nil && jsonErr == nil && (got.seq != want.Seq || got.duplicate != want.Duplicate || want.Error != nil) {
			t.Errorf("%s: got %+v, want %+v", text, got, want)
		}
	})
}

func TestSubjectsOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "a.c", false},
		{"a.*", "a.b", true},
		{"a.*", "a.b.c", false},
		{"a.>", "a.b.c", true},
		{"a.>", "a", false},
		{">", "a", true},
		{"*.b", "a.*", true},
		{"*.b", "a.c", false},
		{"a.b.c", "a.>", true},
		{"a", "a.b", false},
	} {
		if got := subjectsOverlap(c.a, c.b); got != c.want {
			t.Errorf("%s and %s: %t", c.a, c.b, got)
		}
		if got := subjectsOverlap(c.b, c.a); got != c.want {
			t.Errorf("%s and %s: %t", c.b, c.a, got)
		}
	}
}
