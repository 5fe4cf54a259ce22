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
		"--dir=it's --mongo mongodb://u:secret@h/": ` --dir 'it'\''s' --mongo mongodb://h/`,
	} {
		cmd := &cobra.Command{Use: "dev"}
		cmd.Flags().Bool("plain", false, "")
		for _, name := range []string{"for", "dir", "mongo"} {
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
