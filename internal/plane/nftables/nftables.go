// Package nftables is the plane that balances with nf_tables, in the tables "ip sluice" and
// "ip6 sluice". Services are elements of maps, not chains. README.md draws the path of a packet.
package nftables

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Kernel is what the plane needs of nf_tables: nft.Conn, or nft.Fake.
type Kernel interface {
	Writer
	Read(ctx context.Context, t nft.Table, expected []nft.ExpectedKeys) (*nft.State, error)
	Watch(ctx context.Context, tables []nft.Table, subscribed func(), report func(nft.Edit)) error
}

// Writer changes tables. Room is the size of the largest transaction in bytes.
type Writer interface {
	Commit(ctx context.Context, tx *nft.Tx) error
	DeleteTables(ctx context.Context, tables ...nft.Table) error
	Room() int
}

// Options for New.
type Options struct {
	Families []route.Family // those that the host supports
	Mark     uint32         // bit of the packet mark of connections to masquerade

	// Live returns the connections that were counted since it was called last, for the next plan of a change; nil: none
	// were. A nil function counts none.
	Live func() *Live

	counts *counts // nil: nothing counts
}

// Plane programs nf_tables. It implements plane.Plane.
type Plane struct {
	kernel  Kernel
	opt     Options
	layout  *layout
	perPart int // Services in a part of a first load
	ledger  *ledger.Ledger[key, value]

	seen    map[route.Family]*nft.State // what Refresh read; nil once a Plan used it
	history history                     // as the last plan left it in the kernel
	render  *renderer                   // for the host as the last plan left it

	learning sync.Mutex // of the history, which Shares reads
}

// New makes a Plane. It does nothing yet.
func New(kernel Kernel, opt Options) *Plane {
	if opt.Live == nil {
		opt.Live = func() *Live { return nil }
	}
	return &Plane{
		kernel: kernel, opt: opt, layout: newLayout(), perPart: servicesPerPart,
		ledger: ledger.New[key, value](key.handling, key.compare),
	}
}

// Refresh reads both tables, including that of a family that is not served any more.
func (p *Plane) Refresh(ctx context.Context) error {
	seen := map[route.Family]*nft.State{}
	for _, ip := range route.Families() {
		seen[ip] = &nft.State{}
		if p.kernel == nil { // a preview
			continue
		}
		state, err := p.kernel.Read(ctx, tableFor(ip), p.layout.expected())
		if err != nil {
			return fmt.Errorf("read kernel state: %w", err)
		}
		if state != nil {
			seen[ip] = state
		}
	}
	p.seen = seen
	return nil
}

// Watch reports changes that other programs make to these tables.
func (p *Plane) Watch(ctx context.Context, subscribed func(), report func(plane.Edit)) error {
	return p.kernel.Watch(ctx, tables(), subscribed, func(e nft.Edit) {
		report(plane.Edit{What: e.What, By: e.By})
	})
}

// Remove deletes the tables of both families, whatever the options are. It first empties the
// chains with hooks for new connections, and waits for the packets in other chains: the kernel
// deletes elements of maps before those of sets, so that a packet would be rejected by its ClusterIP.
func (p *Plane) Remove(ctx context.Context) ([]string, error) {
	if err := p.Refresh(ctx); err != nil {
		return nil, err
	}
	var removed []string
	closing := &nft.Tx{}
	for _, ip := range route.Families() {
		state := p.seen[ip]
		if state.Chains == nil {
			continue
		}
		removed = append(removed, fmt.Sprintf("table %s with %d elements", tableFor(ip), state.Count()))
		for _, name := range []string{"prerouting", "output"} {
			if _, there := state.Chains[name]; there {
				closing.FlushChain(tableFor(ip), name)
			}
		}
	}
	if closing.Size() > 0 {
		if err := p.kernel.Commit(ctx, closing); err != nil {
			return nil, fmt.Errorf("empty the chains with hooks: %w", err)
		}
		time.Sleep(10 * time.Millisecond) // more than a packet takes to pass this node
	}
	return removed, p.kernel.DeleteTables(ctx, tables()...)
}

// tables are those of both families.
func tables() []nft.Table { return []nft.Table{tableFor(route.IPv4), tableFor(route.IPv6)} }
