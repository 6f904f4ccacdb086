package localnet

import (
	"context"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// rawBeforeDefrag is a priority before connection tracking and before every
// translation (linux/netfilter_ipv4.h), so that the guard sees the addresses with
// which a packet arrived.
const rawBeforeDefrag = -450

// Table is the table of the guard. It is apart from the tables of planes, so that no
// plane must keep it while it changes or removes its own.
func Table() nft.Table { return nft.Table{Family: nft.IP4, Name: "sluice-localnet"} }

// guardChain drops packets of other machines and pods with an address of
// 127.0.0.0/8, which RFC 1122 forbids outside of a host.
func guardChain() nft.Chain {
	return nft.Chain{
		Name: "prerouting",
		Hook: &nft.Hook{Type: "filter", Point: nft.Prerouting, Priority: rawBeforeDefrag},
		Rules: []nft.Rule{
			nft.NewRule(nft.NotFromInterface("lo"), nft.ToLoopback(), nft.Drop()),
			nft.NewRule(nft.NotFromInterface("lo"), nft.FromLoopback(), nft.Drop()),
		},
	}
}

// markChain is an empty chain whose existence records that Sluice set route_localnet,
// so that a later process, or a clean-up, resets it.
func markChain() nft.Chain { return nft.Chain{Name: "route-localnet-set-by-sluice"} }

// read reads the guard; the state is that of its table, nil without one.
func read(ctx context.Context, kernel Kernel) (state *nft.State, g presence, err error) {
	state, err = kernel.Read(ctx, Table())
	switch {
	case err != nil || state == nil:
		return nil, absent, err
	case state.Dormant || !state.Chains[guardChain().Name].Is(guardChain()):
		return state, damaged, nil
	}
	return state, intact, nil
}

// isMarked reports whether a table has the mark.
func isMarked(state *nft.State) bool {
	if state == nil {
		return false
	}
	_, marked := state.Chains[markChain().Name]
	return marked
}

// transaction carries out an action on the guard in a table as it was read. Rules in
// a chain with the right hook are replaced in place, without a moment between old
// and new.
func transaction(state *nft.State, a action) *nft.Tx {
	tx := &nft.Tx{}
	had := isMarked(state)
	if state != nil {
		c, exists := state.Chains[guardChain().Name]
		switch {
		case exists && !c.SameHook(guardChain()):
			tx.DeleteTable(Table())
		case had && a == unmark:
			tx.DeleteChain(Table(), markChain().Name)
		}
	}
	tx.AddTable(Table())
	tx.SetChain(Table(), guardChain())
	if a == guardMarked || had && a == guard {
		tx.SetChain(Table(), markChain())
	}
	return tx
}
