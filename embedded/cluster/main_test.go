package cluster

import (
	"testing"

	"github.com/seed-63e9a637/jetbus/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
