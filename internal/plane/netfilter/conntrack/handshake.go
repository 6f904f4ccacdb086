package conntrack

import (
	"iter"

	"github.com/sluice-proxy/sluice/internal/cluster"
	kernel "github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
)

// handshakes returns the ClusterIPs that are balanced now and were not before: TCP and
// SCTP handshakes may be stuck there. ended are those that are no longer balanced.
func handshakes(c route.Change) (started flows, ended []key) {
	started = flows{}
	for _, t := range c.Touched {
		for k := range balanced(t.New) {
			started[k] = need{all: true}
		}
	}
	for _, t := range c.Touched {
		for k := range balanced(t.Old) {
			if _, still := started[k]; !still {
				ended = append(ended, k)
			}
			delete(started, k)
		}
	}
	return started, ended
}

// balanced yields the ClusterIPs of a Service over TCP and SCTP that are balanced over backends. No host answers at a
// ClusterIP itself. At other addresses a host may answer by a route that this node does not know.
func balanced(s *route.Service) iter.Seq[key] {
	return func(yield func(key) bool) {
		if s == nil {
			return
		}
		for _, p := range s.Ports {
			for _, f := range p.Frontends {
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

func balances(f route.Frontend) bool {
	return f.Pods.Verdict == route.Balance || f.Node.Verdict == route.Balance || f.Others.Verdict == route.Balance
}

// stuck reports whether a TCP or SCTP handshake cannot complete: it has no answer, and
// its entry leaves retransmissions untranslated.
func stuck(e kernel.Entry, w flows) bool {
	_, ours := w[keyOf(e)]
	return ours && e.Opening() && e.Zone == 0 && !e.Answered() && !e.Translated() && e.ReplySrc == e.OrigDst
}
