package rest_test

import (
	"testing"

	"go.uber.org/goleak"
)

// What a test starts ends with it: brokers, connections and registries.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
