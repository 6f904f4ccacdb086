package iptables

import (
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
)

// PortalsKind returns a variant of this plane for planes that forward in the process. The routes that it gets have a
// listening socket of the process in place of the backends of each pool: a port of an address in Setup.Listeners. Its
// chains in table nat have the names of kube-proxy's mode userspace. Connections that were not translated cannot reach
// the listeners, as they would bypass the policy of the Services.
func PortalsKind() plane.Kind {
	k := Kind()
	k.Facts.Path, k.Excess = PortalsPath, excessFrontends
	return k
}

// PortalsPath is the Path of PortalsKind. It ends at the chain that leads to the listener.
func PortalsPath(p plane.Connection) []string {
	if p.Node {
		return pathFrom(portals()[1], p)
	}
	return pathFrom(portals()[0], p)
}

// entrance is a chain of table nat with a rule for each frontend, and the one for NodePorts
// behind it. Packets that arrive come to the first entrance, and those of this node to the last one.
type entrance struct{ frontends, nodePorts string }

func entrances() []entrance { return []entrance{{services, nodePorts}} }

func portals() []entrance {
	return []entrance{{portalsContainer, nodePortContainer}, {portalsHost, nodePortHost}}
}

// isPortals reports whether the plane is the variant of PortalsKind.
func (f *family) isPortals() bool { return f.listener.IsValid() }

// abandons reports whether a chain has rules of all Services in the other variant of this plane
// only. It stays until a comparison has written all Services.
func (f *family) abandons(k key) bool {
	return k.table == nat && k.shared() && !slices.ContainsFunc(f.entrances, func(e entrance) bool {
		return k.chain == e.frontends || k.chain == e.nodePorts
	})
}

// abandoned returns the steps that remove the jumps to chains of the other variant.
func (l *listing) abandoned() []step {
	var list []step
	for _, chain := range builtin(nat) {
		for _, rule := range l.rules(key{table: nat, chain: chain}) {
			if l.abandons(key{table: nat, chain: iptables.Target(rule)}) {
				list = append(list, step{Op: ledger.Remove, Key: key{nat, chain, rule}})
			}
		}
	}
	return list
}
