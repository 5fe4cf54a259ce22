package check

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/tools/go/analysis"
)

// ErrInvalidOption is in the chain of an error about Options, a flag or a catalog.
var ErrInvalidOption = errors.New("invalid option")

func optionf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalidOption, fmt.Errorf(format, args...))
}

// Name is the analyzer's name: the prefix of its flags in go vet, and what //nolint says.
const Name = "topiclint"

// Options choose what is checked. The zero value is the documented default.
type Options struct {
	// Checks is a list of ids, separated by commas, that are on besides those that are
	// by default; one with a "-" before it is off. "all" and "-all" mean all of them. It
	// is read from left to right: "-all,BUS001" is BUS001 alone.
	Checks string
	// Catalog is what topics there are. Nil: what the source declares.
	Catalog *Catalog
	// Schemas are topics for which the program registers schemas, in packages that a
	// checked package does not import. Nil: unknown; without a Catalog, BUS003 then
	// reports nothing.
	Schemas Schemas
	// Tests checks _test.go files too.
	Tests bool
	// Strict refuses a topic that the catalog does not have although its name has a version.
	Strict bool
}

// New returns an analyzer with fixed options, or an error wrapping [ErrInvalidOption].
func New(o Options) (*analysis.Analyzer, error) {
	on, err := parseSelection(o.Checks)
	if err != nil {
		return nil, err
	}
	return analyzer(func() resolved { return resolved{o: o, on: on} }), nil
}

// NewFlagged returns an analyzer that takes its options from flags, as go vet gives
// them. With a catalog it takes its hash too, and fails without: go vet keeps what an
// analyzer found, by the sources and the flags, and would not see that the file has changed.
func NewFlagged() *analysis.Analyzer {
	var o Options
	var catalog, hash string
	a := analyzer(sync.OnceValue(func() (r resolved) {
		if r.on, r.err = parseSelection(o.Checks); r.err != nil {
			return r
		}
		r.o = o
		if catalog != "" {
			r.o.Catalog, r.err = loadHashed(catalog, hash)
		}
		return r
	}))
	a.Flags.StringVar(&o.Checks, "checks", "", "ids of checks to switch on, with - before it off, separated by commas; all")
	a.Flags.StringVar(&catalog, "catalog", "", "absolute path of a file with the topics there are, JSON; needs cataloghash")
	a.Flags.StringVar(&hash, "cataloghash", "", "SHA-256 of the catalog in hex, so that go vet sees that it changed")
	a.Flags.BoolVar(&o.Tests, "tests", false, "check _test.go files too")
	a.Flags.BoolVar(&o.Strict, "strict", false, "refuse topics that the catalog does not have although their names have a version")
	return a
}

// resolved is what an analyzer runs with.
type resolved struct {
	o   Options
	on  selection
	err error
}

func analyzer(options func() resolved) *analysis.Analyzer {
	return &analysis.Analyzer{
		Name:       Name,
		Doc:        "check the use of topics, groups, headers and payloads of JetBus\n\nEach finding begins with the id of its check.",
		ResultType: schemasType,
		FactTypes:  []analysis.Fact{new(takesTopic), new(declaredTopics)},
		Run: func(pass *analysis.Pass) (any, error) {
			r := options()
			if r.err != nil {
				return nil, r.err
			}
			l := newLinter(pass, r.o, r.on)
			l.run()
			return l.known.schemas, nil
		},
	}
}
