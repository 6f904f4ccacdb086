package localnet

import "github.com/sluice-proxy/sluice/internal/linux/nft"

// rawBeforeDefrag is a priority before connection tracking and before every translation (linux/netfilter_ipv4.h), so
// that the guard sees the addresses with which a packet arrived.
const rawBeforeDefrag = -450

// Table returns the table of the guard. No plane owns it, so that none removes it while
// it changes or removes its own tables.
func Table() nft.Table { return nft.Table{Family: nft.IP4, Name: "sluice-localnet"} }

// guardChain returns the chain that drops packets of other machines and pods with an
// address of 127.0.0.0/8, which RFC 1122 forbids outside of a host.
func guardChain() nft.Chain {
	return nft.Chain{
		Name: "prerouting",
		Hook: &nft.Hook{Type: "filter", Point: nft.Prerouting, Priority: rawBeforeDefrag},
		Rules: []nft.Rule{
			nft.NewRule(nft.Not(nft.FromInterface("lo")), nft.ToLoopback(nft.IP4), nft.Drop()),
			nft.NewRule(nft.Not(nft.FromInterface("lo")), nft.FromLoopback(), nft.Drop()),
		},
	}
}

// markChain returns an empty chain whose existence records that Sluice set
// route_localnet, so that a later process, or a clean-up, resets it.
func markChain() nft.Chain { return nft.Chain{Name: "route-localnet-set-by-sluice"} }

// addGuard returns the transaction that adds or repairs the guard, and adds the mark if the state is marked. Rules in a
// chain with the right hook are replaced in place, without a moment between old and new.
func addGuard(s state) *nft.Tx {
	tx := &nft.Tx{}
	if s.table != nil {
		if c, exists := s.table.Chains[guardChain().Name]; exists && !c.SameHook(guardChain()) {
			tx.DeleteTable(Table())
		}
	}
	tx.AddTable(Table())
	tx.SetChain(Table(), guardChain())
	if s.marked {
		tx.SetChain(Table(), markChain())
	}
	return tx
}
