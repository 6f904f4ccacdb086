package nftables

import (
	"net/netip"
	"slices"
)

// arrange puts the backends that are wanted, which are sorted, into numbered
// slots, so that as little as possible differs from the slots there were: who
// stays keeps its slot, the rest fills what is free.
func arrange(before, want []netip.AddrPort) []netip.AddrPort {
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
	slots = fill(slots, want, placed)
	if slices.Equal(slots, want) {
		return want
	}
	return slots
}

// fill puts the backends that are not placed into the first free slots.
func fill(slots, want []netip.AddrPort, placed []bool) []netip.AddrPort {
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
