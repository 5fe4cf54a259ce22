package bustest_test

import (
	"flag"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/internal/leaktest"
)

// TestMain has few scripts drawn: each run of the tests draws others, and `make model`,
// which says -rapid.checks, thousands.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "50"); err != nil {
		panic(err)
	}
	leaktest.Main(m)
}

// The model in memory agrees with the bus on scripts that are drawn anew in each
// run, 50 for each kind of storage, and on those under testdata, on which it once
// did not.
func TestModelInMemory(t *testing.T) {
	bustest.Scripts(t, bustest.Options{Without: bustest.NeedRestart}, bustest.OnBroker(adapter.Config{Storage: jetbus.MemoryStorage}))
}

func TestModelInFiles(t *testing.T) {
	bustest.Scripts(t, bustest.Options{}, bustest.OnBroker(adapter.Config{}))
}
