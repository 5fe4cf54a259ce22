package main

import (
	"context"
	"errors"
	"flag"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
	"github.com/seed-63e9a637/jetbus/cmd/topiclint/drive"
	"github.com/seed-63e9a637/jetbus/registry"
)

func newLint(a *app) *cobra.Command {
	var c drive.Config
	f := schemaFlags{output: "table"}
	cmd := &cobra.Command{
		Use:   "lint [PACKAGE...]",
		Short: "Check Go programs that use the bus",
		Long: `Checks the source of Go programs that use JetBus, as topiclint does: names of topics,
groups and headers, what becomes of the errors of publishing, what handlers do, and
what payloads are. The packages default to ./... of the module around. It exits with 1
when it finds something.

Each topic that the source declares must have a schema: one that the source registers,
or one in the registry of --server. Without --server no server is needed, and NATS_URL
has no effect. --catalog reads the schemas from a file that jetbus schema export wrote.
A comment where the topic is declared exempts it:

  var Frames = jetbus.Topic[[]byte]{Name: "camera.frames"} //nolint:topiclint // JPEG has no schema

--catalog also reads a list of all topics, in JSON:

  {"topics": [{"name": "orders.created", "schema": 3, "partitions": 8,
    "compacted": true, "deprecated": "use orders.placed", "payload": "example.com/orders.Created"}]}`,
		Example: `  jetbus lint
  jetbus lint --server nats://nats.example.com:4222
  jetbus lint --catalog schemas.ndjson --format github ./...
  jetbus lint --baseline known.json --write-baseline`,
		Args: between(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Patterns = args
			return a.lint(cmd, &f, c)
		},
	}
	flags := flag.NewFlagSet("lint", flag.ContinueOnError)
	c.Register(flags)
	cmd.Flags().AddGoFlagSet(flags)
	cmd.Flags().StringVar(&f.bucket, "bucket", "SCHEMAS", "key-value bucket of the registry at --server")
	return cmd
}

// lint checks packages. It connects to a server only if --server is given.
func (a *app) lint(cmd *cobra.Command, f *schemaFlags, c drive.Config) error {
	unused := []string{"prefix"}
	if a.server == "" {
		unused = append(unused, "user", "password", "token", "creds", "tls-ca", "timeout", "bucket")
	}
	err := refuse(cmd, unused...)
	if err == nil {
		err = usageOfLint(c.Valid())
	}
	if err == nil && a.server != "" {
		if c.Catalog != "" {
			return usagef("--server with --catalog: choose one")
		}
		err = a.withRegistry(cmd.Context(), f, func(r *registry.Registry) (err error) {
			c.Topics, err = schemaCatalog(cmd.Context(), r)
			return err
		})
	}
	if err != nil {
		return err
	}
	return usageOfLint(drive.Run(cmd.Context(), c, cmd.OutOrStdout()))
}

func usageOfLint(err error) error {
	if errors.Is(err, drive.ErrUsage) || errors.Is(err, check.ErrInvalidOption) {
		return usagef("%w", err)
	}
	return err
}

// schemaCatalog returns the topics of a registry that have a schema, with their latest versions.
func schemaCatalog(ctx context.Context, r *registry.Registry) (*check.Catalog, error) {
	names, err := r.Topics(ctx, false)
	if err != nil {
		return nil, err
	}
	c := &check.Catalog{Partial: true}
	for _, name := range names {
		latest, err := r.Latest(ctx, name)
		if errors.Is(err, registry.ErrNoSchema) { // deleted in the meantime
			continue
		}
		if err != nil {
			return nil, err
		}
		c.Topics = append(c.Topics, check.Topic{Name: name, Schema: latest.Number})
	}
	return c, nil
}
