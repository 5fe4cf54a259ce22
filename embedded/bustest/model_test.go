package bustest_test

import (
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// The model in memory agrees with the bus on scripts that are drawn anew in each
// run, 100 for each kind of storage, and on those under testdata, on which it once
// did not. `make model` draws more.
func TestModelInMemory(t *testing.T) {
	bustest.Scripts(t, bustest.Options{Without: bustest.NeedRestart}, bustest.OnBroker(adapter.Config{Storage: jetbus.MemoryStorage}))
}

func TestModelInFiles(t *testing.T) {
	bustest.Scripts(t, bustest.Options{}, bustest.OnBroker(adapter.Config{}))
}
