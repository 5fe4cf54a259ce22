package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus/gateway"
)

const devSecret = "0123456789abcdef0123456789abcdef"

func TestTokenMint(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(devSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := gateway.NewJWT(gateway.JWTConfig{Issuer: "jetbus", Audience: "jetbus", Secret: []byte(devSecret)})
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Fields("token mint --subject ann --scope topic:read:u.{sub}.> --scope ops:read")
	for name, got := range map[string]result{
		"from a file":          command(t, "", append(args, "--secret-file", file)...),
		"from the environment": commandEnv(t, map[string]string{"JETBUS_JWT_SECRET": devSecret}, "", args...),
	} {
		who, err := auth.Authenticate(t.Context(), strings.TrimSpace(got.out))
		if got.code != 0 || got.errOut != "" || err != nil || who.Subject != "ann" || !who.Scopes.Allow(gateway.TopicRead, "u.ann.x") || !who.Scopes.Allow(gateway.OpsRead, "") {
			t.Errorf("%s: %+v: %+v, %v", name, got, who, err)
		}
	}
	for _, line := range []string{
		"--scope ops:read",
		"--subject ann",
		"--subject ann --scope topic:read",
		"--subject a.b --scope topic:read:{sub}",
		"--subject ann --scope ops:read --ttl 0s",
		"--subject ann --scope ops:read --ttl 20000h",
		"--subject ann --scope ops:read --issuer=",
		"--subject ann --scope ops:read --secret-file " + file + ".none",
		"--subject ann --scope ops:read more",
	} {
		got := commandEnv(t, map[string]string{"JETBUS_JWT_SECRET": devSecret}, "", append([]string{"token", "mint"}, strings.Fields(line)...)...)
		if got.code != exitUsage || got.out != "" || strings.Contains(got.errOut, devSecret) {
			t.Errorf("%s: %+v", line, got)
		}
	}
	for _, env := range []map[string]string{nil, {"JETBUS_JWT_SECRET": "secret-of-few-bytes"}} {
		if got := commandEnv(t, env, "", args...); got.code != exitUsage || strings.Contains(got.errOut, "secret-of-few-bytes") {
			t.Errorf("%v: %+v", env, got)
		}
	}
}
