package main

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, of jetbus and of what it is built with",
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version(debug.ReadBuildInfo()))
			return err
		},
	}
}

// version describes a build in one line.
func version(info *debug.BuildInfo, ok bool) string {
	if !ok {
		return "jetbus (unknown build)"
	}
	parts := []string{"jetbus", cmp.Or(info.Main.Version, "(devel)")}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			parts = append(parts, "commit", s.Value[:min(12, len(s.Value))])
		}
	}
	parts = append(parts, info.GoVersion)
	for _, module := range []string{"github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go"} {
		if i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == module }); i >= 0 {
			parts = append(parts, module, info.Deps[i].Version)
		}
	}
	return strings.Join(parts, " ")
}
