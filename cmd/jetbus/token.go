package main

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/gateway"
)

// Defaults of tokens for development, and of the gateway that takes them.
const (
	defaultIssuer   = "jetbus"
	defaultAudience = "jetbus"
	secretEnv       = "JETBUS_JWT_SECRET"
	previousEnv     = "JETBUS_JWT_PREVIOUS_SECRET"
)

func newToken(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make tokens for the gateway, for development",
		Args:  noCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenMint(a))
	return cmd
}

func newTokenMint(a *app) *cobra.Command {
	var o gateway.MintOptions
	var file string
	cmd := &cobra.Command{
		Use:   "mint",
		Short: "Make a token for the gateway, for development",
		Long: `Prints a JSON Web Token, signed with HS256, that a gateway with the same secret, issuer
and audience takes. Nobody can revoke it, so let it end soon; in production tokens are an
identity provider's (see jetbus serve --jwks).

The secret is 32 bytes or more, in a file or in ` + secretEnv + `; it is not printed. A line
end behind it is not part of it. Scopes are permissions with patterns, "*" stands for one
token of a name, ">" for the rest, {sub} for the subject:

  topic:read:orders.>      read topics, and subscribe to them without a group
  topic:write:orders.>     publish
  group:join:billing       take events as a member of a group; needs topic:read, too
  group:seek:billing       move a group
  dlq:read:orders.>        read dead letters of topics; dlq:replay to replay and purge them
  schema:read:orders.>     read schemas; schema:write to register, configure and delete them
  ops:read, ops:admin      see, and change, all topics and groups`,
		Example: `  head -c 32 /dev/urandom | base64 > secret
  jetbus token mint --secret-file secret --subject ann --scope 'topic:read:>' --scope 'topic:write:orders.*'
  jetbus token mint --secret-file secret --subject tab --scope 'topic:read:user.{sub}.>' --ttl 10m`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Subject == "" || len(o.Scopes) == 0 {
				return usagef("token mint: name whom it is for with --subject, and what it allows with --scope")
			}
			var err error
			if o.Secret, err = a.secret(file, secretEnv); err != nil {
				return err
			}
			if o.Secret == nil {
				return usagef("token mint: name the file of the secret with --secret-file, or set %s", secretEnv)
			}
			token, err := gateway.Mint(o)
			if err != nil {
				return &usageError{err}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "secret-file", "", "file with the secret (env "+secretEnv+" has the secret itself)")
	f.StringVar(&o.Subject, "subject", "", "whom it is for (required)")
	f.StringArrayVar(&o.Scopes, "scope", nil, "what it allows, topic:read:orders.>; may be repeated (required)")
	f.DurationVar(&o.TTL, "ttl", time.Hour, "how long it lasts")
	f.StringVar(&o.Issuer, "issuer", defaultIssuer, "the claim iss")
	f.StringVar(&o.Audience, "audience", defaultAudience, "the claim aud")
	return cmd
}

// secret reads a secret from a file, or from the environment where no file is named; nil if
// there is none. One line end behind it is not part of it.
func (a *app) secret(file, env string) ([]byte, error) {
	if file == "" {
		if s := a.getenv(env); s != "" {
			return []byte(s), nil
		}
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, usagef("read the secret: %w", fileError(err))
	}
	return bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r")), nil
}
