package conntrack

import (
	"maps"

	"github.com/sluice-proxy/sluice/internal/cluster"
	kernel "github.com/sluice-proxy/sluice/internal/kernel/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
)

// handshakes returns where connections over TCP and SCTP may be stuck in their
// beginning: the ClusterIPs that lead to backends now and did not before.
func handshakes(c route.Change) work {
	w := work{}
	for _, t := range c.Touched {
		maps.Copy(w, leading(t.New))
	}
	for _, t := range c.Touched {
		for k := range leading(t.Old) {
			delete(w, k)
		}
	}
	return w
}

// leading returns the ClusterIPs of a Service over TCP and SCTP that lead to
// backends. Nobody else answers there. Who connects to another address may talk
// to somebody whose answers this node does not see.
func leading(s *route.Service) work {
	w := work{}
	if s == nil {
		return w
	}
	for _, p := range s.Ports {
		if p.Protocol == cluster.UDP {
			continue
		}
		for _, f := range p.Fronts {
			if f.Kind == route.ClusterIP && balances(f) {
				w[key{p.Family, uint8(p.Protocol), f.Addr, f.Port}] = need{all: true}
			}
		}
	}
	return w
}

func balances(f route.Front) bool {
	return f.Pods.Verdict == route.Balance || f.Node.Verdict == route.Balance || f.Others.Verdict == route.Balance
}

// stuck reports whether a connection over TCP or SCTP never began and cannot:
// nobody answered, and nobody translates what is sent again.
func stuck(e kernel.Entry, w work) bool {
	_, ours := w[keyOf(e)]
	return ours && e.Opening() && e.Zone == 0 && !e.Answered() && !e.Translated() && e.ReplySrc == e.OrigDst
}
