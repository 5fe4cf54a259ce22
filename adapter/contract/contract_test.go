package contract_test

import (
	"flag"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

var whole = flag.Bool("whole", false, "run the contract in memory whole, leave nothing to that in files, and play the long form of both")

// What one store cannot show, the other does.
const (
	notInMemory = bustest.NeedRestart
	notInFiles  = bustest.NeedAging
)

func TestContractInMemory(t *testing.T) {
	o := bustest.Options{Without: notInMemory, Long: *whole}
	if !*whole {
		o.Without |= bustest.NeedPower
	}
	bustest.Contract(t, o, bustest.OnBroker(adapter.Config{Storage: jetbus.MemoryStorage}))
}

// Idempotent handlers, as the contract has them where leaders change all the time, get what
// others get.
func TestContractRepeated(t *testing.T) {
	o := bustest.Options{Repeats: true, Without: notInMemory | bustest.NeedPower}
	bustest.Contract(t, o, bustest.OnBroker(adapter.Config{Storage: jetbus.MemoryStorage}))
}

func TestContractInFiles(t *testing.T) {
	bustest.Contract(t, bustest.Options{Without: notInFiles, Long: *whole}, bustest.OnBroker(adapter.Config{}))
}

// Each behavior is tested in memory or in files, and what needs no power in both if it can be.
func TestContractIsWhole(t *testing.T) {
	for _, b := range bustest.Behaviors() {
		if b.Needs&(notInMemory|bustest.NeedPower) != 0 && b.Needs&notInFiles != 0 {
			t.Errorf("%q is tested on no store", b.Name)
		}
	}
}
