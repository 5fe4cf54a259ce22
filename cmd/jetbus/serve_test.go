package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serving starts jetbus serve and returns the address that it printed.
func serving(t *testing.T, env map[string]string, args ...string) (r *running, url string) {
	t.Helper()
	r = begin(t, env, append([]string{"serve", "--listen", "0"}, args...)...)
	line, _, _ := strings.Cut(r.wait(t, "\n"), "\n")
	url, ok := strings.CutPrefix(line, "ready ")
	if !ok {
		t.Fatalf("readiness line %q", line)
	}
	return r, url
}

func TestServe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := map[string]string{"JETBUS_USER": "shop", "JETBUS_PASSWORD": "hunter2"}
	r, url := serving(t, env, "--dir", dir, "--sync-always", "--max-store", "1GiB", "--log-format", "json", "--log-level", "debug")
	denied := false
	client := func(env map[string]string, args ...string) result {
		return commandEnv(t, env, "", append([]string{"--server", url}, args...)...)
	}
	for range 10 { // who still writes may miss the server's answer
		got := client(nil, "topics")
		if got.code != exitFailure {
			t.Errorf("without a password: %+v", got)
		}
		if denied = strings.Contains(got.errOut, "permission denied"); denied {
			break
		}
	}
	if !denied {
		t.Error("who has no password is never told so")
	}
	if got := client(nil, "topics", "--user", "shop", "--password", "wrong"); got.code != exitFailure || strings.Contains(got.errOut, "wrong") {
		t.Errorf("with a wrong password: %+v", got)
	}
	for _, args := range []string{"topics create orders --max-bytes 1MiB", "pub orders 1"} {
		if got := client(env, strings.Fields(args)...); got.code != 0 {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
	log := r.err.String()
	for line := range strings.Lines(log) {
		if !json.Valid([]byte(line)) {
			t.Errorf("log line %q is not JSON", line)
		}
	}
	if strings.Contains(log, "hunter2") || !strings.Contains(log, `"msg":"stopped"`) {
		t.Errorf("the log holds the password, or does not say that it stopped:\n%s", log)
	}

	_, url = serving(t, map[string]string{"JETBUS_TOKEN": "tok"}, "--dir", dir)
	if got := client(map[string]string{"JETBUS_TOKEN": "tok"}, "sub", "orders", "--no-follow"); got.code != 0 || !strings.Contains(got.out, "orders #1 1") {
		t.Errorf("after a restart: %+v", got)
	}
	if got := command(t, "", "serve", "--listen", "0", "--dir", dir); got.code != exitConflict || !strings.Contains(got.errOut, "in use by another broker") {
		t.Errorf("a second one on the same folder: %+v", got)
	}
	if got := command(t, "", "serve", "--listen", strings.TrimPrefix(url, "nats://"), "--dir", t.TempDir()); got.code != exitFailure || !strings.Contains(got.errOut, "choose another with --listen") {
		t.Errorf("a second one on the same address: %+v", got)
	}
	taken := strings.TrimPrefix(url, "nats://")
	if got := command(t, "", "serve", "--listen", "0", "--websocket", taken, "--dir", t.TempDir()); got.code != exitFailure || !strings.Contains(got.errOut, "listen on "+taken) || !strings.Contains(got.errOut, "--websocket") {
		t.Errorf("its address for WebSocket: %+v", got)
	}
}

// At the usual level serve says one line when it is ready, and one of what keeps it from that.
func TestServeSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, url := serving(t, nil, "--dir", dir)
	if out, log := r.out.String(), r.err.String(); out != "ready "+url+"\n" || strings.Count(log, "\n") != 1 || !strings.Contains(log, " msg=ready ") {
		t.Errorf("ready, it says %q, and in the log\n%s", out, log)
	}
	taken := strings.TrimPrefix(url, "nats://")
	for _, c := range []struct {
		listen, dir string
		code        int
		want        string
	}{
		{"0", dir, exitConflict, "start broker: folder is in use by another broker: " + dir + " (stop that one first, or use another folder)"},
		{taken, t.TempDir(), exitFailure, "listen on " + taken + ": " + errAddressTaken.Error() + "; choose another with --listen; port 0 takes a free one"},
	} {
		got := command(t, "", "serve", "--listen", c.listen, "--dir", c.dir)
		if got.code != c.code || got.out != "" || got.errOut != "jetbus: "+c.want+"\n" {
			t.Errorf("exit code %d, want %d; it says %q, want %q", got.code, c.code, got.errOut, c.want)
		}
	}
}

func TestServeTLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	_, url := serving(t, nil, "--dir", t.TempDir(), "--tls-cert", cert, "--tls-key", key, "--websocket", "0")
	url, webSocket, _ := strings.Cut(url, " ")
	if !strings.HasPrefix(url, "tls://") || !strings.HasPrefix(webSocket, "wss://") {
		t.Fatalf("ready on %s and %s", url, webSocket)
	}
	for _, server := range []string{url, webSocket} {
		if got := command(t, "", "topics", "--server", server, "--tls-ca", cert); got.code != 0 {
			t.Errorf("%s: %+v", server, got)
		}
		if got := command(t, "", "topics", "--server", server); got.code != exitFailure {
			t.Errorf("%s without the authority: %+v", server, got)
		}
	}
}

// certificate makes a certificate for 127.0.0.1 that is its own authority.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", keyDER)
}
