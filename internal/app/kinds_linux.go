package app

import (
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ebpf"
	"github.com/sluice-proxy/sluice/internal/plane/iptables"
	"github.com/sluice-proxy/sluice/internal/plane/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/plane/userspace"
)

// Kinds returns the data planes of this build, the default first. A further plane is one more line here.
func Kinds() []plane.Kind {
	return []plane.Kind{
		userspace.WithLocalhost(nftables.Kind()),
		userspace.WithLocalhost(iptables.Kind()),
		ipvs.Kind(),
		userspace.Kind(iptables.PortalsKind()),
		userspace.Loopback(),
		ebpf.Kind(userspace.WithLocalhost(nftables.Kind())),
	}
}
