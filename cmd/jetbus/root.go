package main

import (
	"time"

	"github.com/spf13/cobra"
)

const defaultServer = "nats://127.0.0.1:4222"

// app is one run of the command: its environment and the flags that all
// subcommands share.
type app struct {
	getenv func(string) string

	server, user, password, token string
	creds, tlsCA, prefix          string
	timeout                       time.Duration
}

func newRoot(getenv func(string) string) *cobra.Command {
	a := &app{getenv: getenv}
	root := &cobra.Command{
		Use:   "jetbus",
		Short: "A durable event bus on NATS JetStream",
		Long: `JetBus is a durable event bus on NATS JetStream.

  jetbus dev         runs a broker on this machine, with real events in it
  jetbus serve       runs a broker for a team
  jetbus pub         publishes events
  jetbus sub         reads topics
  jetbus topics      lists, declares and removes topics
  jetbus groups      lists groups, how far behind they are, and who has which partition
  jetbus dlq         lists, replays and purges events that could not be processed
  jetbus schema      keeps the schemas of topics, and proves that new ones are compatible
  jetbus backfill    copies a topic's events into another, in a newer version of the schema
  jetbus project     keeps a MongoDB collection up to date with a topic
  jetbus changefeed  publishes what changes in a MongoDB collection to a topic
  jetbus outbox      publishes what services have put into an outbox in their database
  jetbus token       makes tokens for the gateway, for development
  jetbus lint        checks Go programs that use the bus

Exit codes: 0 done, 1 failure, 2 wrong command line, 3 not found, 4 conflict, 5 partly done.`,
		Example: `  jetbus dev
  jetbus topics
  jetbus sub process.state
  jetbus pub orders.created '{"id": 7}' --key 7`,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see %s --help", err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&a.server, "server", "", "NATS server, or several separated by commas (env NATS_URL; default "+defaultServer+")")
	f.StringVar(&a.user, "user", "", "user at the server (env JETBUS_USER)")
	f.StringVar(&a.password, "password", "", "password of the user (env JETBUS_PASSWORD, which the process list does not show)")
	f.StringVar(&a.token, "token", "", "token instead of user and password (env JETBUS_TOKEN)")
	f.StringVar(&a.creds, "creds", "", "file with a NATS credential (JWT and seed)")
	f.StringVar(&a.tlsCA, "tls-ca", "", "file with certificates of authorities to trust, PEM")
	f.StringVar(&a.prefix, "prefix", "ev", "first token of the bus's subjects")
	f.DurationVar(&a.timeout, "timeout", 10*time.Second, "bound of each request")
	root.AddCommand(newDev(a), newServe(a), newPub(a), newSub(a), newTopics(a), newGroups(a), newDLQ(a), newSchema(a), newBackfill(a), newProject(a), newChangefeed(a), newOutbox(a), newToken(a), newLint(), newVersion())
	return root
}

// env returns a flag's value, or that of an environment variable.
func (a *app) env(flag, name string) string {
	if flag != "" {
		return flag
	}
	return a.getenv(name)
}
