// Package layer2 writes rules of nf_tables by which the nodes of one network pass packets of external clients on to
// each other, unchanged. Its tables stay in the kernel when the process ends.
package layer2

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/direct"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/slots"
	"github.com/sluice-proxy/sluice/internal/work"
)

// Kernel reads and writes nf_tables. nft.Conn implements it.
type Kernel interface {
	Commit(ctx context.Context, tx *nft.Tx) error
	DeleteTables(ctx context.Context, tables ...nft.Table) error
	Has(ctx context.Context, t nft.Table, chain string) (bool, error)
	Read(ctx context.Context, t nft.Table, expected []nft.ExpectedKeys) (*nft.State, error)
}

// Options for New. All are required.
type Options struct {
	Kernel Kernel
	Room   func() int // maximum size of a transaction, in bytes
	Watch  func(ctx context.Context, tables []nft.Table, subscribed func(), report func(nft.Edit)) error
	Peers  *cluster.Peers
	Self   string // the name of this node

	// Neighbours returns the neighbours by which this host reaches the addresses (rtnl.Links).
	Neighbours func(context.Context, []netip.Addr) (rtnl.Neighbourhood, error)

	// Probe sends packets from an address to neighbours, and reports which came back (rtnl.Links).
	Probe func(self netip.Addr, to []netip.Addr) ([]bool, error)

	Tunnel Tunnel
	Port   uint16 // UDP port of the tunnel; 0: no tunnel, and that of an earlier run is removed

	Failed func(error) // called with errors, after which the Follower tries again

	// Moved is called when the hardware address of a node has changed: another host may have taken over its IP address.
	Moved func(node string, from, to net.HardwareAddr)
}

// Follower writes the tables. Its methods are safe for concurrent use.
type Follower struct {
	opt     Options
	loop    *work.Loop
	needed  chan struct{} // closed when the first port is served directly
	setNeed func()

	mu      sync.Mutex
	started bool // the first change was applied
	ports   map[route.PortID]*port
	changed map[route.PortID]bool // ports to render
	edited  bool                  // another program changed the tables
	status  *plane.Direct

	// Used by update only.
	g       generation
	written *content // nil if the content of the tables is unknown
	reach   *reach

	restored bool            // former owners were read from the tables of an earlier run
	numbers  map[link]uint16 // from 1 on
	links    []link          // by number - 1
	macs     map[linkKey][6]byte
	probed   time.Time       // when the last round of probes began
	trusted  map[linkKey]int // see trust
	unsent   map[route.Family]error
}

const (
	// pollPeriod is the shortest time between two polls of the neighbours. The pause is also at least pollFactor times the
	// duration of a poll, up to pollPause, unless a node that is reached has not answered the last probe.
	pollPeriod = time.Second
	pollFactor = 200
	pollPause  = 5 * time.Second
)

// New returns a Follower. It does nothing yet.
func New(o Options) *Follower {
	f := &Follower{
		opt: o, needed: make(chan struct{}), ports: map[route.PortID]*port{}, changed: map[route.PortID]bool{},
		numbers: map[link]uint16{}, macs: map[linkKey][6]byte{}, unsent: map[route.Family]error{},
	}
	f.setNeed = sync.OnceFunc(func() { close(f.needed) })
	f.loop = work.New(f.update, o.Failed)
	return f
}

// Applied implements plane.Follower. The first call applies the whole table, so that the tables of an earlier run are
// replaced by complete ones.
func (f *Follower) Applied(c route.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.started {
		f.started = true
		for _, svc := range c.Table.Services {
			f.apply(nil, svc)
		}
		f.loop.Wake()
		return
	}
	for _, t := range c.Touched {
		f.apply(t.Old, t.New)
	}
}

// apply replaces the ports of a Service.
func (f *Follower) apply(old, now *route.Service) {
	stays := map[route.PortID]bool{}
	if now != nil {
		for i := range now.Ports {
			if p := &now.Ports[i]; len(p.Owners) > 0 {
				f.set(p.ID(now.Name), p)
				stays[p.ID(now.Name)] = true
			}
		}
	}
	if old == nil {
		return
	}
	for i := range old.Ports {
		id := old.Ports[i].ID(old.Name)
		if f.ports[id] != nil && !stays[id] {
			delete(f.ports, id)
			f.changed[id] = true
			f.loop.Wake()
		}
	}
}

func (f *Follower) set(id route.PortID, p *route.Port) {
	if known := f.ports[id]; known != nil {
		f.ports[id] = &port{Port: p, owners: known.owners, slots: known.slots}
	} else {
		f.ports[id] = &port{Port: p}
	}
	f.changed[id] = true
	f.setNeed()
	f.loop.Wake()
}

// Run writes the tables until the context ends.
func (f *Follower) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.loop.Run(ctx) })
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-f.needed:
		}
		return work.New(f.watch, f.opt.Failed).Run(ctx)
	})
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-f.opt.Peers.Changed():
				f.loop.Wake()
			}
		}
	})
	return group.Wait()
}

// watch receives edits of other programs until the context ends.
func (f *Follower) watch(ctx context.Context) (time.Duration, error) {
	edited := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.edited = true
		f.loop.Wake()
	}
	if err := f.opt.Watch(ctx, Tables(), func() {}, func(nft.Edit) { edited() }); err != nil {
		return 0, fmt.Errorf("watch the tables %s, trying again: %w", generation(0).name(), err)
	}
	return 0, nil
}

// update writes changes. It returns the time until the next poll of the neighbours; 0 if none is needed.
func (f *Follower) update(ctx context.Context) (time.Duration, error) {
	ports, changed, idle := f.takeChanges()
	if idle {
		return 0, nil
	}
	if len(ports) == 0 {
		return 0, f.remove(ctx)
	}
	f.opt.Peers.Want()
	nodes, listed := f.opt.Peers.All()
	if !listed {
		return 0, nil // Peers.Changed wakes the loop
	}
	if err := f.restoreOnce(ctx, nodes, ports); err != nil {
		return 0, f.retry(changed, err)
	}
	began := time.Now()
	keys, addrs := addresses(f.opt.Self, nodes)
	n, err := f.opt.Neighbours(ctx, addrs)
	if err != nil {
		return 0, f.retry(changed, err)
	}
	next := max(pollPeriod, min(pollFactor*time.Since(began), pollPause))
	now := newReach(keys, n)
	for _, n := range nodes {
		if n.Name == f.opt.Self {
			now.self = firsts(n)
		}
	}
	f.reportMoved(now)
	if f.probe(now); doubted(f.trusted) {
		next = pollPeriod
	}
	if err := f.addTunnel(ctx, now, nodes); err != nil {
		return 0, f.retry(changed, err)
	}
	if err := f.write(ctx, ports, changed, now); err != nil {
		return 0, f.retry(changed, err)
	}
	f.publish(keys, ports)
	return next, nil
}

// reportMoved reports changed hardware addresses.
func (f *Follower) reportMoved(now *reach) {
	for key, mac := range now.mac {
		if was, has := f.macs[key]; has && was != mac {
			f.opt.Moved(key.node, was[:], mac[:])
		}
		f.macs[key] = mac
	}
}

// takeChanges updates the slots of changed ports. It returns all ports, and the IDs of the changed ones. idle is true
// before the first change.
func (f *Follower) takeChanges() (ports map[route.PortID]*port, changed map[route.PortID]bool, idle bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.edited {
		f.edited, f.written = false, nil
	}
	changed, f.changed = f.changed, map[route.PortID]bool{}
	for id := range changed {
		if p := f.ports[id]; p != nil && !slices.Equal(p.owners, p.Owners) {
			f.ports[id] = &port{p.Port, p.Owners, p.slots.Next(p.Owners)}
		}
	}
	return maps.Clone(f.ports), changed, !f.started
}

// restoreOnce adds the former owners of an earlier run to the ports, in the first update.
func (f *Follower) restoreOnce(ctx context.Context, nodes []*cluster.Node, ports map[route.PortID]*port) error {
	if f.restored {
		return nil
	}
	names := map[netip.Addr]string{}
	keys, addrs := addresses(f.opt.Self, nodes)
	for i, a := range addrs {
		names[a] = keys[i].node
		names[rtnl.Inner(keys[i].node, a)] = keys[i].node
	}
	if err := f.restore(ctx, ports, names); err != nil {
		return err
	}
	f.restored = true
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, p := range ports {
		if now := f.ports[id]; now != nil {
			f.ports[id] = &port{now.Port, p.owners, p.slots}
		}
	}
	return nil
}

// retry marks ports as changed, so that the next update rebuilds the tables. It returns err.
func (f *Follower) retry(changed map[route.PortID]bool, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range changed {
		f.changed[id] = true
	}
	f.written = nil
	return err
}

// write updates or rebuilds the tables from the ports and the reach.
func (f *Follower) write(
	ctx context.Context, ports map[route.PortID]*port, changed map[route.PortID]bool, r *reach,
) error {
	same := r.equal(f.reach)
	if f.written != nil && same && len(changed) == 0 {
		return nil
	}
	c := &content{
		layout: layout{devices: r.devices, self: r.self, tunnel: f.opt.Port}, small: map[setKey]map[string]nft.Element{},
		ports: map[route.PortID]*rendered{}, addrs: map[netip.Addr]*rendered{},
	}
	for id, p := range ports {
		c.addSmall(p)
		if f.written != nil && same && !changed[id] {
			c.ports[id] = f.written.ports[id]
		} else {
			c.ports[id] = p.render(f.opt.Self, r, f.number)
		}
		c.addAddrs(p, c.ports[id])
	}
	c.addNodes(r, f.number)
	w := &writer{g: f.g, links: f.links, room: f.opt.Room(), commit: func(tx *nft.Tx) error {
		return f.opt.Kernel.Commit(ctx, tx)
	}}
	if f.written != nil && f.written.equal(c.layout) {
		w.update(f.written, c)
	} else if err := f.rebuild(ctx, w, c); err != nil {
		return err
	}
	f.written, f.reach = c, r
	return w.err
}

// number returns the number of a link, from 1 on. The number of a link never changes.
func (f *Follower) number(l link) uint16 {
	if f.numbers[l] == 0 {
		f.links = append(f.links, l)
		f.numbers[l] = uint16(len(f.links))
	}
	return f.numbers[l]
}

// remove deletes the tables and the tunnel.
func (f *Follower) remove(ctx context.Context) error {
	_, err := Remove(ctx, f.opt.Kernel, f.opt.Tunnel)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written, f.status = nil, nil
	return err
}

// publish updates the status.
func (f *Follower) publish(keys []linkKey, ports map[route.PortID]*port) {
	var sum slots.Checksum
	for id, p := range ports {
		direct.Sum(&sum, id, p.owners)
	}
	s := &plane.Direct{Ports: len(ports), Checksum: sum.String()}
	for _, k := range keys {
		s.Peers = append(s.Peers, plane.Peer{Node: k.node, Family: k.family.String(), Why: f.reach.why[k]})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = s
}

// Status returns the current status; nil if no port is served directly.
func (f *Follower) Status() *plane.Direct {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}
