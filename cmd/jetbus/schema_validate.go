package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry"
)

func newSchemaValidate(a *app, f *schemaFlags) *cobra.Command {
	version := ""
	cmd := &cobra.Command{
		Use:   "validate TOPIC FILE|-",
		Short: "Validate a payload against a topic's schema",
		Long: `Validates the payload of one event against a version of a topic's schema, as publishing it
would, and stores nothing. "-" is standard input. The topic's model applies: under the
declared model, properties that the schema does not declare are violations.

The exit code is 1 if the payload does not follow the schema, and 3 if the topic has no
schema, or no such version. A deleted version counts as missing.`,
		Example: `  jetbus schema validate orders.created payload.json
  jetbus schema validate orders.created payload.json --version 1
  jq .payload event.json | jetbus schema validate orders.created - -o json`,
		Args: exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := 0
			if version != "" && version != "latest" {
				var err error
				if n, err = parseVersion(version); err != nil {
					return err
				}
			}
			return a.validatePayload(cmd, f, args[0], args[1], n)
		},
	}
	cmd.Flags().StringVar(&version, "version", "", "version to validate against (default the latest)")
	return cmd
}

// validationView is the result of a validation as it is printed for programs.
type validationView struct {
	Topic      string   `json:"topic"`
	Version    int      `json:"version"`
	Valid      bool     `json:"valid"`
	Violations []string `json:"violations,omitempty"`
}

// validatePayload prints whether a payload follows version n of a topic's schema; 0 is the latest.
func (a *app) validatePayload(cmd *cobra.Command, f *schemaFlags, topic, name string, n int) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	payload, err := readInput(cmd, name, maxPayload, jetbus.ErrPayloadTooLarge)
	if err != nil {
		return err
	}
	return a.withRegistry(cmd.Context(), f, func(r *registry.Registry) error {
		if n == 0 { // so that the result names a version
			latest, err := r.Latest(cmd.Context(), topic)
			if err != nil {
				return err
			}
			n = latest.Number
		}
		err := r.Validate(cmd.Context(), topic, payload, n)
		invalid, _ := errors.AsType[*registry.SchemaError](err)
		if err != nil && invalid == nil {
			return err
		}
		return writeValidation(cmd, f.output, inputName(name), topic, n, invalid)
	})
}

// writeValidation prints the result of a validation. It returns an error if the payload is not valid.
func writeValidation(cmd *cobra.Command, output, name, topic string, n int, invalid *registry.SchemaError) error {
	view := validationView{Topic: topic, Version: n, Valid: invalid == nil}
	if invalid != nil {
		for _, v := range invalid.Violations {
			view.Violations = append(view.Violations, v.String())
		}
	}
	var err error
	switch {
	case output != "table":
		err = writeValue(cmd.OutOrStdout(), output, view)
	case view.Valid:
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s follows version %d of the schema of %s\n", printable(name), n, topic)
	default:
		_, err = io.WriteString(cmd.OutOrStdout(), printableLines(strings.Join(view.Violations, "\n")+"\n"))
	}
	if err == nil && invalid != nil {
		err = fmt.Errorf("%s does not follow version %d of the schema of %s", name, n, topic)
	}
	return err
}
