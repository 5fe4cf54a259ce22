// Package loopback checks requests to HTTP listeners that trust every program on their own
// machine, because only such programs can connect.
//
// A browser is such a program, but it runs pages that must not be trusted. A page can send
// requests to a loopback address. With DNS rebinding, a page can also make the browser treat the
// address as the page's own host. Then the Host header has the page's name. A proxy is such a
// program, too, and sends the requests of other machines. [Check] refuses all of these.
package loopback

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Host reports whether a host without a port is a loopback name or address: localhost, a
// subdomain of it, 127.0.0.0/8 or ::1.
func Host(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && a.Unmap().IsLoopback()
}

// Address reports whether a listener on host:port accepts connections only from this machine.
// localhost is the only such name, since other names are resolved by DNS.
func Address(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.Unmap().IsLoopback()
}

// Check returns an error if a listener that trusts its own machine must not serve the request.
// The request must have arrived over a loopback address, and not through a proxy. Its Host must be
// a loopback name with the port of the listener. If a browser sent it for a page of another site, it must have an
// Origin, which the caller must check.
func Check(r *http.Request) error {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok || !local.IP.IsLoopback() {
		return errors.New("the request did not come over a loopback address")
	}
	if forwarded(r) {
		return errors.New("the request has headers of a proxy, or is HTTP/1.0")
	}
	host, port := r.Host, "80"
	if r.TLS != nil {
		port = "443"
	}
	if h, p, err := net.SplitHostPort(r.Host); err == nil {
		host, port = h, p
	}
	if !Host(host) || port != strconv.Itoa(local.Port) {
		return fmt.Errorf("the host %.100q is not a loopback name with port %d", r.Host, local.Port)
	}
	if r.Header.Get("Origin") == "" && CrossSite(r) {
		return errors.New("a page of another site made the request")
	}
	return nil
}

// CrossSite reports whether a page of another site made the request. It reads Sec-Fetch-Site, which
// browsers set.
func CrossSite(r *http.Request) bool {
	for _, v := range r.Header.Values("Sec-Fetch-Site") {
		if strings.EqualFold(strings.TrimSpace(v), "cross-site") {
			return true
		}
	}
	return false
}

// forwarding lists the headers of proxies that do not begin with X-Forwarded.
var forwarding = []string{
	"Forwarded", "Forwarded-For", "X-Original-Forwarded-For", "Via", "Cdn-Loop", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "True-Client-Ip",
	"Cf-Connecting-Ip", "Fastly-Client-Ip", "Fly-Client-Ip", "X-Azure-Clientip", "X-Envoy-External-Address", "X-Original-Host", "X-Original-Url",
}

// forwarded reports whether a proxy has sent the request: it has a header that proxies add, or uses
// HTTP/1.0, which some proxies speak but current clients do not. By default nginx speaks HTTP/1.0 and
// adds no header. A proxy that speaks HTTP/1.1 and adds no header cannot be recognized.
func forwarded(r *http.Request) bool {
	if !r.ProtoAtLeast(1, 1) {
		return true
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Forwarded") {
			return true
		}
	}
	for _, name := range forwarding {
		if len(r.Header.Values(name)) > 0 {
			return true
		}
	}
	return false
}

// Handler serves requests that pass [Check] and whose Origin, if there is one, is a loopback host. It
// answers other requests with 403.
func Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := Check(r)
		for _, origin := range r.Header.Values("Origin") {
			if u, wrong := url.Parse(origin); err == nil && (wrong != nil || !Host(u.Hostname())) {
				err = fmt.Errorf("a page of %.100q made the request", origin)
			}
		}
		if err != nil {
			http.Error(w, "forbidden: "+err.Error(), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}
