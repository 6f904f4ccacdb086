// Package iptables is the plane that balances with rules of iptables, in chains with kube-proxy's names: operators find
// the rules where kube-proxy had them, and the rules of kube-proxy on a node are taken over in place.
//
// PortalsKind is a variant that leads to listeners of this process in place of backends.
//
// A change writes the chains that changed, and single rules of those that all
// Services share. README.md draws the path of a packet.
package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Kernel reads and changes the tables of iptables: iptables.Tools.
type Kernel interface {
	Read(ctx context.Context, t iptables.Table) (iptables.Chains, error)
	Watch(ctx context.Context, ours func(chain string) bool, subscribed func(), report func(iptables.Edit)) error
	Restore(ctx context.Context, f iptables.Family, input []byte) error
	Room() int // how many lines one Restore should have at most
}

// Write is the outcome of an attempt to write a plan for a family.
type Write struct {
	Family  route.Family
	Full    bool            // the plan compared everything
	Err     error           // a plane.Refused: everything except some Services was written
	Rules   [mangle + 1]int // of ours, by table
	Written [mangle + 1]int // by the plan, by table
}

// Accounting creates objects of nfacct, with which rules count packets, unless they exist: nfacct.Objects.
type Accounting interface {
	Ensure(ctx context.Context, names ...string) error
}

// The objects of nfacct, with the names that kube-proxy uses.
const (
	// InvalidDropped counts packets that were dropped because conntrack had marked them invalid.
	InvalidDropped = "ct_state_invalid_dropped_pkts"
	// LoopbackNodePorts counts connections to NodePorts at 127.0.0.0/8.
	LoopbackNodePorts = "localhost_nps_accepted_pkts"
)

// Options for New.
type Options struct {
	Families []route.Family // those that the host supports
	Mark     uint32         // bit of the packet mark for packets to masquerade

	// KeepInvalid accepts forwarded packets that are invalid for conntrack. It is for hosts
	// where conntrack is set to be liberal, so that few packets are invalid.
	KeepInvalid bool

	// Accounting, if not nil, makes the rule that drops invalid packets count them, and adds a rule to each NodePort that
	// counts connections to 127.0.0.0/8. A comparison creates missing objects when it is applied, as the kernel refuses
	// such rules without them.
	Accounting Accounting

	// Listeners, if not empty, are the addresses of sockets of this program: the plane is the
	// variant that PortalsKind describes.
	Listeners []netip.Addr

	Wrote func(Write) // is called after each attempt to write a plan for a family; may be nil
}

// Plane balances with iptables. It implements plane.Plane.
type Plane struct {
	kernel   Kernel
	opt      Options
	families []*family

	state map[route.Family]state // that Refresh read; nil once Plan has used it

	edited atomic.Bool // Watch has reported an edit of our rules since the last Refresh
}

// New makes a Plane. It does nothing yet. Without a kernel it is a preview: it finds no rules, and its plans
// cannot be applied.
func New(kernel Kernel, opt Options) *Plane {
	p := &Plane{kernel: kernel, opt: opt, families: families(opt)}
	for _, f := range p.families {
		f.ledger = ledger.New[key, string](key.handling, key.compare)
		f.restorer = restorer{kernel: kernel, family: f.kernel, edited: p.edited.Load}
	}
	return p
}

// Refresh reads the tables of all families.
func (p *Plane) Refresh(ctx context.Context) error {
	p.edited.Store(false)
	all := map[route.Family]state{}
	for _, f := range p.families {
		all[f.ip] = state{}
		if p.kernel == nil {
			continue
		}
		for _, t := range everyTable() {
			chains, err := p.kernel.Read(ctx, iptables.Table{Family: f.kernel, Name: t.String()})
			if err != nil {
				return fmt.Errorf("read kernel state: %w", err)
			}
			all[f.ip][t] = chains
		}
	}
	p.state = all
	return nil
}

// Watch reports changes by other programs to our chains, and to rules that jump to them.
func (p *Plane) Watch(ctx context.Context, subscribed func(), report func(plane.Edit)) error {
	ours := func(chain string) bool { return chain == localnet || kubechain.Proxy(chain) }
	return p.kernel.Watch(ctx, ours, subscribed, func(e iptables.Edit) {
		if !e.Possible {
			p.edited.Store(true)
		}
		report(plane.Edit(e))
	})
}
