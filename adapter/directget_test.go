package adapter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/embedded"
)

const directAPI = "$JS.API.DIRECT.GET.D"

// directStream is a broker with a stream D on d.> that holds messages of the
// given subjects, whose payloads are their sequences.
func directStream(t testing.TB, subjects ...string) (*embedded.Broker, *nats.Conn, jetstream.JetStream) {
	t.Helper()
	b, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	nc, err := b.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "D", Subjects: []string{"d.>"}, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	for i, subject := range subjects {
		m := &nats.Msg{Subject: subject, Data: []byte(strconv.Itoa(i + 1))}
		if i%2 == 0 {
			m.Header = nats.Header{"ce-id": {strconv.Itoa(i + 1)}}
		}
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	return b, nc, js
}

// direct collects what a direct get returns as "sequence subject payload".
func direct(t *testing.T, nc *nats.Conn, r directRequest) (got []string, pending uint64) {
	t.Helper()
	tail, err := directGet(t.Context(), nc, directAPI, r, func(m *nats.Msg, seq uint64, stored time.Time) bool {
		got = append(got, fmt.Sprintf("%d %s %s", seq, m.Subject, m.Data))
		if age := time.Since(stored); age < 0 || age > time.Minute {
			t.Errorf("message %d was stored %v ago", seq, age)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, tail.pending
}

func TestDirectGet(t *testing.T) {
	_, nc, js := directStream(t, "d.a", "d.b", "d.a", "d.c", "d.b")
	stream, err := js.Stream(t.Context(), "D")
	if err != nil {
		t.Fatal(err)
	}
	third, err := stream.GetMsg(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	future := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		r       directRequest
		want    []string
		pending uint64
	}{
		"from a sequence":       {directRequest{Seq: 2}, []string{"2 d.b 2", "3 d.a 3", "5 d.b 5"}, 0},
		"batch":                 {directRequest{Seq: 1, Batch: 3}, []string{"1 d.a 1", "2 d.b 2", "3 d.a 3"}, 1},
		"too large a batch":     {directRequest{Seq: 5, Batch: 1 << 30}, []string{"5 d.b 5"}, 0},
		"bytes":                 {directRequest{Seq: 1, MaxBytes: 1}, []string{"1 d.a 1"}, 3},
		"subject":               {directRequest{Seq: 1, NextBySubject: "d.b"}, []string{"2 d.b 2", "5 d.b 5"}, 0},
		"wildcard":              {directRequest{NextBySubject: "d.*", Batch: 2}, []string{"1 d.a 1", "2 d.b 2"}, 2},
		"time":                  {directRequest{StartTime: &third.Time, NextBySubject: "d.>"}, []string{"3 d.a 3", "5 d.b 5"}, 0},
		"last":                  {directRequest{MultiLast: []string{"d.a", "d.b", "d.none"}}, []string{"3 d.a 3", "5 d.b 5"}, 0},
		"last as of a sequence": {directRequest{MultiLast: []string{"d.>"}, UpToSeq: 2}, []string{"1 d.a 1", "2 d.b 2"}, 0},
		"beyond the end":        {directRequest{Seq: 6}, nil, 0},
		"in the future":         {directRequest{StartTime: &future, NextBySubject: "d.>"}, nil, 0},
		"no such subject":       {directRequest{Seq: 1, NextBySubject: "d.none"}, nil, 0},
		"no last":               {directRequest{MultiLast: []string{"d.none"}}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, pending := direct(t, nc, c.r)
			if diff := cmp.Diff(c.want, got); diff != "" || pending != c.pending {
				t.Errorf("%d pending, want %d; (-want +got):\n%s", pending, c.pending, diff)
			}
		})
	}
	if n := nc.NumSubscriptions(); n > 1 { // the one of Request stays
		t.Errorf("%d subscriptions are left", n)
	}
}

func TestDirectGetScansInSteps(t *testing.T) {
	subjects := make([]string, 50)
	for i := range subjects {
		subjects[i] = "d." + strconv.Itoa(i%3)
	}
	_, nc, _ := directStream(t, subjects...)
	var seqs []uint64
	for next := uint64(1); ; {
		tail, err := directGet(t.Context(), nc, directAPI, directRequest{Seq: next, NextBySubject: "d.0", Batch: 4}, func(_ *nats.Msg, seq uint64, _ time.Time) bool {
			seqs, next = append(seqs, seq), seq+1
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		if tail.pending == 0 {
			break
		}
	}
	if len(seqs) != 17 || seqs[0] != 1 || seqs[16] != 49 {
		t.Errorf("sequences %v, want 1, 4, ... 49", seqs)
	}
}

func TestDirectGetStopsEarly(t *testing.T) {
	_, nc, _ := directStream(t, "d.a", "d.b", "d.c")
	calls := 0
	tail, err := directGet(t.Context(), nc, directAPI, directRequest{Seq: 1}, func(*nats.Msg, uint64, time.Time) bool {
		calls++
		return calls < 2
	})
	if err != nil || calls != 2 || tail.pending != 1 {
		t.Errorf("%d calls, %d pending, %v, want 2 and 1", calls, tail.pending, err)
	}
}

// A message may carry the headers of a direct get itself, for example one that
// was copied from another stream.
func TestDirectGetTrustsTheServersHeaders(t *testing.T) {
	_, nc, js := directStream(t)
	m := &nats.Msg{Subject: "d.a", Data: []byte("1"), Header: nats.Header{
		"Nats-Sequence": {"99"}, "Nats-Subject": {"other"}, "Nats-Last-Sequence": {"98"}, "Nats-Num-Pending": {"7"},
		"Nats-Time-Stamp": {"never"}, "Status": {"204"},
	}}
	if _, err := js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	got, pending := direct(t, nc, directRequest{Seq: 1})
	if diff := cmp.Diff([]string{"1 d.a 1"}, got); diff != "" || pending != 0 {
		t.Errorf("%d pending; (-want +got):\n%s", pending, diff)
	}
}

func TestDirectGetErrors(t *testing.T) {
	subjects := make([]string, maxDirect+1)
	for i := range subjects {
		subjects[i] = "d." + strconv.Itoa(i)
	}
	_, nc, _ := directStream(t, subjects...)
	never := func(*nats.Msg, uint64, time.Time) bool { t.Error("called"); return true }
	for name, c := range map[string]struct {
		r      directRequest
		status string
	}{
		"nothing asked":     {directRequest{}, "408"},
		"contradiction":     {directRequest{NextBySubject: "d.1", MultiLast: []string{"d.1"}}, "408"},
		"too many subjects": {directRequest{MultiLast: []string{"d.>"}}, "413"},
	} {
		_, err := directGet(t.Context(), nc, directAPI, c.r, never)
		if refused, ok := errors.AsType[*directError](err); !ok || refused.status != c.status {
			t.Errorf("%s: %v, want status %s", name, err, c.status)
		}
	}
	if _, err := directGet(t.Context(), nc, "$JS.API.DIRECT.GET.NONE", directRequest{Seq: 1}, never); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("no such stream: %v, want no responders", err)
	}

	// A service that never answers.
	if _, err := nc.Subscribe("silent", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, cause)
	defer cancel()
	if _, err := directGet(ctx, nc, "silent", directRequest{Seq: 1}, never); !errors.Is(err, cause) {
		t.Errorf("timeout: %v, want its cause", err)
	}
	if _, err := directGet(ctx, nc, directAPI, directRequest{Seq: 1}, never); !errors.Is(err, cause) {
		t.Errorf("context that is over: %v, want its cause", err)
	}
	nc.Close()
	if _, err := directGet(t.Context(), nc, directAPI, directRequest{Seq: 1}, never); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("closed: %v, want connection closed", err)
	}
}

// answer makes a service that answers a direct get with the given headers.
func answer(t *testing.T, nc *nats.Conn, headers ...nats.Header) {
	t.Helper()
	if _, err := nc.Subscribe("fake", func(m *nats.Msg) {
		for _, h := range headers {
			// Whoever asked may have its verdict, and be gone, before the last answer.
			if err := nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: h}); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
				t.Error(err)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

func TestDirectGetNoticesLoss(t *testing.T) {
	message := func(seq, previous string) nats.Header {
		return nats.Header{
			"Nats-Sequence": {seq}, "Nats-Last-Sequence": {previous}, "Nats-Subject": {"d.a"}, "Nats-Num-Pending": {"1"},
			"Nats-Time-Stamp": {"2026-02-03T04:05:06.7Z"},
		}
	}
	end := nats.Header{"Status": {"204"}, "Nats-Last-Sequence": {"5"}}
	for name, headers := range map[string][]nats.Header{
		"in the middle": {message("1", "0"), message("5", "3"), end},
		"at the start":  {message("5", "1"), end},
		"at the end":    {message("1", "0"), end},
		"all":           {end},
	} {
		t.Run(name, func(t *testing.T) {
			_, nc, _ := directStream(t)
			answer(t, nc, headers...)
			_, err := directGet(t.Context(), nc, "fake", directRequest{Seq: 1}, func(*nats.Msg, uint64, time.Time) bool { return true })
			if !errors.Is(err, errDirectLoss) {
				t.Errorf("%v, want errDirectLoss", err)
			}
		})
	}
	for name, h := range map[string]nats.Header{
		"a message that could not be loaded": {"Status": {"404"}, "Description": {"Message Not Found"}},
		"no status":                          nil,
	} {
		t.Run(name, func(t *testing.T) {
			_, nc, _ := directStream(t)
			answer(t, nc, h)
			_, err := directGet(t.Context(), nc, "fake", directRequest{MultiLast: []string{"d.a"}}, func(*nats.Msg, uint64, time.Time) bool { return true })
			if _, ok := errors.AsType[*directError](err); !ok {
				t.Errorf("%v, want a directError", err)
			}
		})
	}
}

func TestDirectGetNoticesABrokenConnection(t *testing.T) {
	b, nc, _ := directStream(t)
	other, err := b.Connect() // the request must reach somebody who keeps silent
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	asked := make(chan struct{})
	if _, err := other.Subscribe("silent", func(*nats.Msg) { close(asked) }); err != nil {
		t.Fatal(err)
	}
	if err := other.Flush(); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := directGet(t.Context(), nc, "silent", directRequest{Seq: 1}, func(*nats.Msg, uint64, time.Time) bool { return true })
		result <- err
	}()
	<-asked
	if err := nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, errLost) {
		t.Errorf("%v, want errLost", err)
	}
}

func BenchmarkDirectGet(b *testing.B) {
	subjects := make([]string, 1000)
	for i := range subjects {
		subjects[i] = "d." + strconv.Itoa(i)
	}
	_, nc, _ := directStream(b, subjects...)
	for _, batch := range []int{1, 1000} {
		b.Run(strconv.Itoa(batch), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				if _, err := directGet(b.Context(), nc, directAPI, directRequest{Seq: 1, Batch: batch}, func(*nats.Msg, uint64, time.Time) bool { n++; return true }); err != nil || n != batch {
					b.Fatal(n, err)
				}
			}
		})
	}
}
