//go:build unix

package examples

import (
	"strings"
	"testing"
)

// Every flag has a default, and a server that does not answer is an error that names the flag.
func TestExamplesConnect(t *testing.T) {
	t.Parallel()
	const nats, mongo = "connect to the NATS server of -server or NATS_URL: ", "connect to the MongoDB of -mongo or MONGODB_URI: "
	absent := map[string][]string{
		nats:  {"-server", "nats://127.0.0.1:1"},
		mongo: {"-mongo", "mongodb://user:secret@127.0.0.1:1/?serverSelectionTimeoutMS=100"},
	}
	for _, program := range []string{"partitions", "evolution"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			run(t, program)
			for want, args := range absent {
				out, err := command(t, program, args...).CombinedOutput()
				if got := string(out); exitCode(err) != 1 || !strings.HasPrefix(got, program+": "+want) || strings.Contains(got, "secret") {
					t.Errorf("%s %v ended with %v and %q, want exit code 1 and %q", program, args, err, got, want)
				}
			}
			help := command(t, program, "-help")
			help.Env = append(help.Env, "NATS_URL=nats://user:secret@127.0.0.1", "MONGODB_URI=mongodb://user:secret@127.0.0.1/")
			if out, err := help.CombinedOutput(); err != nil || !strings.Contains(string(out), "-server") || strings.Contains(string(out), "secret") {
				t.Errorf("help ended with %v: %s", err, out)
			}
		})
	}
}
