package main

import (
	"io"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	defaultServer = "nats://127.0.0.1:4222"
	defaultPrefix = "ev"
)

// app is one run of the command: its environment and the flags that all
// subcommands share.
type app struct {
	getenv func(string) string
	stderr func() io.Writer

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

Exit codes: 0 done, 1 failure, 2 wrong command line, 3 not found, 4 conflict, 5 partly done.`,
		Example: `  jetbus dev
  jetbus topics
  jetbus sub process.state
  jetbus pub orders.created '{"id": 7}' --key 7`,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(debug.ReadBuildInfo()),
	}
	a.stderr = root.ErrOrStderr
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetUsageTemplate(usageTemplate(root.UsageTemplate()))
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see %s --help", flagError(err), cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&a.server, "server", "", "NATS server, or several separated by commas (env NATS_URL; default "+defaultServer+")")
	f.StringVar(&a.user, "user", "", "user at the server (env JETBUS_USER)")
	f.StringVar(&a.password, "password", "", "password of the user (env JETBUS_PASSWORD, which the process list does not show)")
	f.StringVar(&a.token, "token", "", "token instead of user and password (env JETBUS_TOKEN)")
	f.StringVar(&a.creds, "creds", "", "file with a NATS credential (JWT and seed)")
	f.StringVar(&a.tlsCA, "tls-ca", "", "file with certificates of authorities to trust, PEM")
	f.StringVar(&a.prefix, "prefix", defaultPrefix, "first token of the bus's subjects")
	f.DurationVar(&a.timeout, "timeout", 10*time.Second, "bound of each request")
	dev, serve, token, about := newDev(a), newServe(a), newToken(a), newVersion()
	alone(dev, serve, token, about)
	root.AddCommand(dev, serve, newPub(a), newSub(a), newTopics(a), newGroups(a), newDLQ(a), newSchema(a), newBackfill(a), newProject(a), newChangefeed(a), newOutbox(a), token, newLint(a), about)
	return root
}

// usageTemplate is cobra's template without the flags that all commands share, which the help
// of jetbus itself explains.
func usageTemplate(all string) string {
	const shared = "\n\nGlobal Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}"
	return strings.Replace(all, shared, `{{if ne (index .Annotations "`+connection+`") "none"}}

The server and how to log in: --server, --user, --password, --token, --creds, --tls-ca, --prefix,
--timeout; see {{.Root.CommandPath}} --help.{{end}}`, 1)
}

// connection is the annotation of commands that connect to no server: "none".
const connection = "connection"

// alone marks commands that connect to no server: they and what is below them refuse the flags
// that commands share, but for those of which they have their own.
func alone(commands ...*cobra.Command) {
	for _, cmd := range commands {
		for _, c := range append(cmd.Commands(), cmd) {
			c.Annotations = map[string]string{connection: "none"}
		}
		cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
			var shared []string
			cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { shared = append(shared, f.Name) })
			return refuse(cmd, shared...)
		}
	}
}

// addCompletion adds the command that writes scripts for shells, as one that connects to no
// server; cobra would add it by itself. It writes to what root writes to now.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Args, cmd.RunE = noCommand, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			alone(cmd)
		}
	}
}

// refuse is an error where a flag that commands share was given to a command that does not use it.
// What the environment says is for other commands.
func refuse(cmd *cobra.Command, names ...string) error {
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return usagef("--%s says nothing to %s; see %s --help", name, cmd.CommandPath(), cmd.CommandPath())
		}
	}
	return nil
}

// inWords marks commands that say in words what they did, or write a format of their own:
// --output, which the commands beside them have, says nothing to them.
func inWords(commands ...*cobra.Command) {
	for _, cmd := range commands {
		do := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := refuse(cmd, "output"); err != nil {
				return err
			}
			return do(cmd, args)
		}
	}
}

// env returns a flag's value, or that of an environment variable.
func (a *app) env(flag, name string) string {
	if flag != "" {
		return flag
	}
	return a.getenv(name)
}
