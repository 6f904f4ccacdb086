package kernelspace

import (
	"strings"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// recent are the features of a recent HNS.
func recent() hns.Features {
	return hns.Features{V2: true, RemoteSubnet: true, DSR: true, SessionAffinity: true, DualStack: true, Modify: true}
}

// usualFacts returns the facts of a plane with a recent HNS, a network that is no overlay, and no options.
func usualFacts() plane.Facts {
	p := New(nil, Options{})
	p.seen.Store(&state{features: recent()})
	return p.facts()
}

// facts returns the facts of this plane. The features of its HNS are known, and do not change.
func (p *Plane) facts() plane.Facts {
	const only = "HNS translates connections to the ports of Services only"
	untouched := plane.Behaviour{Verdict: plane.Untouched, Why: only}
	f := plane.Facts{
		Name: mode, OtherPort: untouched, Ping: untouched, Unallocated: untouched, Ranges: plane.RangesNever,
		Loopback:  "another program forwards it: HNS balances at addresses of interfaces",
		Alike:     true,
		Lacking:   []route.Method{route.Hash, route.Least},
		NoBackend: "HNS neither refuses nor drops: it has no load balancer for this, and packets follow the routing table",
		Without:   p.unservedBehaviour, SourceNAT: p.sourceNAT,
		Affinity: "a client stays with its backend as long as HNS remembers it; the timeout of the Service has no effect",
	}
	if !p.seen.Load().features.SessionAffinity {
		f.Affinity = "none: this version of HNS has no session affinity"
	}
	return f
}

// unservedBehaviour returns what happens to connections to a port that HNS does not serve; the zero value: it does.
func (p *Plane) unservedBehaviour(port *route.Port) plane.Behaviour {
	s, why := p.seen.Load(), "this version of HNS has no dual stack: IPv6 is not served"
	switch {
	case protocolOf(port.Protocol) == 0:
		why = "HNS does not balance " + strings.ToUpper(port.Protocol.String())
	case port.Family == route.IPv4 || s.dualStack():
		return plane.Behaviour{}
	case s.overlay():
		why = "overlay networks of HNS have no dual stack: IPv6 is not served"
	}
	return plane.Behaviour{Verdict: plane.Untouched, Why: why}
}

// sourceNAT reports whether HNS translates the source of a connection, and why.
func (p *Plane) sourceNAT(by plane.Connection) (applied bool, why string) {
	port := &by.Service.Ports[by.Port]
	r := renderer{Plane: p, state: p.seen.Load()}
	f := &port.Frontends[by.Frontend]
	switch {
	case r.flags(port, f, by.Way).DSR:
		return false, "HNS uses direct server return here: backends answer the client directly"
	case f.Kind == route.ClusterIP:
		return true, "HNS translates the source at clusterIPs, as direct server return is not enabled (--enable-dsr)"
	case by.Way.Pool == route.Local:
		return true, "this version of HNS has no direct server return, without which it translates the source"
	}
	return true, "HNS translates the source, so that answers come back through this node"
}
