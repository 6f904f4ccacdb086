package conntrack

import (
	"iter"

	"github.com/sluice-proxy/sluice/internal/cluster"
	kernel "github.com/sluice-proxy/sluice/internal/kernel/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
)

// handshakes returns the ClusterIPs at which TCP and SCTP handshakes may be stuck:
// those that lead to backends now and did not before. Over are those that no longer
// lead to backends.
func handshakes(c route.Change) (begun work, over []key) {
	begun = work{}
	for _, t := range c.Touched {
		for k := range leading(t.New) {
			begun[k] = need{all: true}
		}
	}
	for _, t := range c.Touched {
		for k := range leading(t.Old) {
			if _, still := begun[k]; !still {
				over = append(over, k)
			}
			delete(begun, k)
		}
	}
	return begun, over
}

// leading yields the ClusterIPs of a Service over TCP and SCTP that lead to
// backends. No host answers at a ClusterIP itself. At other addresses a host may
// answer by a route that this node does not see.
func leading(s *route.Service) iter.Seq[key] {
	return func(yield func(key) bool) {
		if s == nil {
			return
		}
		for _, p := range s.Ports {
			for _, f := range p.Fronts {
				if p.Protocol == cluster.UDP || f.Kind != route.ClusterIP || !balances(f) {
					continue
				}
				if !yield(key{p.Family, uint8(p.Protocol), f.Addr, f.Port}) {
					return
				}
			}
		}
	}
}

func balances(f route.Front) bool {
	return f.Pods.Verdict == route.Balance || f.Node.Verdict == route.Balance || f.Others.Verdict == route.Balance
}

// stuck reports whether a TCP or SCTP handshake cannot complete: it has no answer, and
// its entry leaves retransmissions untranslated.
func stuck(e kernel.Entry, w work) bool {
	_, ours := w[keyOf(e)]
	return ours && e.Opening() && e.Zone == 0 && !e.Answered() && !e.Translated() && e.ReplySrc == e.OrigDst
}
