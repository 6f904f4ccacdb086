// Package ipvs is the plane that balances with IPVS: each address of a Service is a virtual server, and its endpoints
// are destinations. Rules of iptables beside it, which never change with a Service, treat the packets of ipsets: source
// NAT, source ranges, refusal. Virtual servers, sets and chains have kube-proxy's names. README.md draws the path of a
// packet.
package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Device is the interface that has the addresses of Services, with kube-proxy's name.
const Device = "kube-ipvs0"

// Kernel is access to the mechanisms that the plane writes. The zero value is that of a preview: it has nothing, and
// cannot be written.
type Kernel struct {
	Servers Servers
	Sets    Sets
	Links   Links
	Chains  Chains
}

// Servers are the virtual servers: ipvs.Table.
type Servers interface {
	List(ctx context.Context) ([]ipvs.Listed, error)
	Count(ctx context.Context) (int, error) // of IPv4
	Destinations(ctx context.Context, servers ...ipvs.Server) ([][]ipvs.Destination, error)
	Apply(ctx context.Context, changes []ipvs.Command) error
}

// Sets are the ipsets: ipset.Sets.
type Sets interface {
	List(ctx context.Context, names []string) (map[string]*ipset.Set, error)
	Apply(ctx context.Context, changes []ipset.Command) error
}

// Links are the network interfaces: rtnl.Links.
type Links interface {
	Create(ctx context.Context, name string) error
	Addresses(ctx context.Context, name string) ([]netip.Addr, error) // rtnl.ErrNotFound without the interface
	Change(ctx context.Context, name string, add, remove []netip.Addr) error
	Delete(ctx context.Context, name string) error
}

// Chains are the tables of iptables: iptables.Tools.
type Chains interface {
	Read(ctx context.Context, t iptables.Table) (iptables.Chains, error)
	Watch(ctx context.Context, ours func(chain string) bool, subscribed func(), report func(iptables.Edit)) error
	Restore(ctx context.Context, f iptables.Family, input []byte) error
}

// Options for New.
type Options struct {
	Families    []route.Family // those that the host supports
	Mark        uint32         // bit of the packet mark for packets to masquerade
	KeepInvalid bool           // accepts forwarded packets that are invalid for conntrack
	Exclude     []netip.Prefix // virtual servers at these addresses are never deleted as leftovers
	Poll        time.Duration  // the time between two polls for edits; 0: 1.5 s

	Room int              // how many steps one write has at most; 0: roomDefault
	Now  func() time.Time // nil: time.Now
}

const (
	roomDefault      = 20_000
	defaultScheduler = "rr"
)

// Plane balances with IPVS. It implements plane.Plane.
type Plane struct {
	kernel Kernel
	opt    Options
	ledger *ledger.Ledger[key, value]
	marks  *marks
	writer writer
	check  time.Time // when the connections of drains are counted next

	state *state // that Refresh read; nil once a plan is written

	writes  atomic.Int64           // how often a write began or ended
	trouble atomic.Pointer[string] // of the last poll
}

// New makes a Plane. It does nothing yet.
func New(kernel Kernel, opt Options) *Plane {
	opt.Room, opt.Poll = cmp.Or(opt.Room, roomDefault), cmp.Or(opt.Poll, pollPeriod)
	if opt.Now == nil {
		opt.Now = time.Now
	}
	sets := map[route.Family]map[string]ipset.Definition{
		route.IPv4: setKinds(route.IPv4), route.IPv6: setKinds(route.IPv6),
	}
	p := &Plane{
		kernel: kernel, opt: opt, ledger: ledger.New[key, value](key.handling, key.compare), marks: newMarks(),
		writer: writer{kernel: kernel, room: opt.Room, sets: sets, drains: drains{}},
	}
	p.trouble.Store(new(string))
	return p
}

// Refresh reads all mechanisms.
func (p *Plane) Refresh(ctx context.Context) error {
	s, err := p.read(ctx)
	if err != nil {
		return fmt.Errorf("read kernel state: %w", err)
	}
	p.state = s
	return nil
}

func (p *Plane) read(ctx context.Context) (s *state, err error) {
	s = &state{
		addrs: map[netip.Addr]bool{}, bound: map[netip.Addr]bool{}, servers: map[ipvs.Server]*found{},
		chains: map[route.Family]map[string]iptables.Chains{},
	}
	if p.kernel.Servers == nil {
		return s, nil
	}
	if err := p.readAddresses(ctx, s); err != nil {
		return nil, err
	}
	var names []string
	for _, f := range p.opt.Families {
		for name := range setKinds(f) {
			names = append(names, setName(f, name))
		}
	}
	if s.sets, err = p.kernel.Sets.List(ctx, names); err != nil {
		return nil, err
	}
	for _, ip := range p.opt.Families {
		s.chains[ip] = map[string]iptables.Chains{}
		for _, table := range tableNames() {
			of := iptables.Table{Family: iptables.Family(ip), Name: table}
			if s.chains[ip][table], err = p.kernel.Chains.Read(ctx, of); err != nil {
				return nil, err
			}
		}
	}
	return s, p.readServers(ctx, s)
}

// readAddresses reads the addresses on the interface, without the kernel's own.
func (p *Plane) readAddresses(ctx context.Context, s *state) error {
	all, err := p.kernel.Links.Addresses(ctx, Device)
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	s.device = err == nil
	for _, a := range all {
		if !a.IsLinkLocalUnicast() {
			s.addrs[a], s.bound[a] = true, true
		}
	}
	return err
}

func (p *Plane) readServers(ctx context.Context, s *state) error {
	list, err := p.kernel.Servers.List(ctx)
	if err != nil {
		return err
	}
	keys := make([]ipvs.Server, len(list))
	for i, l := range list {
		keys[i] = l.Server
	}
	dests, err := p.kernel.Servers.Destinations(ctx, keys...)
	if err != nil {
		return err
	}
	for i, l := range list {
		f := &found{settings: l.Settings, dests: make(map[netip.AddrPort]uint32, len(dests[i]))}
		for _, d := range dests[i] {
			f.dests[d.At] = d.Weight
			if d.Weight == 0 && d.Active+d.Inactive > 0 {
				f.drains = append(f.drains, d.At)
			}
		}
		s.servers[l.Server] = f
	}
	return nil
}

// Due returns when the connections to destinations that drain are counted; zero: none drains.
func (p *Plane) Due() time.Time {
	if len(p.writer.drains) == 0 {
		return time.Time{}
	}
	return p.check
}
