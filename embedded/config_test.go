package embedded_test

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/embedded"
)

func TestBadConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  embedded.Config
		want string
	}{
		"open to all":            {embedded.Config{Listen: "0.0.0.0:0"}, "reachable from other machines"},
		"open to all, no host":   {embedded.Config{Listen: ":0"}, "reachable from other machines"},
		"open to all, v6":        {embedded.Config{Listen: "[::]:0"}, "reachable from other machines"},
		"open to all, name":      {embedded.Config{Listen: "broker.example:4222"}, "reachable from other machines"},
		"open websocket":         {embedded.Config{WebSocket: "192.0.2.1:80"}, "WebSocket \"192.0.2.1:80\" is reachable"},
		"no port":                {embedded.Config{Listen: "127.0.0.1"}, "missing port"},
		"named port":             {embedded.Config{Listen: "127.0.0.1:nats"}, "port \"nats\""},
		"large port":             {embedded.Config{WebSocket: "127.0.0.1:65536"}, "port \"65536\""},
		"negative port":          {embedded.Config{Listen: "127.0.0.1:-1"}, "port \"-1\""},
		"user without password":  {embedded.Config{User: "u"}, "no Password for User \"u\""},
		"password without user":  {embedded.Config{Password: "p"}, "Password without User"},
		"user and token":         {embedded.Config{User: "u", Password: "p", Token: "t"}, "exclude each other"},
		"password and token":     {embedded.Config{Password: "p", Token: "t"}, "exclude each other"},
		"tls without listener":   {embedded.Config{TLS: &tls.Config{}}, "TLS without Listen"},
		"routes, no listener":    {embedded.Config{Routes: struct{ embedded.Routes }{}}, "Routes without Listen"},
		"tls without cert":       {embedded.Config{Listen: "127.0.0.1:0", TLS: &tls.Config{}}, "TLS has no certificate"},
		"wss without websocket":  {embedded.Config{WebSocketTLS: &tls.Config{}}, "without WebSocket"},
		"wss without cert":       {embedded.Config{WebSocket: "127.0.0.1:0", WebSocketTLS: &tls.Config{}}, "WebSocketTLS has no certificate"},
		"origin without socket":  {embedded.Config{WebSocketOrigins: []string{"https://a"}}, "without WebSocket"},
		"origin without scheme":  {embedded.Config{WebSocket: "127.0.0.1:0", WebSocketOrigins: []string{"a.example"}}, "\"a.example\" is not of the form"},
		"name of two words":      {embedded.Config{Name: "a b"}, "spaces in Name"},
		"negative memory":        {embedded.Config{MaxMemory: -1}, "must not be negative"},
		"negative store":         {embedded.Config{MaxStore: -1}, "must not be negative"},
		"negative payload":       {embedded.Config{MaxPayload: -1}, "MaxPayload -1"},
		"payload of a gigabyte":  {embedded.Config{MaxPayload: 1 << 30}, "MaxPayload 1073741824"},
		"all mistakes are named": {embedded.Config{MaxPayload: -1, Password: "p"}, "Password without User\nMaxPayload -1"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tc.cfg.Validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Validate: %v, want %q", err, tc.want)
			}
			b, err := embedded.Start(t.Context(), tc.cfg)
			if err == nil {
				t.Errorf("Start accepts it: %v", b.Stop(t.Context()))
			}
		})
	}
}

func TestGoodConfig(t *testing.T) {
	for name, cfg := range map[string]embedded.Config{
		"zero":             {},
		"loopback":         {Listen: "127.0.0.1:0", WebSocket: "[::1]:0"},
		"localhost":        {Listen: "localhost:0"},
		"all with a user":  {Listen: "0.0.0.0:0", User: "u", Password: "p"},
		"all with a token": {WebSocket: ":0", Token: "t", WebSocketOrigins: []string{"https://a.example:8443"}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := cfg.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSettingsReachTheServer(t *testing.T) {
	b := start(t, embedded.Config{
		Name: "n", SyncAlways: true, MaxMemory: 1 << 20, MaxStore: 2 << 20, MaxPayload: 3 << 20,
	})
	js := b.Server().JetStreamConfig()
	if js.MaxMemory != 1<<20 || js.MaxStore != 2<<20 || !js.SyncAlways {
		t.Errorf("JetStream runs with %+v", js)
	}
	if n := b.Server().Name(); n != "n" {
		t.Errorf("the server is called %q", n)
	}
	nc, err := b.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if nc.MaxPayload() != 3<<20 {
		t.Errorf("MaxPayload is %d", nc.MaxPayload())
	}
	d := start(t, embedded.Config{})
	if n, m := d.Server().Name(), d.Server().JetStreamConfig().MaxMemory; n != "jetbus" || m != 1<<40 {
		t.Errorf("defaults: name %q, memory %d", n, m)
	}
}

func TestTakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken, dir := l.Addr().String(), t.TempDir()
	for _, cfg := range []embedded.Config{{Dir: dir, Listen: taken}, {Dir: dir, WebSocket: taken}} {
		if _, err := embedded.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("Start(%+v): %v, want the address to be in use", cfg, err)
		}
	}
	start(t, embedded.Config{Dir: dir}) // the folder is free again
}

func TestURLOfAllInterfaces(t *testing.T) {
	b := start(t, embedded.Config{Listen: "0.0.0.0:0", Token: "t"})
	if !strings.HasPrefix(b.URL(), "nats://127.0.0.1:") {
		t.Fatalf("URL() = %q", b.URL())
	}
	nc, err := nats.Connect(b.URL(), nats.Timeout(patience), nats.Token("t"))
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}
