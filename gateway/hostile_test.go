package gateway_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// hostile are what clients do that they should not, and what networks do to them, each with
// the tests that show that nothing comes of it: a stable code, the connection kept or closed
// as it is specified, the others unaffected.
var hostile = [...]struct{ concern, tests string }{
	1:  {"a page of another origin", "TestOrigins TestCross"},
	2:  {"a token of 9 KiB of dots", "TestAuthIsNeeded TestJWTRefuses"},
	3:  {"algorithm none, and HMAC with the text of a public key", "TestJWTRefuses"},
	4:  {"a flood of unknown key ids is one fetch", "TestJWKSUnknownKids"},
	5:  {"a token that ends while an event is held", "TestTokenEnds"},
	6:  {"fewer scopes after a refresh", "TestRefresh"},
	7:  {"joining a group without its scope", "TestScopesOfConnection"},
	8:  {"a frame that is too big", "TestFatalFrames TestBigFrameBeforeAuth TestHostile08Fragments"},
	9:  {"a deflate bomb", "TestCompressedFrame TestHostile09Bomb TestHostile09BombOverHTTP"},
	10: {"a binary frame", "TestFatalFrames"},
	11: {"a frame that is no UTF-8", "TestFatalFrames TestPublishRefused"},
	12: {"a connection that is half open: closed, and what it held delivered again", "TestNoPong TestHostile12HalfOpen"},
	13: {"clients that stop reading: memory is flat, they are closed, the others go on", "TestSlowClient TestSlowClientOverTCP TestHostile13Crowd TestHostile13Publishes"},
	14: {"no credit, and then an acknowledgement", "TestCredit"},
	15: {"more credit than a number holds", "TestCredit TestHostile15Credit"},
	16: {"MODACK behind the deadline", "TestLeaseRunsOut"},
	17: {"an event that is acknowledged twice", "TestPublishAndSubscribe TestHostile17AckTwice"},
	18: {"an event that another connection acknowledges", "TestAckOfAnother TestHostile18AckOfAnother"},
	19: {"a thousand reconnects, one after the other and all at once", "TestStorm TestHostile19Storm"},
	20: {"subscribing twice", "TestSubscribeTwice TestHostile20Names"},
	21: {"UNSUBSCRIBE with drain while events are held", "TestUnsubscribeDrains"},
	22: {"a restart of the broker: each event comes, to a reader once", "TestRestart"},
	23: {"a reader that retention has passed", "TestRetentionPassesReader"},
	24: {"the same id twice", "TestPublishAndSubscribe TestPublishOverHTTP"},
	25: {"headers that are instructions to the broker, on every path", "TestBrokersHeaders TestHostile25EveryPath"},
	26: {"line ends in what becomes a header", "TestBadFrames TestPublishRefused TestHostile26LineEnds TestHostile26Smuggling"},
	27: {"topics and groups that are subjects of the broker", "TestBadFrames TestPublishRefused TestHostile27Names"},
	28: {"JSON that nests ten thousand deep", "TestBadFrames TestPublishRefused TestHostile28Deep"},
	29: {"members that are there twice", "TestHostile29MembersTwice"},
	30: {"numbers beyond those of a float64", "TestPublishAndSubscribe TestPublishOverHTTP TestHostile30Bytes"},
	31: {"the first clients, word for word", "TestFirstClients TestFirstPath"},
	32: {"goroutines and connections that stay", "TestMain TestStorm TestHostile19Storm"},
	33: {"frames and headers of a fuzzer", "FuzzParseRequest FuzzHeaders FuzzStructuredCloudEvent FuzzLines"},
	34: {"a client that goes away, however it does: its events go to others; MODACK of what nobody holds", "TestDisconnectGivesBack TestHostile34Disconnect"},
}

// TestEveryHostileRowHasATest finds the tests by their names.
func TestEveryHostileRowHasATest(t *testing.T) {
	all, named := map[string]bool{}, map[string]bool{}
	for _, pattern := range []string{"*_test.go", "../internal/frame/*_test.go", "../e2e/edge/slow_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no tests in %s: %v", pattern, err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range parsed.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
					all[f.Name.Name] = true
				}
			}
		}
	}
	numbered := regexp.MustCompile(`^TestHostile(\d+)[A-Z]`)
	for n, row := range hostile {
		if n == 0 {
			continue
		}
		tests := strings.Fields(row.tests)
		if len(tests) == 0 || row.concern == "" {
			t.Errorf("row %d has no test: %s", n, row.concern)
		}
		for _, name := range tests {
			if !all[name] {
				t.Errorf("row %d: there is no %s", n, name)
			}
			if m := numbered.FindStringSubmatch(name); m != nil {
				if of, _ := strconv.Atoi(m[1]); of != n && n != 32 { // which is all of them
					t.Errorf("row %d names %s", n, name)
				}
				named[name] = true
			}
		}
	}
	for name := range all {
		if numbered.MatchString(name) && !named[name] {
			t.Errorf("no row names %s", name)
		}
	}
}
