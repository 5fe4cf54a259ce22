package reads_test

import (
	"testing"

	"github.com/seed-63e9a637/jetbus/internal/leaktest"
)

// What a test starts ends with it: brokers, connections, buses and handlers.
func TestMain(m *testing.M) { leaktest.Main(m) }
