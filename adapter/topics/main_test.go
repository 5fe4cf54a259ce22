package topics_test

import (
	"testing"

	"go.uber.org/goleak"
)

// What a test starts ends with it: brokers, connections, buses and handlers.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
