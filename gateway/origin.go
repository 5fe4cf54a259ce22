package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/loopback"
)

// origin is where a page of a browser comes from.
type origin struct {
	scheme, host, port string
	subdomains         bool // of host, which is not itself covered
}

// parseOrigin reads an origin as browsers send it: scheme, host and port, and nothing else.
func parseOrigin(s string) (origin, bool) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "" || strings.HasSuffix(s, "#") {
		return origin{}, false
	}
	o := origin{scheme: u.Scheme, host: strings.ToLower(u.Hostname()), port: u.Port()}
	if o.port == "" {
		o.port = map[string]string{"http": "80", "https": "443"}[o.scheme]
	}
	return o, true
}

// parseOrigins reads Config.Origins.
func parseOrigins(list []string) ([]origin, error) {
	var out []origin
	for _, s := range list {
		text, wild := s, false
		if scheme, rest, ok := strings.Cut(s, "://*."); ok {
			text, wild = scheme+"://"+rest, true
		}
		o, ok := parseOrigin(text)
		if !ok || strings.Contains(o.host, "*") {
			return nil, fmt.Errorf("%w: Origins: %.200q is no origin: use https://app.example.com or https://*.example.com", jetbus.ErrInvalidOption, s)
		}
		o.subdomains = wild
		out = append(out, o)
	}
	return out, nil
}

func (o origin) covers(other origin) bool {
	if o.scheme != other.scheme || o.port != other.port {
		return false
	}
	if o.subdomains {
		return strings.HasSuffix(other.host, "."+o.host)
	}
	return o.host == other.host
}

// originAllowed reports whether the page that makes the request may use the gateway. Allowed are
// pages of the gateway's own address, of Config.Origins and, without tokens, of loopback hosts.
// Programs that are not browsers send no Origin and are allowed. Browsers omit it from some GETs;
// without tokens, Sec-Fetch-Site shows which of these come from pages of other sites.
func (g *Gateway) originAllowed(r *http.Request) bool {
	sent := r.Header.Values("Origin")
	if len(sent) == 0 {
		return g.c.Auth != nil || !loopback.CrossSite(r)
	}
	o, ok := parseOrigin(sent[0])
	if !ok || len(sent) > 1 {
		return false
	}
	if g.c.Auth == nil && loopback.Host(o.host) {
		return true
	}
	if own, ok := parseOrigin(o.scheme + "://" + r.Host); ok && own.host == o.host && own.port == o.port {
		return true
	}
	for _, listed := range g.gate.origins {
		if listed.covers(o) {
			return true
		}
	}
	return false
}

// cross lets pages of other origins use the gateway, or not. It reports whether the
// request goes on; otherwise it is answered.
func (g *Gateway) cross(w http.ResponseWriter, r *http.Request) bool {
	w.Header().Add("Vary", "Origin")
	if !g.originAllowed(r) {
		g.problem(w, r, refuse(CodeForbidden, "pages of this origin may not use the gateway"))
		return false
	}
	from := r.Header.Get("Origin")
	if from == "" {
		return true
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", from)
	h.Set("Access-Control-Expose-Headers", "ETag, Link, Location, Retry-After, X-Next, X-As-Of")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return true
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, DELETE")
	if names := r.Header.Get("Access-Control-Request-Headers"); names != "" {
		h.Set("Access-Control-Allow-Headers", names) // what is no header of an event is ignored anyway
	}
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return false
}
