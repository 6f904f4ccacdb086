package iptables_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
)

// Exists and HasChain find tables and chains, and create none.
func TestExists(t *testing.T) {
	h := newHost(t)
	for _, variant := range []iptables.Variant{iptables.Legacy, iptables.NFT} {
		for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
			id := iptables.TableID{Variant: variant, Family: family, Name: "mangle"}
			program, _, _ := strings.Cut(id.String(), " ")
			exists, err := h.kernel().Exists(t.Context(), id)
			if err != nil || exists {
				t.Errorf("%s exists: %t, %v", id, exists, err)
			}
			if found, err := h.kernel().HasChain(t.Context(), id, "A"); err != nil || found {
				t.Errorf("%s has a chain: %t, %v", id, found, err)
			}
			if exists, err = h.kernel().Exists(t.Context(), id); err != nil || exists {
				t.Errorf("%s was created: %t, %v", id, exists, err)
			}
			h.run("", program, "-t", "mangle", "-N", "A")
			exists, err = h.kernel().Exists(t.Context(), id)
			found, err2 := h.kernel().HasChain(t.Context(), id, "A")
			other, err3 := h.kernel().HasChain(t.Context(), id, "B")
			if err := errors.Join(err, err2, err3); err != nil || !exists || !found || other {
				t.Errorf("%s exists: %t, has A: %t, B: %t, %v", id, exists, found, other, err)
			}
		}
	}
}
