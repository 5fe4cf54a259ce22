// Package plugin makes topiclint a linter of golangci-lint, by its module plugins: name
// the module and this package in .custom-gcl.yml, and in .golangci.yml
//
//	linters:
//	  enable: [topiclint]
//	  settings:
//	    custom:
//	      topiclint:
//	        type: module
//	        settings: {checks: BUS004, catalog: topics.json}
//
// Findings are of one linter; golangci-lint's own //nolint, exclusions and output hold.
package plugin

import (
	"fmt"

	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
)

func init() { register.Plugin(check.Name, New) }

// Settings are those in .golangci.yml; see check.Options. Its cache does not know the
// file of a catalog: golangci-lint cache clean, when that changes.
type Settings struct {
	Checks  string `json:"checks"`
	Catalog string `json:"catalog"` // file, relative to where golangci-lint runs
	Tests   bool   `json:"tests"`
	Strict  bool   `json:"strict"`
}

type plugin struct{ analyzer *analysis.Analyzer }

// New makes the linter of its settings. The error says which is wrong.
func New(settings any) (register.LinterPlugin, error) {
	s, err := register.DecodeSettings[Settings](settings)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", check.Name, err)
	}
	o := check.Options{Checks: s.Checks, Tests: s.Tests, Strict: s.Strict}
	if s.Catalog != "" {
		if o.Catalog, _, err = check.LoadCatalog(s.Catalog); err != nil {
			return nil, fmt.Errorf("%s: %w", check.Name, err)
		}
	}
	a, err := check.New(o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", check.Name, err)
	}
	return &plugin{a}, nil
}

// BuildAnalyzers returns the one analyzer.
func (p *plugin) BuildAnalyzers() ([]*analysis.Analyzer, error) {
	return []*analysis.Analyzer{p.analyzer}, nil
}

// GetLoadMode says that types are needed.
func (*plugin) GetLoadMode() string { return register.LoadModeTypesInfo }
