package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

func TestMongoAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ uri, address, db string }{
		{"mongodb://localhost", "mongodb://localhost/", "jetbus"},
		{"mongodb://a:1,b:2/shop?replicaSet=rs0", "mongodb://a:1,b:2/", "shop"},
		{"mongodb://u:p%40ss@a:1,b:2/my%2ddb?authSource=admin", "mongodb://a:1,b:2/", "my-db"},
		{"mongodb+srv://u:p@cluster.example.com/?tlsCertificateKeyFilePassword=secret", "mongodb+srv://cluster.example.com/", "jetbus"},
		{"mongodb://u:p@ss/w@a/db", "mongodb://a/", "jetbus"}, // not escaped, and secret all the same
		{"mongodb://u:p%40@a/shop?ssl=true&appName=@x@", "the server of --mongo", "shop"},
		{"u:p@a", "the server of --mongo", "jetbus"},
	} {
		if got := mongoAddress(c.uri); got != c.address {
			t.Errorf("%s: %q", c.uri, got)
		}
		if got := databaseOf(c.uri); got != c.db {
			t.Errorf("%s: database %q", c.uri, got)
		}
	}
}

func TestScrubbed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, uri, want string }{
		{"no geheim", "mongodb://u:geheim@h/shop?appName=@x@", "no xxxxx"},
		{"no mongodb://u:geheim@h/?a=@x@ there", "mongodb://u:geheim@h/?a=@x@", "no the server of --mongo there"},
		{"no geheim, no %67eheim", "mongodb://u:%67eheim@h/", "no xxxxx, no xxxxx"},
		{"no gehe@im", "mongodb://u:gehe@im@h/", "no xxxxx"},
		{"no h", "mongodb://h/shop", "no h"},
	} {
		if got := scrubbed(c.text, c.uri); got != c.want {
			t.Errorf("%s: %q, want %q", c.uri, got, c.want)
		}
	}
}

func TestConnectMongo(t *testing.T) {
	t.Parallel()
	srv, err := mongod.Start(t.Context(), mongod.Config{Username: "shop", Password: "geheim"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	for _, c := range []struct {
		name, uri, want string
		within          time.Duration
	}{
		{"wrong password", "mongodb://shop:falschXX@" + srv.Addr() + "/?replicaSet=rs0", "the user or the password is wrong", patience},
		{"wrong user", "mongodb://falschXX:geheim@" + srv.Addr() + "/?replicaSet=rs0", "the user or the password is wrong", patience},
		{"nobody there", "mongodb://u:falschXX@127.0.0.1:1/?directConnection=true", "no primary answers there (dial tcp 127.0.0.1:1: connect: connection refused); check --mongo", 10 * time.Second},
		{"other set", "mongodb://shop:geheim@" + srv.Addr() + "/?replicaSet=falschXX", "no primary answers there", time.Second},
		{"no URI", "http://u:falschXX@x", `--mongo: error parsing uri: scheme must be "mongodb" or "mongodb+srv"`, patience},
		{"not escaped", "mongodb://u:falschXX@y@x", "--mongo: ", patience},
		{"option", "mongodb://u:falschXX@x/?maxPoolSize=falschXX", "--mongo: ", patience},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			client, err := connectMongo(t.Context(), io.Discard, c.uri, c.within)
			if err == nil {
				t.Error(client.Disconnect(t.Context()))
				t.Fatal("connected")
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "falsch") || strings.Contains(err.Error(), "geheim") {
				t.Errorf("error %v, want %q and no secret", err, c.want)
			}
		})
	}
	client, err := connectMongo(t.Context(), io.Discard, srv.URI(), patience)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Disconnect(t.Context()); err != nil {
		t.Error(err)
	}
}
