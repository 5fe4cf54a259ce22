package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

func newTopicsRemove(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "rm TOPIC",
		Aliases: []string{"delete"},
		Short:   "Remove a topic with all its events and groups",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
				info, err := bus.TopicInfo(cmd.Context(), args[0])
				switch {
				case errors.Is(err, jetbus.ErrNoTopic): // perhaps it is one that another process has adopted, with groups that work
					why := jetbus.ErrNoTopic
					if known, ok := errors.AsType[*jetbus.RemedyError](err); ok {
						why = known.Err
					}
					return fmt.Errorf("delete topic %s: %w", args[0], &jetbus.RemedyError{Err: why, See: "ListTopics"})
				case err != nil:
					return err
				case !yes:
					groups, err := bus.Groups(cmd.Context(), args[0])
					if err != nil {
						return err
					}
					return usagef("%s has %s and %s, which nothing brings back; add --yes to remove it (see jetbus topics rm --help)",
						args[0], plural(info.Events, "event"), plural(len(groups), "group"))
				}
				if err := bus.DeleteTopic(cmd.Context(), args[0]); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %s with %s\n", args[0], plural(info.Events, "event"))
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	return cmd
}
