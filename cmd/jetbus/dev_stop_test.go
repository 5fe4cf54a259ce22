package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestAgainLine(t *testing.T) {
	for args, want := range map[string]string{
		"":                       "",
		"--plain --for 5s":       " --plain",
		"--plain=false --dir /a": " --dir /a --plain=false",
		"--prefix a.b --listen 127.0.0.1:4333 --dir /a":                                                           " --dir /a --listen 127.0.0.1:4333 --prefix a.b",
		"--dir=it's --mongo mongodb://h/":                                                                         ` --dir 'it'\''s' --mongo mongodb://h/`,
		"--mongo mongodb://u:secret@h:1/mine?replicaSet=rs0&tlsCertificateKeyFilePassword=secret":                 " --mongo 'mongodb://u@h:1/mine?replicaSet=rs0'",
		"--mongo mongodb://u:secret@h:1,i:2/mine":                                                                 " --mongo mongodb://u@h:1,i:2/mine",
		"--mongo mongodb://CN=c@h/d?authMechanism=MONGODB-X509;tlsCertificateKeyFilePassword=secret;replicaset=r": " --mongo 'mongodb://CN=c@h/d?authMechanism=MONGODB-X509&replicaset=r'",
		"--mongo mongodb://CN=c@h/d?tlsCertificateKeyFilePassword=s@cret":                                         " --mongo 'the server of --mongo'",
		"--mongo mongodb://u:s@cret@h":                                                                            " --mongo mongodb://u@h/",
		"--mongo mongodb://u:s/cret@h":                                                                            " --mongo mongodb://u@h/",
		"--mongo mongodb://u:s?cret@h":                                                                            " --mongo 'the server of --mongo'",
		"--mongo u:secret@h":                                                                                      " --mongo 'the server of --mongo'",
	} {
		cmd := &cobra.Command{Use: "dev"}
		cmd.Flags().Bool("plain", false, "")
		for _, name := range []string{"for", "dir", "mongo", "listen", "prefix"} {
			cmd.Flags().String(name, "", "")
		}
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		_, got, _ := strings.Cut(againLine(cmd), " dev")
		if got != want {
			t.Errorf("after %q: %q, want %q", args, got, want)
		}
	}
}
