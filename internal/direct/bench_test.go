package direct

import (
	"fmt"
	"testing"
)

// BenchmarkChange measures a change of the owners of one port.
func BenchmarkChange(b *testing.B) {
	weights := map[string]uint32{}
	for i := range 20 {
		weights[fmt.Sprintf("node-%d", i)] = uint32(1 + i%3)
	}
	before := owners(weights)
	delete(weights, "node-7")
	after := owners(weights)
	p := Port{}.Next(before)
	for b.Loop() {
		p.Next(after).Choose(after, View{Self: "node-3", Reachable: all})
	}
}
