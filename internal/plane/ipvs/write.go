package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/ipset"
	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kernel/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// writer writes entries, phase by phase.
type writer struct {
	kernel Kernel
	room   int
	sets   map[route.Family]map[string]ipset.Kind // as setKinds returns them
	drains drains
	now    func() time.Time
}

// Room implements ledger.Writer.
func (w writer) Room() int { return w.room }

// Size implements ledger.Writer.
func (writer) Size(step) int { return 1 }

// Write implements ledger.Writer. Each step may be carried out twice: a phase that the
// kernel refuses is written again in parts.
func (w writer) Write(ctx context.Context, steps []*step) error {
	for len(steps) > 0 {
		phase, end := steps[0].Phase, len(steps)
		if i := slices.IndexFunc(steps, func(s *step) bool { return s.Phase != phase }); i >= 0 {
			end = i
		}
		err := w.write(ctx, steps[:end])
		_, rejected := errors.AsType[*iptables.RestoreError](err)
		if rejected || errors.Is(err, ipvs.ErrScheduler) || errors.Is(err, ipset.ErrFull) {
			return &ledger.Refusal{Phase: phase, Err: err}
		}
		if err != nil {
			return err
		}
		steps = steps[end:]
	}
	return nil
}

// write writes the steps of one phase, which are of one mechanism. Removed destinations
// with connections drain instead.
func (w writer) write(ctx context.Context, steps []*step) error {
	var members []ipset.Change
	var servers []ipvs.Change
	var add, remove []netip.Addr
	for _, s := range steps {
		switch removed := s.Op == ledger.Remove; s.Key.class {
		case device:
			if removed {
				return w.kernel.Links.Delete(ctx, Device)
			}
			return w.kernel.Links.Create(ctx, Device)
		case rules:
			if err := w.kernel.Chains.Restore(ctx, familyOf(s.Key.family).kernel, iptables.Replace(s.Old.rules, s.New.rules)); err != nil {
				return err
			}
		case set, member:
			members = append(members, w.setChange(s))
		case server, destination:
			servers = append(servers, serverChange(s))
		case address:
			if removed {
				remove = append(remove, s.Key.at.Addr())
			} else {
				add = append(add, s.Key.at.Addr())
			}
		}
	}
	switch {
	case members != nil:
		return w.kernel.Sets.Apply(ctx, members)
	case servers != nil:
		changes, err := w.retire(ctx, servers)
		if err != nil {
			return err
		}
		return w.kernel.Servers.Apply(ctx, changes)
	case len(add)+len(remove) > 0:
		return w.kernel.Links.Change(ctx, Device, add, remove)
	}
	return nil
}

// Print implements ledger.Writer. It returns commands with their input.
func (w writer) Print(steps []*step) string {
	var out strings.Builder
	last := ""
	phase := ledger.Phase(0)
	for _, s := range steps {
		program, line := w.command(s)
		if program != last || s.Phase != phase {
			out.WriteString("# " + program + "\n")
			last, phase = program, s.Phase
		}
		out.WriteString(line)
	}
	return out.String()
}

// command returns the program that could carry out a step, and its input.
func (w writer) command(s *step) (program, input string) {
	verb := "add "
	if s.Op == ledger.Remove {
		verb = "del "
	}
	switch k := s.Key; k.class {
	case device:
		return "ip -batch -", "link " + verb + Device + " type dummy\n"
	case address:
		return "ip -batch -", "address " + verb + k.at.Addr().String() + " dev " + Device + "\n"
	case set, member:
		return "ipset restore", w.setChange(s).String() + "\n"
	case rules:
		return familyOf(k.family).program + "-restore --noflush", string(iptables.Replace(s.Old.rules, s.New.rules))
	default:
		return "ipvsadm --restore", serverChange(s).String() + "\n"
	}
}

func (w writer) setChange(s *step) ipset.Change {
	c := ipset.Change{Set: setName(s.Key.family, s.Key.name), Kind: w.sets[s.Key.family][s.Key.name], Member: s.Key.member, Mark: s.New.mark}
	switch removed := s.Op == ledger.Remove; {
	case s.Key.class == set && removed:
		c.Op = ipset.Destroy
	case s.Key.class == set:
		c.Op = ipset.Create
	case removed:
		c.Op = ipset.Delete
	default:
		c.Op = ipset.Add
	}
	return c
}

func serverChange(s *step) ipvs.Change {
	c := ipvs.Change{Server: s.Key.server, Settings: s.New.settings}
	switch removed := s.Op == ledger.Remove; {
	case s.Key.class == destination && removed:
		c.Op = ipvs.DeleteDest
	case s.Key.class == destination:
		c.Op = ipvs.SetDest
	case removed:
		c.Op = ipvs.Delete
	}
	if s.Key.class == destination {
		c.Dest = ipvs.Destination{At: s.Key.at, Weight: s.New.weight}
	}
	return c
}
