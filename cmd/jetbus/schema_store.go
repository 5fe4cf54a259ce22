package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/registry"
)

func newSchemaRemove(a *app, f *schemaFlags) *cobra.Command {
	var o registry.DeleteOptions
	var yes bool
	cmd := &cobra.Command{
		Use:     "rm TOPIC [VERSION]",
		Aliases: []string{"delete"},
		Short:   "Delete a version of a topic's schema, or all of them",
		Long: `Deletes a version of a topic's schema, or all of them. A deleted version is no longer
the latest and not compared with, but events of the past can still be read with it. With
--hard the text of what is deleted already goes, too; the number is not used again.`,
		Example: `  jetbus schema rm orders.created 3 --yes
  jetbus schema rm orders.created 3 --hard --yes`,
		Args: between(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := 0
			if len(args) == 2 {
				var err error
				if n, err = parseVersion(args[1]); err != nil {
					return err
				}
			}
			return a.removeSchema(cmd, f, args[0], n, o, yes)
		},
	}
	cmd.Flags().BoolVar(&o.Permanent, "hard", false, "erase the text of what is deleted already")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	return cmd
}

// removeSchema deletes a version; 0 is all of them.
func (a *app) removeSchema(cmd *cobra.Command, f *schemaFlags, topic string, n int, o registry.DeleteOptions, yes bool) error {
	return a.withRegistry(cmd.Context(), f, func(r *registry.Registry) error {
		versions, err := r.Versions(cmd.Context(), topic, o.Permanent)
		if err != nil {
			return err
		}
		versions = slices.DeleteFunc(slices.Clone(versions), func(v registry.Version) bool { return v.Erased || n != 0 && v.Number != n })
		verb := "deleted"
		if o.Permanent {
			verb = "erased"
		}
		if !yes {
			what := plural(len(versions), "version") + " of " + topic
			if n != 0 {
				what = fmt.Sprintf("version %d of %s", n, topic)
			}
			if len(versions) == 0 {
				return fmt.Errorf("%s: %w", what, registry.ErrNoVersion)
			}
			return usagef("%s would be %s; add --yes to do it (see %s --help)", what, verb, cmd.CommandPath())
		}
		var done []int
		if n != 0 {
			if _, err = r.Delete(cmd.Context(), topic, n, o); err == nil {
				done = []int{n}
			}
		} else {
			done, err = r.DeleteTopic(cmd.Context(), topic, o)
		}
		if err != nil && len(done) > 0 {
			return &partialError{fmt.Errorf("%s %s, then: %w", verb, numbers(done), err)}
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s of %s\n", verb, numbers(done), topic)
		return err
	})
}

// numbers names versions: "version 3", "versions 3, 2, 1".
func numbers(list []int) string {
	var texts []string
	for _, n := range list {
		texts = append(texts, strconv.Itoa(n))
	}
	switch len(texts) {
	case 0:
		return "no version"
	case 1:
		return "version " + texts[0]
	}
	return "versions " + strings.Join(texts, ", ")
}

func newSchemaExport(a *app, f *schemaFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "export [FILE]",
		Short: "Write the whole registry, one JSON object a line",
		Long: `Writes the whole registry, one JSON object a line: versions with their numbers, deleted
ones among them, and settings. jetbus schema import reads it.`,
		Example: `  jetbus schema export schemas.ndjson
  jetbus schema export | jetbus schema import - --server nats://other:4222`,
		Args: between(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withRegistry(cmd.Context(), f, func(r *registry.Registry) error {
				write := func(w io.Writer) error { return r.Export(cmd.Context(), w) }
				if len(args) == 0 || args[0] == "-" {
					return write(cmd.OutOrStdout())
				}
				return replaceFile(args[0], write)
			})
		},
	}
}

// replaceFile writes a file, which is there only when all of it is.
func replaceFile(name string, write func(io.Writer) error) (err error) {
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return usagef("%w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err := errors.Join(write(file), file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}

func newSchemaImport(a *app, f *schemaFlags) *cobra.Command {
	var o registry.ImportOptions
	cmd := &cobra.Command{
		Use:   "import FILE|-",
		Short: "Read what jetbus schema export wrote into the registry",
		Long: `Reads what jetbus schema export wrote. What is there already and equal is passed over;
if anything differs, nothing is written and the exit code is 4. An import that broke off
can be repeated.`,
		Example: `  jetbus schema import schemas.ndjson --dry-run
  jetbus schema import schemas.ndjson`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.importSchemas(cmd, f, args[0], o) },
	}
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "store nothing, say what would happen")
	return cmd
}

func (a *app) importSchemas(cmd *cobra.Command, f *schemaFlags, name string, o registry.ImportOptions) error {
	in := cmd.InOrStdin()
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return usagef("%w", fileError(err))
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	}
	return a.withRegistry(cmd.Context(), f, func(r *registry.Registry) error {
		report, err := r.Import(cmd.Context(), in, o)
		if err != nil && report.Written > 0 {
			return &partialError{fmt.Errorf("%s written, then: %w; repeat it to go on", plural(report.Written, "record"), err)}
		}
		if err != nil {
			return err
		}
		if f.output != "table" {
			return writeValue(cmd.OutOrStdout(), f.output, struct {
				Written int  `json:"written"`
				Equal   int  `json:"equal"`
				DryRun  bool `json:"dry_run,omitempty"`
			}{report.Written, report.Equal, o.DryRun})
		}
		verb := "written"
		if o.DryRun {
			verb = "would be written"
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s, %s there already\n", plural(report.Written, "record"), verb, count(report.Equal))
		return err
	})
}
