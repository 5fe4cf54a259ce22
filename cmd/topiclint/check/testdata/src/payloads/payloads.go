// Package payloads has topics of types (BUS008, BUS017). // want package:`topics\(a1 a2 a3 a4 a5 a6 a7 a8 c1 a9 b1\)`
package payloads

import "github.com/seed-63e9a637/jetbus"

type good struct {
	ID     string
	Counts map[int]float64
	Hidden func() `json:"-"`
	lost   chan int
	Next   *good
	Any    any
	Own    marshaler
	Keyed  map[key]int
}

type marshaler struct{ c chan int }

func (marshaler) MarshalJSON() ([]byte, error) { return nil, nil }

type key struct{ a int }

func (key) MarshalText() ([]byte, error) { return nil, nil }

type deep struct{ Items []struct{ Done chan int } }

type inner struct{ F func() }

type outer struct{ inner }

type private struct{ id string }

type account struct {
	UserPassword string
	APIKey       string `bus:"redact"`
	Session      string
}

type tree []tree

type coder struct{ jetbus.Codec[chan int] }

var (
	_ = jetbus.Topic[good]{Name: "a1"}
	_ = jetbus.Topic[struct{}]{Name: "a2"}
	_ = jetbus.Topic[*deep]{Name: "a3"}           // want `BUS008: field Done of .* is a channel`
	_ = jetbus.Topic[outer]{Name: "a4"}           // want `BUS008: field F of payloads.inner is a function`
	_ = jetbus.Topic[private]{Name: "a5"}         // want `BUS008: .*no exported field`
	_ = jetbus.Topic[map[float64]int]{Name: "a6"} // want `BUS008: .*keys of type float64`
	_ = jetbus.Topic[[]complex128]{Name: "a7"}    // want `BUS008: .*complex128`
	_ = jetbus.Topic[chan int]{Name: "a8", Codec: coder{}}
	_ = jetbus.Topic[tree]{Name: "c1"}
	_ = jetbus.Topic[account]{Name: "a9"} // want `BUS017: field UserPassword of payloads.account`
)

func of[T any]() jetbus.Topic[T] { return jetbus.Topic[T]{Name: "b1"} }
