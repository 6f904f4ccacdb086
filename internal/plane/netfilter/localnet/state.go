package localnet

import (
	"context"
	"path"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// need is whether NodePorts need the parameter.
type need int

const (
	unknown   need = iota // the configuration and the node are not known yet: the parameter stays as it is
	needed                // NodePorts are served on 127.0.0.0/8
	notNeeded             // they are not
)

// presence is the state of the guard in the kernel.
type presence int

const (
	absent  presence = iota
	damaged          // a part is missing
	intact
)

// state is the state of the guard and of the parameter.
type state struct {
	guard  presence
	all    bool // net.ipv4.conf.all.route_localnet is 1
	others bool // that of an interface other than lo is 1, or that of interfaces to come

	marked bool // Sluice set the parameter
	mark   bool // the table of the guard says so

	table *nft.State // of the guard; nil: there is none
}

func (s state) routed() bool { return s.all || s.others }

// desired returns the state to establish. The parameter is reset to 0 only if Sluice set
// it. The guard stays wherever 127.0.0.0/8 is routed.
func (s state) desired(n need) state {
	d := s
	switch n {
	case needed:
		d.marked = s.marked || !s.all
		d.all = true
	case notNeeded:
		d.all = s.all && !s.marked
		d.marked = false
	case unknown:
	}
	switch {
	case d.routed(), n == unknown && s.guard == damaged:
		d.guard = intact
	case n == notNeeded:
		d.guard = absent
	}
	return d
}

// readValues reads the parameter of all interfaces.
func (s *state) readValues(sysctl Sysctl) error {
	values, err := sysctl.Match(pattern)
	for name, value := range values {
		switch device := path.Base(path.Dir(name)); {
		case value == "0", device == "lo": // packets on lo come from this host
		case device == "all":
			s.all = true
		default:
			s.others = true
		}
	}
	return err
}

// readGuard reads the table of the guard.
func (s *state) readGuard(ctx context.Context, kernel Kernel) error {
	table, err := kernel.Read(ctx, Table(), nil)
	if err != nil || table == nil {
		return err
	}
	s.table, s.guard = table, intact
	if table.Dormant || !table.Chains[guardChain().Name].Is(guardChain()) {
		s.guard = damaged
	}
	_, s.mark = table.Chains[markChain().Name]
	return nil
}

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
