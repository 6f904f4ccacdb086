// Package ebpf is the plane that balances when sockets connect: programs of cgroup v2 replace the address of the
// Service by that of a backend, so that no packet is translated. It stands on a packet plane, whose rules serve clients
// without a socket on this node, and connections that the programs cannot decide exactly. docs/ebpf.md lists those.
package ebpf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Kernel reads and writes the maps and the programs: bpf.Conn.
type Kernel interface {
	Read(context.Context) (bpf.State, error)
	Write(context.Context, []bpf.Step) error
	Remove(context.Context) ([]string, error)
	Version() string // the value of the entry of the programs
}

// Options for New.
type Options struct {
	// Packets is the plane beneath.
	Packets plane.Plane

	// Ramp starts slow start for backends (bpf.Conn). Nil: new backends get their whole share at once.
	Ramp func(backends []bpf.Member, window time.Duration) error
}

type (
	key   = bpf.Key
	entry = ledger.Entry[bpf.Key, string]
	step  = ledger.Step[bpf.Key, string]
)

// Plane balances sockets, and packets by the plane beneath. It implements plane.Plane.
type Plane struct {
	plane.Above
	kernel Kernel
	opt    Options
	ledger *ledger.Ledger[key, string]
	room   int // maximum number of steps of one write

	failing time.Time // since when the maps miss changes; zero: they do not

	seen   bpf.State // read by Refresh; nil once Plan has used it
	unread error     // why Refresh could not read it; nil once Plan has used it
}

const defaultRoom = 1 << 14

// staleLimit is how long the maps may miss changes; then the programs are detached.
const staleLimit = 30 * time.Second

// New makes a Plane. It does nothing yet.
func New(k Kernel, opt Options) *Plane {
	return &Plane{
		Above: plane.Above{Beneath: opt.Packets}, kernel: k, opt: opt, ledger: ledger.New[key, string](handling, order),
		room: defaultRoom,
	}
}

// Refresh reads the maps, and refreshes the plane beneath. If the maps cannot be read, the next Plan writes the rules
// only, and its Apply returns the error. An interrupted Refresh changes nothing.
func (p *Plane) Refresh(ctx context.Context) error {
	p.seen, p.unread = nil, nil
	seen, unread := p.kernel.Read(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := p.opt.Packets.Refresh(ctx); err != nil {
		return err
	}
	if p.seen = seen; unread != nil {
		p.unread = fmt.Errorf("read the maps: %w", unread)
	}
	return nil
}

// Plan is a change of the maps, and of the rules of the plane beneath.
type Plan struct {
	ledger.Plans // packets and maps
	plane        *Plane
	change       route.Change
	packets      plane.Plan
	maps         *ledger.Plan[key, string]
	ramps        ramps
	unread       error // the maps could not be read: only rules are written
}

// Plan computes the steps for a change. After a Refresh it compares all entries.
func (p *Plane) Plan(change route.Change) plane.Plan {
	plan := &Plan{plane: p, change: change, packets: p.opt.Packets.Plan(change), ramps: ramps{}}
	w := writer{p.kernel, p.room}
	switch {
	case p.unread != nil:
		plan.maps, plan.unread = p.ledger.Change(w), p.unread
		p.unread = nil
	case p.seen != nil:
		plan.maps = p.ledger.Compare(w, ledger.MapListing[key, string](p.seen))
		p.seen = nil
		plan.maps.Host(nil, p.host(&change.Table.Host))
		for _, name := range change.Table.Order() {
			plan.maps.Service(name, nil, p.render(change.InKernel(name)))
		}
	default:
		plan.maps = p.ledger.Change(w)
		if change.OldHost != nil {
			plan.maps.Host(p.host(change.OldHost), p.host(&change.Table.Host))
		}
		for _, t := range change.Touched {
			plan.maps.Service(t.Name, p.render(t.Old), p.render(t.New))
			if p.opt.Ramp != nil {
				plan.ramps.add(t.Old, t.New)
			}
		}
	}
	plan.maps.End()
	plan.Plans = ledger.Plans{plan.packets, plan.maps}
	return plan
}

// Apply writes the rules first, as the programs rely on them for connections that they cannot decide. If the kernel
// refuses the rules of a Service, the programs still balance it.
func (p *Plan) Apply(ctx context.Context) error {
	refused := plane.Refused{}
	if err := refused.Merge(p.packets.Apply(ctx)); err != nil {
		return err
	}
	full := plane.Refused{}
	if err := p.plane.written(ctx, full.Merge(p.applyMaps(ctx))); err != nil {
		return err
	}
	for _, name := range full.Names() {
		if err := p.plane.withdraw(ctx, p.change.InKernel(name)); err != nil {
			return fmt.Errorf("leave Service %s to packets: %w", name, err)
		}
	}
	_ = refused.Merge(full) // nil, as for any Refused
	return refused.Err()
}

// applyMaps writes the maps.
func (p *Plan) applyMaps(ctx context.Context) error {
	if p.unread != nil {
		return p.unread
	}
	for window, backends := range p.ramps { // before slots refer to them
		if err := p.plane.opt.Ramp(backends, window); err != nil {
			return fmt.Errorf("slow start: %w", err)
		}
	}
	return p.maps.Apply(ctx)
}

// written returns the error of a write of the maps, if any. If writes fail for long, it removes programs and maps, as
// they may have backends that are gone: packets serve all connections then, until a write succeeds.
func (p *Plane) written(ctx context.Context, err error) error {
	switch {
	case err == nil:
		p.failing = time.Time{}
		return nil
	case ctx.Err() != nil:
		return err
	case p.failing.IsZero():
		p.failing = time.Now()
	}
	if time.Since(p.failing) < staleLimit {
		return err
	}
	if _, failed := p.kernel.Remove(ctx); failed != nil {
		return errors.Join(err, fmt.Errorf("detach programs that may still use deleted backends: %w", failed))
	}
	return fmt.Errorf("all connections are translated by packet, as socket programs may use deleted backends: %w", err)
}

// withdraw leaves a Service to packets for which the kernel has no room: it removes its frontends. Otherwise sockets
// would connect to its former backends.
func (p *Plane) withdraw(ctx context.Context, svc *route.Service) error {
	for _, e := range p.render(svc) {
		if e.Key.Table != bpf.Frontends {
			continue
		}
		err := p.kernel.Write(ctx, []bpf.Step{{Entry: bpf.Entry{Key: e.Key}, Remove: true}})
		if err != nil && !errors.Is(err, bpf.ErrNotFound) {
			return err
		}
	}
	return nil
}

// Unread returns why the maps could not be compared; nil if they were.
func (p *Plan) Unread() error { return p.unread }
