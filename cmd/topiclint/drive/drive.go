// Package drive runs the checks of topiclint over the packages of a module, and tells
// what they find: as lines, as SARIF, or as annotations of GitHub's. It is what the
// command topiclint and jetbus lint do.
//
// Only packages that use JetBus, by whatever way, are checked; of everything else the
// types are read from its source. Nothing has to be built before, nothing is kept.
package drive

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"path/filepath"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/packages"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
)

var (
	// ErrFindings is in the chain of the error of a run that found something.
	ErrFindings = errors.New("the checks found something")
	// ErrUsage is in the chain of an error about the Config, as check.ErrInvalidOption is.
	ErrUsage = errors.New("wrong command line")
)

// Config is one run. The zero value checks the packages below the current folder and
// writes lines.
type Config struct {
	Dir      string   // folder of the module; default: the current one
	Patterns []string // packages, as go list takes them; default: ./...
	Checks   string   // see check.Options
	Catalog  string   // file with a check.Catalog or the schemas of a registry; default: what the source declares
	Tags     string   // build tags, separated by commas
	Tests    bool     // see check.Options
	Strict   bool     // see check.Options
	// Topics is a catalog that was read elsewhere, for example from a running registry.
	// It excludes Catalog.
	Topics *check.Catalog
	// Format is text, sarif or github. Defaults to text. Names of files are relative to Dir.
	Format string
	// Baseline is a file of findings that are known and not told again.
	Baseline string
	// WriteBaseline writes what is found to Baseline, and tells nothing.
	WriteBaseline bool
	// Fix mends in the sources what can be mended for sure, and tells the rest.
	Fix bool
}

// Register adds a flag for each field that is chosen on a command line.
func (c *Config) Register(f *flag.FlagSet) {
	f.StringVar(&c.Dir, "C", "", "folder of the module to check (default: the current one)")
	f.StringVar(&c.Checks, "checks", "", "ids of checks to switch on, with - before it off, separated by commas; all")
	f.StringVar(&c.Catalog, "catalog", "", "file with the topics there are, JSON, or with the output of jetbus schema export (default: what the source declares)")
	f.StringVar(&c.Tags, "tags", "", "build tags, separated by commas")
	f.BoolVar(&c.Tests, "tests", false, "check _test.go files too")
	f.BoolVar(&c.Strict, "strict", false, "refuse topics that the catalog does not have although their names have a version")
	f.StringVar(&c.Format, "format", "text", "text, sarif or github")
	f.StringVar(&c.Baseline, "baseline", "", "file of findings that are known and not told again")
	f.BoolVar(&c.WriteBaseline, "write-baseline", false, "write what is found to the file of -baseline")
	f.BoolVar(&c.Fix, "fix", false, "mend in the sources what can be mended for sure")
}

// A Finding is one thing that a check found.
type Finding struct {
	ID      string // of the check
	Message string // without the id
	File    string // relative to Config.Dir where it is below, with slashes
	Line    int    // from 1
	Column  int    // in bytes, from 1
	edits   []edit
}

// Run checks, and writes what it finds to w. The error wraps [ErrFindings] where that
// is something, [ErrUsage] or check.ErrInvalidOption where c cannot be; any other is
// that of loading the packages: one that does not compile is not checked.
func Run(ctx context.Context, c Config, w io.Writer) error {
	write, err := c.writer()
	if err != nil {
		return err
	}
	options, err := c.options()
	if err != nil {
		return err
	}
	known, err := c.baseline()
	if err != nil {
		return err
	}
	pkgs, err := c.load(ctx)
	if err != nil {
		return err
	}
	list, err := c.analyze(options, pkgs)
	if err != nil {
		return err
	}
	if c.WriteBaseline {
		return writeBaseline(c.Baseline, list)
	}
	list = known.unknown(list)
	if c.Fix {
		if list, err = mend(list); err != nil {
			return err
		}
	}
	if err := write(w, list); err != nil {
		return err
	}
	if len(list) > 0 {
		return fmt.Errorf("%w: %d", ErrFindings, len(list))
	}
	return nil
}

// Valid reports values that cannot be; the error wraps [ErrUsage] or check.ErrInvalidOption.
func (c *Config) Valid() error {
	if _, err := c.writer(); err != nil {
		return err
	}
	_, err := c.options()
	return err
}

func (c *Config) writer() (func(io.Writer, []Finding) error, error) {
	switch {
	case c.WriteBaseline && c.Baseline == "":
		return nil, fmt.Errorf("%w: -write-baseline needs -baseline, the file", ErrUsage)
	case c.WriteBaseline && c.Fix:
		return nil, fmt.Errorf("%w: -write-baseline with -fix: choose one", ErrUsage)
	case c.Catalog != "" && c.Topics != nil:
		return nil, fmt.Errorf("%w: two catalogs, a file and Topics: choose one", ErrUsage)
	}
	switch c.Format {
	case "", "text":
		return writeText, nil
	case "sarif":
		return writeSARIF, nil
	case "github":
		return writeGitHub, nil
	}
	return nil, fmt.Errorf("%w: -format %q, use text, sarif or github", ErrUsage, c.Format)
}

// options returns the options of the analyzer, or an error of [check.New].
func (c *Config) options() (check.Options, error) {
	o := check.Options{Checks: c.Checks, Tests: c.Tests, Strict: c.Strict, Catalog: c.Topics}
	if c.Catalog != "" {
		catalog, _, err := check.LoadCatalog(c.Catalog)
		if err != nil {
			return o, err
		}
		o.Catalog = catalog
	}
	_, err := check.New(o)
	return o, err
}

// analyze checks the packages, and returns the findings in the order of the sources.
// Packages may register schemas for the topics of packages that they import, so the
// first of two runs finds the topics with a schema of all packages.
func (c *Config) analyze(o check.Options, pkgs []*packages.Package) ([]Finding, error) {
	actions, err := runChecks(o, pkgs)
	if err != nil {
		return nil, err
	}
	o.Schemas = make(check.Schemas)
	for _, action := range actions {
		if schemas, ok := action.Result.(check.Schemas); ok {
			maps.Copy(o.Schemas, schemas)
		}
	}
	if actions, err = runChecks(o, pkgs); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	var list []Finding
	for _, action := range actions {
		for _, d := range action.Diagnostics {
			if isTarget(action.Package) {
				list = append(list, finding(dir, action.Package, d))
			}
		}
	}
	return ordered(list), nil
}

// runChecks runs the analyzer with some options, once per package.
func runChecks(o check.Options, pkgs []*packages.Package) ([]*checker.Action, error) {
	a, err := check.New(o)
	if err != nil {
		return nil, err
	}
	graph, err := checker.Analyze([]*analysis.Analyzer{a}, pkgs, nil)
	if err != nil {
		return nil, fmt.Errorf("analyze: %w", err)
	}
	for _, action := range graph.Roots {
		if action.Err != nil {
			return nil, fmt.Errorf("analyze %s: %w", action.Package.PkgPath, action.Err)
		}
	}
	return graph.Roots, nil
}
