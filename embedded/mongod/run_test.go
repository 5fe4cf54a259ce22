package mongod_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

func TestRun(t *testing.T) {
	srv := start(t, mongod.Config{Username: "us,er=", Password: "p:w/d"})
	run := func(uri, command string) (string, error) { return mongod.Run(t.Context(), uri, "d", command) }
	if out, err := run(srv.URI(), `{"insert": "c", "documents": [{"_id": 1}]}`); err != nil || !strings.Contains(out, `"n":1`) {
		t.Errorf("%s, %v", out, err)
	}
	for _, tt := range []struct {
		name, uri, command string
		code               int32
	}{
		{"no credentials", "mongodb://" + srv.Addr(), `{"ping": 1, "insert": "c"}`, 0},
		{"no credentials for this", "mongodb://" + srv.Addr(), `{"find": "c"}`, 13},
		{"wrong password", "mongodb://us%2Cer%3D:x@" + srv.Addr(), `{"find": "c"}`, 18},
		{"error of the server", srv.URI(), `{"nothing": 1}`, 59},
	} {
		_, err := run(tt.uri, tt.command)
		e, ok := errors.AsType[*mongod.CommandError](err)
		if tt.code == 0 && err != nil || tt.code != 0 && (!ok || e.Code != tt.code) {
			t.Errorf("%s: %v, want code %d", tt.name, err, tt.code)
		}
	}
	for _, uri := range []string{"mongodb+srv://x", "mongodb://x/?tls=true", "%"} {
		if _, err := run(uri, `{"ping": 1}`); err == nil || !strings.Contains(err.Error(), "without TLS") {
			t.Errorf("%s: %v", uri, err)
		}
	}
	if _, err := run(srv.URI(), `{`); err == nil {
		t.Error("no command")
	}
}
