package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// routes are a node's own: its place in the mesh. They are [embedded.Routes].
type routes struct {
	mesh *mesh
	node int
}

// Join implements embedded.Routes.
func (r *routes) Join(o *server.Options) {
	r.mesh.open(r.node)
	o.Cluster = server.ClusterOpts{
		Name: r.mesh.name, Host: "127.0.0.1", Port: r.mesh.ports[r.node], NoAdvertise: true,
		TLSConfig: r.mesh.tls[r.node], TLSTimeout: routeTimeout.Seconds(), AuthTimeout: 2 * routeTimeout.Seconds(),
	}
	// The number of routes, the own one included, tells the server how many
	// peers a quorum is reckoned from.
	for _, p := range r.mesh.ports {
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(p))})
	}
}

// Cut implements embedded.Routes.
func (r *routes) Cut() { r.mesh.cut(r.node) }

// Reconnect implements embedded.Routes.
func (r *routes) Reconnect() { r.mesh.open(r.node) }

// routeTimeout bounds a TLS handshake between nodes; generous, since several
// servers share this process.
const routeTimeout = 10 * time.Second

// mesh is the set of routes between the nodes of a cluster. The nodes speak TLS
// with certificates that exist for this cluster only. That keeps strangers away
// from the route ports, which are open to the machine. And it is where a node can be cut
// off: the server offers no means to sever a route, but each handshake shows
// both nodes and the connection between them.
type mesh struct {
	name  string
	ports []int
	tls   []*tls.Config

	mu     sync.Mutex
	down   map[int]bool
	routes map[net.Conn][2]int // the nodes of each route
}

func newMesh(name string, ports []int) (*mesh, error) {
	m := &mesh{name: name, ports: ports, down: map[int]bool{}, routes: map[net.Conn][2]int{}}
	ca, err := newAuthority(name)
	if err != nil {
		return nil, fmt.Errorf("certificates of the routes: %w", err)
	}
	for i := range ports {
		cert, err := ca.issue(strconv.Itoa(i))
		if err != nil {
			return nil, fmt.Errorf("certificates of the routes: %w", err)
		}
		m.tls = append(m.tls, m.config(i, cert, ca.pool))
	}
	return m, nil
}

// config is the TLS configuration of node i for both ends of its routes.
func (m *mesh) config(i int, cert tls.Certificate, pool *x509.CertPool) *tls.Config {
	base := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}
	both := base.Clone()
	// Only the accepting end calls this; one end is enough.
	both.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := base.Clone()
		c.VerifyConnection = func(cs tls.ConnectionState) error {
			from, err := strconv.Atoi(cs.PeerCertificates[0].Subject.CommonName)
			if err != nil {
				return err
			}
			return m.admit(hello.Conn, from, i)
		}
		return c, nil
	}
	return both
}

// admit records a route that is about to be used, unless one end is cut off.
func (m *mesh) admit(conn net.Conn, from, to int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down[from] || m.down[to] {
		return fmt.Errorf("node %d or %d is cut off", from, to)
	}
	m.routes[conn] = [2]int{from, to}
	return nil
}

// cut closes all routes of node i and refuses new ones.
func (m *mesh) cut(i int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down[i] = true
	m.drop(i)
}

// open admits routes of node i, and forgets those of an earlier server.
func (m *mesh) open(i int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.down, i)
	m.drop(i)
}

// drop closes and forgets the routes of node i. The lock is held.
func (m *mesh) drop(i int) {
	for conn, nodes := range m.routes {
		if slices.Contains(nodes[:], i) {
			_ = conn.Close() // may be closed already
			delete(m.routes, conn)
		}
	}
}

// authority issues the certificates of one cluster.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

const certLifetime = 10 * 365 * 24 * time.Hour

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := template(name)
	tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{cert: cert, key: key, pool: pool}, nil
}

// issue makes a certificate for both ends of connections on loopback.
func (a *authority) issue(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	tmpl := template(name)
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	tmpl.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func template(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		// Unique within the cluster is enough, and a time is.
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(certLifetime),
	}
}
