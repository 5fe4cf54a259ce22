package main

import (
	"errors"
	"flag"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
	"github.com/seed-63e9a637/jetbus/cmd/topiclint/drive"
)

func newLint() *cobra.Command {
	var c drive.Config
	cmd := &cobra.Command{
		Use:   "lint [PACKAGE...]",
		Short: "Check Go programs that use the bus",
		Long: `Checks the source of Go programs that use JetBus, as topiclint does: names of topics,
groups and headers, what becomes of the errors of publishing, what handlers do, and
what payloads are. The packages default to ./... of the module around; no server is
needed. It exits with 1 when it finds something.

What topics there are is what the source declares, or --catalog says, in JSON:

  {"topics": [{"name": "orders.created", "schema": 3, "partitions": 8,
    "compacted": true, "deprecated": "use orders.placed", "payload": "example.com/orders.Created"}]}`,
		Example: `  jetbus lint
  jetbus lint --catalog topics.json --format github ./...
  jetbus lint --baseline known.json --write-baseline`,
		Args: between(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Patterns = args
			err := drive.Run(cmd.Context(), c, cmd.OutOrStdout())
			if errors.Is(err, drive.ErrUsage) || errors.Is(err, check.ErrInvalidOption) {
				return usagef("%w", err)
			}
			return err
		},
	}
	flags := flag.NewFlagSet("lint", flag.ContinueOnError)
	c.Register(flags)
	cmd.Flags().AddGoFlagSet(flags)
	return cmd
}
