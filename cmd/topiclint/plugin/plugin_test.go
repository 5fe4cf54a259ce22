package plugin

import (
	"errors"
	"strings"
	"testing"

	"github.com/golangci/plugin-module-register/register"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
)

func TestPlugin(t *testing.T) {
	build, err := register.GetPlugin(check.Name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := build(map[string]any{"checks": "BUS004", "tests": true})
	if err != nil {
		t.Fatal(err)
	}
	list, err := p.BuildAnalyzers()
	if err != nil || len(list) != 1 || list[0].Name != check.Name || p.GetLoadMode() != register.LoadModeTypesInfo {
		t.Errorf("%v, %v, %s", list, err, p.GetLoadMode())
	}
	if _, err := build(nil); err != nil {
		t.Errorf("without settings: %v", err)
	}
	for _, settings := range []map[string]any{{"checks": "BUS000"}, {"catalog": "/does/not/exist"}} {
		if _, err := build(settings); !errors.Is(err, check.ErrInvalidOption) {
			t.Errorf("%v: %v", settings, err)
		}
	}
	if _, err := build(map[string]any{"color": "red"}); err == nil || !strings.Contains(err.Error(), "color") {
		t.Errorf("a setting that is none: %v", err)
	}
}
