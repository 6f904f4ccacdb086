package iptables_test

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
)

// Exists finds tables, and creates none.
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
			if exists, err = h.kernel().Exists(t.Context(), id); err != nil || exists {
				t.Errorf("%s was created: %t, %v", id, exists, err)
			}
			h.run("", program, "-t", "mangle", "-N", "A")
			exists, err = h.kernel().Exists(t.Context(), id)
			if err != nil || !exists {
				t.Errorf("%s exists: %t, %v", id, exists, err)
			}
		}
	}
}
