package bustest_test

import (
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// onBroker makes subjects on a fresh broker each.
func onBroker(cfg adapter.Config) func(t *testing.T) bustest.Subject {
	return func(t *testing.T) bustest.Subject {
		t.Helper()
		return bustest.SubjectOn(t, bustest.Start(t, embedded.Config{}), cfg)
	}
}

func TestContractInMemory(t *testing.T) {
	bustest.Contract(t, bustest.Options{Without: bustest.NeedRestart}, onBroker(adapter.Config{Storage: jetbus.MemoryStorage}))
}

func TestContractInFiles(t *testing.T) {
	bustest.Contract(t, bustest.Options{Without: bustest.NeedAging}, onBroker(adapter.Config{}))
}
