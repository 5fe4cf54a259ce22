package embedded_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds what only a broken broker lets wait for so long.
const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
