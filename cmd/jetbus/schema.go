package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// schemaFlags are the flags that the schema commands share.
type schemaFlags struct{ output, bucket string }

func newSchema(a *app) *cobra.Command {
	f := &schemaFlags{}
	cmd := &cobra.Command{
		Use:     "schema",
		Aliases: []string{"schemas"},
		Short:   "List, register, compare and configure the schemas of topics",
		Long: `The registry keeps the JSON Schemas of topics as numbered versions. A new version is
let in if it is proved to be compatible with those before it, by the level and the
model of its topic. What is refused comes with a value that shows why, where there is
one, and the exit code is 4.

Without a command it lists the topics that have a schema.`,
		Example: `  jetbus schema ls orders.created
  jetbus schema register orders.created order.json
  jetbus schema check old.json new.json
  jetbus schema check --topic orders.created order.json
  jetbus schema validate orders.created payload.json
  jetbus schema config orders.created --level full_transitive --model declared
  jetbus schema usage orders.created --since 1h`,
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listSchemaTopics(cmd, f, false) },
	}
	flags := cmd.PersistentFlags()
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or ndjson")
	flags.StringVar(&f.bucket, "bucket", "SCHEMAS", "key-value bucket of the registry")
	rm, export := newSchemaRemove(a, f), newSchemaExport(a, f)
	inWords(rm, export)
	cmd.AddCommand(
		newSchemaList(a, f), newSchemaGet(a, f), newSchemaRegister(a, f), newSchemaCheck(a, f), newSchemaDiff(a, f),
		newSchemaValidate(a, f), newSchemaConfig(a, f), newSchemaUsage(a, f), rm, export, newSchemaImport(a, f),
	)
	return cmd
}

// withRegistry connects to the server that the flags name, runs f on the registry
// there and closes both.
func (a *app) withRegistry(ctx context.Context, flags *schemaFlags, f func(*registry.Registry) error) error {
	if err := checkOutput(flags.output); err != nil {
		return err
	}
	return withOpened(ctx, a, f, func(nc *nats.Conn) (*registry.Registry, error) {
		return registry.Open(ctx, nc, registry.Config{Bucket: flags.bucket, Timeout: a.timeout})
	})
}

// withBoth is withBus and withRegistry.
func (a *app) withBoth(ctx context.Context, flags *schemaFlags, f func(*adapter.Bus, *registry.Registry) error) error {
	return a.withBus(ctx, func(bus *adapter.Bus) error {
		return a.withRegistry(ctx, flags, func(r *registry.Registry) error { return f(bus, r) })
	})
}

func newSchemaList(a *app, f *schemaFlags) *cobra.Command {
	var deleted bool
	cmd := &cobra.Command{
		Use:   "ls [TOPIC]",
		Short: "List the versions of a topic's schema, or the topics that have one",
		Example: `  jetbus schema ls
  jetbus schema ls orders.created --deleted`,
		Args: between(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.listSchemaTopics(cmd, f, deleted)
			}
			return a.listVersions(cmd, f, args[0], deleted)
		},
	}
	cmd.Flags().BoolVar(&deleted, "deleted", false, "also what is deleted")
	return cmd
}

// schemaTopic is a topic that has a schema, as ls prints it for programs.
type schemaTopic struct {
	Topic    string            `json:"topic"`
	Versions int               `json:"versions"` // that are listed
	Latest   *registry.Version `json:"latest,omitempty"`
	Settings registry.Settings `json:"settings"`
}

func (a *app) listSchemaTopics(cmd *cobra.Command, f *schemaFlags, deleted bool) error {
	return a.withRegistry(cmd.Context(), f, func(r *registry.Registry) error {
		names, err := r.Topics(cmd.Context(), deleted)
		if err != nil {
			return err
		}
		list := []schemaTopic{}
		for _, name := range names {
			t := schemaTopic{Topic: name}
			versions, err := r.Versions(cmd.Context(), name, deleted)
			if err != nil && !errors.Is(err, registry.ErrNoSchema) {
				return err
			}
			t.Versions = len(versions)
			if latest, err := r.Latest(cmd.Context(), name); err == nil {
				t.Latest = &latest
			}
			if t.Settings, err = r.Settings(cmd.Context(), name); err != nil {
				return err
			}
			list = append(list, t)
		}
		if f.output != "table" {
			return writeValues(cmd.OutOrStdout(), f.output, list)
		}
		if len(list) == 0 {
			_, err = fmt.Fprintln(cmd.ErrOrStderr(), "no topic has a schema; register one with jetbus schema register")
			return err
		}
		rows := [][]string{{"TOPIC", "LATEST", "VERSIONS", "LEVEL", "MODEL", "MODE", "REGISTERED", "BY"}}
		for _, t := range list {
			latest, at, by := "-", "-", "-"
			if t.Latest != nil {
				latest, at, by = strconv.Itoa(t.Latest.Number), moment(t.Latest.Created), or(t.Latest.By, "-")
			}
			rows = append(rows, []string{t.Topic, latest, count(t.Versions), string(t.Settings.Level), string(t.Settings.Model), string(t.Settings.Mode), at, by})
		}
		_, err = io.WriteString(cmd.OutOrStdout(), table(rows))
		return err
	})
}

func (a *app) listVersions(cmd *cobra.Command, f *schemaFlags, topic string, deleted bool) error {
	return a.withRegistry(cmd.Context(), f, func(r *registry.Registry) error {
		list, err := r.Versions(cmd.Context(), topic, deleted)
		if err == nil && len(list) == 0 {
			err = fmt.Errorf("versions of %s: %w", topic, registry.ErrNoSchema)
		}
		if err != nil {
			return err
		}
		if f.output != "table" {
			return writeValues(cmd.OutOrStdout(), f.output, list)
		}
		rows := [][]string{{"VERSION", "ID", "FINGERPRINT", "ADMITTED", "LEVEL", "MODEL", "REGISTERED", "BY", "STATE"}}
		for _, v := range list {
			rows = append(rows, []string{
				strconv.Itoa(v.Number), strconv.Itoa(v.ID), v.Fingerprint[:min(12, len(v.Fingerprint))], string(v.Admission),
				or(string(v.Level), "-"), or(string(v.Model), "-"), moment(v.Created), or(v.By, "-"), versionState(v),
			})
		}
		_, err = io.WriteString(cmd.OutOrStdout(), table(rows))
		return err
	})
}

func versionState(v registry.Version) string {
	switch {
	case v.Erased:
		return "erased"
	case !v.Live():
		return "deleted"
	}
	return "live"
}

func newSchemaGet(a *app, f *schemaFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "get TOPIC [VERSION]",
		Short: "Print a topic's schema as it was registered, by default the latest",
		Long: `Prints a topic's schema as it was registered, by default the latest version. With -o
json or ndjson it prints all that is known of the version.`,
		Example: `  jetbus schema get orders.created
  jetbus schema get orders.created 2 -o json`,
		Args: between(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := 0
			if len(args) == 2 && args[1] != "latest" {
				var err error
				if n, err = parseVersion(args[1]); err != nil {
					return err
				}
			}
			return a.getSchema(cmd, f, args[0], n)
		},
	}
}

// parseVersion reads the number of a version.
func parseVersion(s string) (int, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "v"), 10, 31)
	if err != nil || n == 0 {
		return 0, usagef("%q is no version: use a number from 1", s)
	}
	return int(n), nil //nolint:gosec // 31 bits
}

// getSchema prints a version; 0 is the latest.
func (a *app) getSchema(cmd *cobra.Command, f *schemaFlags, topic string, n int) error {
	return a.withRegistry(cmd.Context(), f, func(r *registry.Registry) error {
		v, err := versionOf(cmd.Context(), r, topic, n)
		if err != nil {
			return err
		}
		if f.output != "table" {
			return writeValue(cmd.OutOrStdout(), f.output, v)
		}
		if v.Erased {
			return fmt.Errorf("version %d of %s: %w", n, topic, registry.ErrErased)
		}
		return writeText(cmd.OutOrStdout(), v.Text)
	})
}

func versionOf(ctx context.Context, r *registry.Registry, topic string, n int) (registry.Version, error) {
	if n == 0 {
		return r.Latest(ctx, topic)
	}
	return r.Version(ctx, topic, n)
}

// writeText writes a text that others made: as it is, but on a terminal what is
// not printable as escapes.
func writeText(w io.Writer, text string) error {
	if _, ok := terminalOf(w); ok {
		text = printableLines(text)
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// printableLines is printable for a text of several lines.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = printable(strings.ReplaceAll(line, "\t", "    "))
	}
	return strings.Join(lines, "\n")
}

// maxSchemaFile bounds what is read of a file; what a schema may have is less.
const maxSchemaFile = 1 << 20

// readSchema reads a schema from a file, or from standard input if its name is "-".
func readSchema(cmd *cobra.Command, name string) (string, error) {
	text, err := readInput(cmd, name, maxSchemaFile, schema.ErrTooLarge)
	return string(text), err
}

// readInput reads a file of at most that many bytes, or standard input if its name is "-". tooLarge is the
// error for more bytes. An interrupt ends the read.
func readInput(cmd *cobra.Command, name string, most int, tooLarge error) ([]byte, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, usagef("%w", fileError(err))
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	}
	text, err := readUntilDone(cmd.Context(), func() ([]byte, error) { return io.ReadAll(io.LimitReader(in, int64(most)+1)) })
	switch {
	case cmd.Context().Err() != nil:
		return nil, fmt.Errorf("interrupted before the end of %s: nothing was done", inputName(name))
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", inputName(name), err)
	case len(text) > most:
		return nil, fmt.Errorf("read %s: %w: it has more than %s", name, tooLarge, size(int64(most)))
	}
	return text, nil
}

// checkTopic refuses what is no topic before anything is read or asked.
func checkTopic(topic string) error { return jetbus.ValidTopic(topic) }
