package ledger

import (
	"net/netip"
	"slices"
)

// Arrange puts the wanted backends, which are sorted, into numbered slots, so that as little as possible differs from
// the slots before: backends that stay keep their slots, the others fill the free ones.
func Arrange(before, want []netip.AddrPort) []netip.AddrPort {
	if len(before) == 0 || slices.Equal(before, want) {
		return want
	}
	slots := make([]netip.AddrPort, len(want))
	placed := make([]bool, len(want))
	for i := range min(len(before), len(want)) {
		j, found := slices.BinarySearchFunc(want, before[i], netip.AddrPort.Compare)
		if found && !placed[j] {
			slots[i], placed[j] = before[i], true
		}
	}
	slots = Fill(slots, want, placed)
	if slices.Equal(slots, want) {
		return want
	}
	return slots
}

// Fill puts the wanted backends that are not placed yet into the first free slots.
func Fill(slots, want []netip.AddrPort, placed []bool) []netip.AddrPort {
	free := 0
	for j, backend := range want {
		if placed[j] {
			continue
		}
		for free < len(slots) && slots[free].IsValid() {
			free++
		}
		if free == len(slots) {
			slots = append(slots, backend)
			continue
		}
		slots[free] = backend
	}
	return slots
}
