package ipvs

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Path returns the chains and the virtual server that the first packet of a connection passes.
func Path(p plane.Connection) []string {
	port := &p.Service.Ports[p.Port]
	f := &port.Frontends[p.Frontend]
	switch {
	case p.KeptOut:
		return []string{"filter KUBE-PROXY-FIREWALL"}
	case p.Way.Verdict == route.Drop:
		return []string{"filter KUBE-IPVS-FILTER"}
	}
	var path []string
	if p.Way.Verdict == route.Balance && p.Inside && divided(port, f) {
		path = append(path, "mangle KUBE-IPVS-SHORT-CUT")
	}
	path = append(path, "nat KUBE-SERVICES")
	if f.Addr.IsValid() {
		server := ipvs.Server{Addr: f.Addr, Protocol: uint8(port.Protocol), Port: f.Port}
		path = append(path, "virtual server "+server.String())
	} else {
		path = append(path, fmt.Sprintf("virtual server %s NodePort %d", port.Protocol, f.Port))
	}
	if p.Backend.IsValid() {
		path = append(path, "destination "+p.Backend.String())
	}
	return path
}
