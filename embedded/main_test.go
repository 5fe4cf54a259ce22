package embedded_test

import (
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/internal/leaktest"
)

// patience bounds what only a broken broker lets wait for so long.
const patience = time.Minute

func TestMain(m *testing.M) { leaktest.Main(m) }
