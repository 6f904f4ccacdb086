// Package nftables is the plane that balances with nf_tables, in two tables of
// its own, "ip sluice" and "ip6 sluice". README.md draws the path of a packet.
//
// Services are elements of maps, not chains: a change costs a few elements,
// whatever the number of services.
package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Kernel is what the plane needs of nf_tables: nft.Conn, or nft.Fake.
type Kernel interface {
	Reader
	Writer
}

// Reader looks at tables.
type Reader interface {
	Read(ctx context.Context, t nft.Table) (*nft.State, error)
	Watch(ctx context.Context, tables []nft.Table, subscribed func(), tell func(nft.Edit)) error
}

// Writer changes tables. A transaction has Room for so many bytes.
type Writer interface {
	Commit(ctx context.Context, tx *nft.Tx) error
	DeleteTables(ctx context.Context, tables ...nft.Table) error
	Room() int
}

// Options for New.
type Options struct {
	Families []route.Family // those the host can do
	Mark     uint32         // bit of the packet mark for "masquerade this"
}

// Plane balances with nf_tables. It implements plane.Plane.
type Plane struct {
	kernel   Kernel
	opt      Options
	families []family
	layout   layout

	seen   map[nft.Table]*nft.State // what Refresh saw; nil once a Plan used it
	belief belief
	newest uint32 // the newest id of a port that remembers its clients
}

// belief is what the kernel is thought to hold beyond what follows from the
// route.Table: the slots of backends that are not in order or have numbers that
// clients keep, the ids of ports that remember their clients, and how many fronts
// or services share an element or chain.
type belief struct {
	slots map[portKey][]netip.AddrPort
	ids   map[portKey]uint32 // of ports, not pools
	taken map[uint32]bool    // the same ids
	uses  map[use]int32
}

func newBelief() belief {
	return belief{map[portKey][]netip.AddrPort{}, map[portKey]uint32{}, map[uint32]bool{}, map[use]int32{}}
}

// use is an element or a chain that several services may share. It is small and
// has no pointers, as there is one for every ClusterIP.
type use struct {
	addr  [16]byte
	value way
	of    shared
	ip    route.Family
}

// shared says what a use is of.
type shared uint8

const (
	wayChain   shared = iota // the chain of a way
	clusterIPs               // an element of the set of this name
	hairpin                  // the same
	firstWays                // an element of the map of ways of the first level; the other levels follow
)

// New makes a Plane. It does nothing yet.
func New(kernel Kernel, opt Options) *Plane {
	return &Plane{kernel: kernel, opt: opt, families: rows(opt.Families), layout: newLayout()}
}

// Refresh reads both tables, also one of a family that is not served any more.
func (p *Plane) Refresh(ctx context.Context) error {
	seen := map[nft.Table]*nft.State{}
	for _, f := range everyFamily() {
		state, err := p.kernel.Read(ctx, f.table)
		if err != nil {
			return fmt.Errorf("read kernel state: %w", err)
		}
		if state == nil {
			state = &nft.State{}
		}
		seen[f.table] = state
	}
	p.seen = seen
	return nil
}

// Plan works out what to write; after a Refresh by comparing everything.
func (p *Plane) Plan(change route.Change) plane.Plan {
	d := &diff{Plane: p, host: &change.Table.Host, plan: &Plan{kernel: p.kernel}}
	if p.seen == nil {
		d.touched(change)
		return d.plan
	}
	p.belief = newBelief()
	found := elements(p.seen)
	d.everything(change.Table, p.seen)
	d.plan.kept = found - d.plan.gone()
	p.seen = nil
	return d.plan
}

// Watch tells what others change in our tables.
func (p *Plane) Watch(ctx context.Context, subscribed func(), tell func(plane.Edit)) error {
	return p.kernel.Watch(ctx, tables(), subscribed, func(e nft.Edit) {
		by := e.By
		if e.PID != 0 {
			by = fmt.Sprintf("%s (thread %d)", by, e.PID)
		}
		tell(plane.Edit{What: e.String(), By: by})
	})
}

// passing is far longer than a packet takes through this node.
const passing = 10 * time.Millisecond

// Remove deletes both tables, of either family whatever the options say. It closes
// the entrances first: a packet that is in the middle of the tables still finds
// what it looks up, and has its source translated. When a table goes, the
// elements of its maps go a moment before those of its sets, so that such a packet
// would find no front, but that its ClusterIP is one, and be refused.
func (p *Plane) Remove(ctx context.Context) ([]string, error) {
	var removed []string
	closing := &nft.Tx{}
	for _, t := range tables() {
		state, err := p.kernel.Read(ctx, t)
		if err != nil {
			return nil, fmt.Errorf("look at what is to be removed: %w", err)
		}
		if state == nil {
			continue
		}
		removed = append(removed, fmt.Sprintf("table %s with %d elements", t, state.Count()))
		for name, c := range state.Chains {
			if c.Entrance() {
				closing.FlushChain(t, name)
			}
		}
	}
	if closing.Size() > 0 {
		if err := p.kernel.Commit(ctx, closing); err != nil {
			return nil, fmt.Errorf("close what is to be removed: %w", err)
		}
		time.Sleep(passing)
	}
	if err := p.kernel.DeleteTables(ctx, tables()...); err != nil {
		return nil, err
	}
	return removed, nil
}

// tables are those of both families.
func tables() []nft.Table {
	var all []nft.Table
	for _, f := range everyFamily() {
		all = append(all, f.table)
	}
	return all
}
