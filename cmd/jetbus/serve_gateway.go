package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/exactjson"
	"github.com/seed-63e9a637/jetbus/internal/loopback"
)

// gatewaySettings are those of the gateway of serve. What a flag does not say the
// environment does, and what that does not the file of --gateway-config.
type gatewaySettings struct {
	Listen  string      `json:"listen"`
	Origins []string    `json:"origins"`
	Headers []string    `json:"headers"`
	Tokens  string      `json:"tokens"` // file
	JWT     jwtSettings `json:"jwt"`

	// Limits are fields of gateway.Limits by their names, "inFlight", and times in
	// milliseconds, "leaseMaxMs". They are in the file alone.
	Limits map[string]int64 `json:"limits"`

	file   string
	limits gateway.Limits
}

// jwtSettings say which JSON Web Tokens count.
type jwtSettings struct {
	Issuer             string `json:"issuer"`
	Audience           string `json:"audience"`
	SecretFile         string `json:"secretFile"`
	PreviousSecretFile string `json:"previousSecretFile"`
	KeysFile           string `json:"keysFile"`
	JWKS               string `json:"jwks"`
}

func (s *gatewaySettings) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.Listen, "gateway", "", "address for browsers, scripts and services over WebSocket and HTTP, host:port or port (env JETBUS_GATEWAY; default none)")
	f.StringVar(&s.file, "gateway-config", "", "file with the settings of the gateway, JSON (env JETBUS_GATEWAY_CONFIG)")
	f.StringArrayVar(&s.Origins, "gateway-origin", nil, "origin whose pages may use the gateway, https://app.example.com or https://*.example.com; may be repeated")
	f.StringArrayVar(&s.Headers, "gateway-header", nil, "HTTP header that becomes a header of events, as x-evt-... do; may be repeated")
	f.StringVar(&s.Tokens, "tokens", "", "file with tokens of the gateway that do not change, JSON (env JETBUS_TOKENS)")
	f.StringVar(&s.JWT.Issuer, "jwt-issuer", "", "issuer of the gateway's JSON Web Tokens (env JETBUS_JWT_ISSUER; default "+defaultIssuer+")")
	f.StringVar(&s.JWT.Audience, "jwt-audience", "", "audience that they must be for (env JETBUS_JWT_AUDIENCE; default "+defaultAudience+")")
	f.StringVar(&s.JWT.JWKS, "jwks", "", "URL of the issuer's key set (env JETBUS_JWKS)")
	f.StringVar(&s.JWT.KeysFile, "jwt-keys", "", "file with public keys of the issuer, PEM")
	f.StringVar(&s.JWT.SecretFile, "jwt-secret-file", "", "file with the secret of tokens signed with HS256 (env "+secretEnv+" has the secret itself)")
	f.StringVar(&s.JWT.PreviousSecretFile, "jwt-previous-secret-file", "", "file with the secret before, whose tokens still count (env "+previousEnv+" has the secret itself)")
}

// load fills in what flags did not say, from the environment and the file.
func (s *gatewaySettings) load(a *app) error {
	flagged := s.JWT.Issuer != "" || s.JWT.Audience != "" || s.JWT.PreviousSecretFile != "" // the environment may say them to other commands
	for _, v := range []struct {
		field *string
		env   string
	}{
		{&s.Listen, "JETBUS_GATEWAY"},
		{&s.file, "JETBUS_GATEWAY_CONFIG"},
		{&s.Tokens, "JETBUS_TOKENS"},
		{&s.JWT.Issuer, "JETBUS_JWT_ISSUER"},
		{&s.JWT.Audience, "JETBUS_JWT_AUDIENCE"},
		{&s.JWT.JWKS, "JETBUS_JWKS"},
	} {
		*v.field = a.env(*v.field, v.env)
	}
	if s.file != "" {
		if err := s.read(); err != nil {
			return usagef("serve: --gateway-config: %w", err)
		}
	}
	if s.Listen == "" && (flagged || s.Tokens != "" || s.JWT.JWKS != "" || s.JWT.KeysFile != "" || s.JWT.SecretFile != "" || len(s.Origins) > 0 || len(s.Headers) > 0 || s.file != "") {
		return usagef("serve: settings of a gateway without --gateway, which says where it listens")
	}
	if s.Listen == "" {
		return nil
	}
	s.Listen = address(s.Listen)
	return checkAddress("serve: --gateway", s.Listen)
}

// read reads the file, below what is said already.
func (s *gatewaySettings) read() error {
	text, err := os.ReadFile(s.file)
	if err != nil {
		return fileError(err)
	}
	var file gatewaySettings
	if err := exactjson.Unmarshal(text, &file, exactjson.RefuseAll); err != nil {
		return fmt.Errorf("%s: %w", s.file, err)
	}
	for _, v := range []struct{ said, file *string }{
		{&s.Listen, &file.Listen},
		{&s.Tokens, &file.Tokens},
		{&s.JWT.Issuer, &file.JWT.Issuer},
		{&s.JWT.Audience, &file.JWT.Audience},
		{&s.JWT.SecretFile, &file.JWT.SecretFile},
		{&s.JWT.PreviousSecretFile, &file.JWT.PreviousSecretFile},
		{&s.JWT.KeysFile, &file.JWT.KeysFile},
		{&s.JWT.JWKS, &file.JWT.JWKS},
	} {
		if *v.said == "" {
			*v.said = *v.file
		}
	}
	if s.Origins == nil {
		s.Origins = file.Origins
	}
	if s.Headers == nil {
		s.Headers = file.Headers
	}
	return s.limit(file.Limits)
}

// limit sets limits by the names of their fields, times in milliseconds.
func (s *gatewaySettings) limit(counts map[string]int64) error {
	l := &s.limits
	numbers := map[string]*int{
		"tokenBytes": &l.TokenBytes, "preAuth": &l.PreAuth, "connections": &l.Connections, "perPrincipal": &l.PerPrincipal, "subscriptions": &l.Subscriptions, "groups": &l.Groups, "ownGroups": &l.OwnGroups,
		"inFlight": &l.InFlight, "batchEvents": &l.BatchEvents, "queueBytes": &l.QueueBytes, "burst": &l.Burst, "pageEvents": &l.PageEvents,
		"bytes": &l.Bytes, "bytesPerPrincipal": &l.BytesPerPrincipal, "bytesPerConnection": &l.BytesPerConnection,
		"calls": &l.Calls, "callsPerPrincipal": &l.CallsPerPrincipal, "scans": &l.Scans, "scansPerPrincipal": &l.ScansPerPrincipal,
	}
	times := map[string]*time.Duration{
		"authTimeoutMs": &l.AuthTimeout, "writeTimeoutMs": &l.WriteTimeout, "pingMs": &l.Ping, "pongTimeoutMs": &l.PongTimeout,
		"leaseMaxMs": &l.LeaseMax, "leaseTotalMs": &l.LeaseTotal, "resumeGraceMs": &l.ResumeGrace, "waitMs": &l.Wait, "groupIdleMs": &l.GroupIdle,
	}
	for name, n := range counts {
		switch {
		case numbers[name] != nil:
			*numbers[name] = int(n)
		case times[name] != nil:
			*times[name] = time.Duration(n) * time.Millisecond
		case name == "frameBytes":
			l.FrameBytes = n
		case name == "rate":
			l.Rate = float64(n)
		default:
			return fmt.Errorf("%s: no limit has the name %.100q", s.file, name)
		}
	}
	return nil
}

// prepare is load and config; nil where there is no gateway.
func (s *gatewaySettings) prepare(a *app, log *slog.Logger) (*gateway.Config, error) {
	if err := s.load(a); err != nil || s.Listen == "" {
		return nil, err
	}
	c, err := s.config(a, log)
	if err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, usagef("serve: --gateway: %w", err)
	}
	return &c, nil
}

// config is the gateway's configuration.
func (s *gatewaySettings) config(a *app, log *slog.Logger) (gateway.Config, error) {
	c := gateway.Config{Origins: s.Origins, Headers: s.Headers, Limits: s.limits}
	var list []gateway.Authenticator
	if s.Tokens != "" {
		static, err := staticTokens(s.Tokens)
		if err != nil {
			return c, usagef("serve: --tokens %s: %w", s.Tokens, err)
		}
		list = append(list, static)
	}
	j, err := s.jwt(a, log)
	if err != nil {
		return c, err
	}
	if j != nil {
		list = append(list, j)
	}
	switch {
	case len(list) > 1:
		c.Auth = gateway.AnyOf(list...)
	case len(list) == 1:
		c.Auth = list[0]
	case !loopback.Address(s.Listen):
		return c, usagef("serve: --gateway %s: other machines can reach it, so it needs --tokens, --jwks, --jwt-keys or --jwt-secret-file", s.Listen)
	}
	return c, nil
}

// jwt makes what checks JSON Web Tokens; nil where there are no keys for them.
func (s *gatewaySettings) jwt(a *app, log *slog.Logger) (*gateway.JWT, error) {
	c := gateway.JWTConfig{Issuer: s.JWT.Issuer, Audience: s.JWT.Audience, JWKS: s.JWT.JWKS, Logger: log}
	var err error
	if c.Secret, err = a.secret(s.JWT.SecretFile, secretEnv); err != nil {
		return nil, err
	}
	if c.Previous, err = a.secret(s.JWT.PreviousSecretFile, previousEnv); err != nil {
		return nil, err
	}
	if s.JWT.KeysFile != "" {
		if c.Keys, err = os.ReadFile(s.JWT.KeysFile); err != nil {
			return nil, usagef("serve: --jwt-keys: %w", fileError(err))
		}
	}
	if c.Secret == nil && c.Previous == nil && c.Keys == nil && c.JWKS == "" {
		if c.Issuer != "" || c.Audience != "" {
			return nil, usagef("serve: --jwt-issuer and --jwt-audience need --jwks, --jwt-keys or --jwt-secret-file")
		}
		return nil, nil
	}
	if (c.Keys != nil || c.JWKS != "") && (c.Issuer == "" || c.Audience == "") {
		return nil, usagef("serve: --jwks and --jwt-keys need --jwt-issuer and --jwt-audience")
	}
	if c.Issuer == "" {
		c.Issuer = defaultIssuer
	}
	if c.Audience == "" {
		c.Audience = defaultAudience
	}
	j, err := gateway.NewJWT(c)
	if err != nil {
		return nil, usagef("serve: tokens of the gateway: %w", err)
	}
	return j, nil
}

func staticTokens(path string) (gateway.Authenticator, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fileError(err)
	}
	defer func() { _ = f.Close() }()
	list, err := gateway.ReadTokens(f)
	if err != nil {
		return nil, err
	}
	return gateway.StaticTokens(list...)
}
