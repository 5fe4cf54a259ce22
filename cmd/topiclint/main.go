// Command topiclint checks programs that use JetBus: names of topics, groups and
// headers, what becomes of the errors of publishing, what handlers do, and what
// payloads are. Package check says how, topiclint -rules what.
//
//	topiclint ./...
//	topiclint -catalog topics.json -format sarif ./...
//	jetbus schema export schemas.ndjson && topiclint -catalog schemas.ndjson ./...
//	go vet -vettool=$(which topiclint) $(topiclint -vetflags -catalog topics.json) ./...
//
// It exits with 0 when it found nothing, 1 when it found something or could not look,
// and 2 for a wrong command line. As a vettool, all is go vet's; its flags are those of
// the analyzer, with "topiclint." before their names.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
	"github.com/seed-63e9a637/jetbus/cmd/topiclint/drive"
)

func main() {
	if byVet(os.Args[1:]) {
		unitchecker.Main(check.NewFlagged()) // ends the process
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// byVet reports whether go vet has started this program.
func byVet(args []string) bool {
	if len(args) == 0 {
		return false
	}
	return args[0] == "-flags" || strings.HasPrefix(args[0], "-V") || strings.HasSuffix(args[len(args)-1], ".cfg")
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c drive.Config
	var list, vetFlags bool
	flags := flag.NewFlagSet("topiclint", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, "usage: topiclint [flags] [packages]\n\nChecks programs that use JetBus. The packages default to ./...\n\n")
		flags.PrintDefaults()
	}
	c.Register(flags)
	flags.BoolVar(&list, "rules", false, "list the checks, and check nothing")
	flags.BoolVar(&vetFlags, "vetflags", false, "print the flags that go vet needs for the same, and check nothing")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	c.Patterns = flags.Args()
	err := c.Valid()
	switch {
	case err != nil:
	case list:
		err = printRules(stdout)
	case vetFlags:
		err = printVetFlags(stdout, c)
	default:
		err = drive.Run(ctx, c, stdout)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, drive.ErrUsage), errors.Is(err, check.ErrInvalidOption):
		fmt.Fprintf(stderr, "topiclint: %v\n", err)
		return 2
	case !errors.Is(err, drive.ErrFindings):
		fmt.Fprintf(stderr, "topiclint: %v\n", err)
	}
	return 1
}

func printRules(w io.Writer) error {
	for _, r := range check.Rules() {
		by := ""
		if !r.Default {
			by = " (off by default)"
		}
		if _, err := fmt.Fprintf(w, "%s %s%s\n    %s\n", r.ID, r.Name, by, r.Help); err != nil {
			return err
		}
	}
	return nil
}

// printVetFlags prints one line to be put into a command line.
func printVetFlags(w io.Writer, c drive.Config) error {
	var flags []string
	add := func(name, value string) { flags = append(flags, "-"+check.Name+"."+name+"="+value) }
	if c.Checks != "" {
		add("checks", c.Checks)
	}
	if c.Catalog != "" {
		_, hash, err := check.LoadCatalog(c.Catalog)
		if err != nil {
			return err
		}
		file, err := filepath.Abs(c.Catalog)
		if err != nil {
			return err
		}
		add("catalog", file)
		add("cataloghash", hash)
	}
	if c.Tests {
		add("tests", "true")
	}
	if c.Strict {
		add("strict", "true")
	}
	_, err := fmt.Fprintln(w, strings.Join(flags, " "))
	return err
}
