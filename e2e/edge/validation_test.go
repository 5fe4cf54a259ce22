package edge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// dear are schemas and payloads that made a validation take seconds or gigabytes.
func dear() map[string][2]string {
	fill := func(element string, bytes int) string {
		return "[" + strings.Repeat(element+",", bytes/(len(element)+1)-1) + element + "]"
	}
	required := func(n int) string {
		names := make([]string, n)
		for i := range names {
			names[i] = `"n` + strconv.Itoa(i) + `"`
		}
		return `{"type":"array","items":{"type":"object","required":[` + strings.Join(names, ",") + `]}}`
	}
	branch := func(i int) string {
		return `{"type":"object","properties":{"kind":{"const":"k` + strconv.Itoa(i) + `"},"n":{"type":"integer"}},"required":["kind","n"]}`
	}
	const size = 1_000_000
	return map[string][2]string{
		"required20":   {required(20), fill("{}", size)},
		"required2000": {required(2000), fill("{}", size)},
		"dependent":    {strings.Replace(strings.Replace(required(2000), `"required":[`, `"dependentRequired":{"a":[`, 1), `]}}`, `]}}}`, 1), fill(`{"a":0}`, size)},
		"anyof":        {`{"items":{"anyOf":[` + branch(0) + "," + branch(1) + "," + branch(2) + "," + branch(3) + `]}}`, fill(`{"kind":"k9","n":"x"}`, 200_000)},
		"recursive":    {`{"oneOf":[{"type":"null"},{"items":{"$ref":"#"}},{"items":{"$ref":"#"},"minItems":1}]}`, strings.Repeat("[", 44) + strings.Repeat("]", 44)},
		"duration":     {`{"format":"duration"}`, `"P` + strings.Repeat("1Y", size/2-10) + `"`},
		"numbers":      {`{"items":{"multipleOf":1e-300,"minimum":1e300}}`, fill("9e399", size)},
		"pattern":      {`{"items":{"pattern":"(a{900}b|c)+$"}}`, fill(`"`+strings.Repeat("a", 10_000)+`"`, size)},
		"objects":      {`{"items":{"additionalProperties":false}}`, fill(strings.Repeat(`{"":`, 500)+"0"+strings.Repeat("}", 500), size)},
	}
}

// One validation takes at most 100 ms of CPU and 64 MiB, the collector's work included.
func TestDearValidations(t *testing.T) {
	program := filepath.Join(t.TempDir(), "cost")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cost").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, of := range dear() {
		in, err := json.Marshal(of)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Stdin = bytes.NewReader(in)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		var ms, allocated int
		var verdict string
		if _, err := fmt.Sscanf(string(out), "%d %d %s", &ms, &allocated, &verdict); err != nil {
			t.Fatalf("%s: %v in %q", name, err, out)
		}
		t.Logf("%-12s %3d ms %2d MiB: %s", name, ms, allocated, bytes.TrimSpace(out))
		if ms > 100 || allocated > 64 {
			t.Errorf("%s: %d ms of CPU and %d MiB, want at most 100 ms and 64 MiB", name, ms, allocated)
		}
	}
}

// While clients publish such payloads at the same time, the memory of the process stays bounded, and ordinary events of
// another client do not wait in their line.
func TestDearValidationsAtOnce(t *testing.T) {
	r := newRig(t)
	var topics []string
	for name, of := range dear() {
		r.ensure(jetbus.TopicConfig{Name: name})
		r.register(name, of[0])
		topics = append(topics, name)
	}
	r.ensure(jetbus.TopicConfig{Name: "ordinary"})
	r.register("ordinary", `{"type":"object","required":["id"],"properties":{"id":{"type":"integer"}}}`)

	post := func(topic, body string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/topics/"+topic, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return res.StatusCode
	}
	payloads := dear()
	over := make(chan struct{})
	var all sync.WaitGroup
	var refused, other atomic.Int64
	var mu sync.Mutex
	var dearTimes []time.Duration
	for i := range 24 {
		all.Go(func() {
			for n := i; ; n++ {
				select {
				case <-over:
					return
				default:
				}
				topic, start := topics[n%len(topics)], time.Now()
				code := post(topic, payloads[topic][1])
				mu.Lock()
				dearTimes = append(dearTimes, time.Since(start))
				mu.Unlock()
				switch code {
				case http.StatusUnprocessableEntity:
					refused.Add(1)
				default:
					other.Add(1)
				}
			}
		})
	}
	var times []time.Duration
	var peak uint64
	for began := time.Now(); time.Since(began) < 10*time.Second; {
		start := time.Now()
		if code := post("ordinary", `{"id":1}`); code/100 != 2 {
			t.Errorf("an ordinary event is answered with %d", code)
		}
		times = append(times, time.Since(start))
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		peak = max(peak, m.Sys-m.HeapReleased)
		time.Sleep(10 * time.Millisecond)
	}
	close(over)
	all.Wait()
	slices.Sort(times)
	slices.Sort(dearTimes)
	p99, waited := times[len(times)*99/100], dearTimes[len(dearTimes)/2]
	t.Logf("%d refused, %d answered otherwise, p50 %v; %d ordinary events, p50 %v, p99 %v; %d MiB at most",
		refused.Load(), other.Load(), waited, len(times), times[len(times)/2], p99, peak>>20)
	if peak > 600<<20 {
		t.Errorf("the process took %d MiB, want at most 600", peak>>20)
	}
	if refused.Load() == 0 {
		t.Error("no attack was refused")
	}
	if p99 > waited {
		t.Errorf("p99 of an ordinary publish is %v, though half of the expensive ones take at most %v", p99, waited)
	}
}
