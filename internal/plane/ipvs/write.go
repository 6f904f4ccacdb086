package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane/ledger"
	"github.com/sluice-proxy/sluice/internal/route"
)

// writer writes entries, phase by phase.
type writer struct {
	kernel Kernel
	room   int
	sets   map[route.Family]map[string]ipset.Definition // as setKinds returns them
	drains drains
}

// Room implements ledger.Writer.
func (w writer) Room() int { return w.room }

// Size implements ledger.Writer.
func (writer) Size(step) int { return 1 }

// Write implements ledger.Writer. What is not of one table of iptables may be carried out
// twice: a phase that the kernel refuses is written again in parts.
func (w writer) Write(ctx context.Context, steps []*step) error {
	for len(steps) > 0 {
		end := 1
		for end < len(steps) && together(steps[0], steps[end]) {
			end++
		}
		if err := w.write(ctx, steps[:end]); err != nil {
			return err
		}
		steps = steps[end:]
	}
	return nil
}

// together reports whether steps are written at once: those of a phase, and the tables of a family.
func together(a, b *step) bool {
	return a.Phase == b.Phase || a.Key.class == rules && b.Key.class == rules && a.Key.family == b.Key.family
}

// write writes steps of one mechanism.
func (w writer) write(ctx context.Context, steps []*step) error {
	var err error
	switch first := steps[0]; first.Key.class {
	case rules:
		return w.restore(ctx, steps)
	case device:
		if first.Op == ledger.Remove {
			return w.kernel.Links.Delete(ctx, Device)
		}
		return w.kernel.Links.Create(ctx, Device)
	case address:
		return w.change(ctx, steps)
	case set, member:
		changes := make([]ipset.Command, len(steps))
		for i, s := range steps {
			changes[i] = w.setChange(s)
		}
		err = w.kernel.Sets.Apply(ctx, changes)
	case server, destination:
		err = w.balance(ctx, steps)
	}
	if errors.Is(err, ipvs.ErrScheduler) || errors.Is(err, ipset.ErrFull) {
		return &ledger.Refusal{Phase: steps[0].Phase, Err: err}
	}
	return err
}

// restore writes tables of a family, which are committed one by one.
func (w writer) restore(ctx context.Context, steps []*step) error {
	var input []byte
	var phases []ledger.Phase
	for _, s := range steps {
		if table := iptables.Replace(s.Old.rules, s.New.rules); len(table) > 0 {
			input, phases = append(input, table...), append(phases, s.Phase)
		}
	}
	err := w.kernel.Chains.Restore(ctx, iptables.Family(steps[0].Key.family), input)
	if refused, is := errors.AsType[*iptables.RestoreError](err); is {
		return &ledger.Refusal{Phase: phases[min(refused.Committed, len(phases)-1)], Err: err}
	}
	return err
}

// change writes addresses.
func (w writer) change(ctx context.Context, steps []*step) error {
	var add, remove []netip.Addr
	for _, s := range steps {
		if a := s.Key.at.Addr(); s.Op == ledger.Remove {
			remove = append(remove, a)
		} else {
			add = append(add, a)
		}
	}
	return w.kernel.Links.Change(ctx, Device, add, remove)
}

// balance writes virtual servers and destinations. Removed destinations with connections drain instead.
func (w writer) balance(ctx context.Context, steps []*step) error {
	changes := make([]ipvs.Command, len(steps))
	for i, s := range steps {
		changes[i] = serverChange(s)
	}
	changes, err := w.retire(ctx, changes)
	if err != nil {
		return err
	}
	return w.kernel.Servers.Apply(ctx, changes)
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
		return iptables.Family(k.family).Program() + "-restore --noflush", string(iptables.Replace(s.Old.rules, s.New.rules))
	default:
		return "ipvsadm --restore", serverChange(s).String() + "\n"
	}
}

func (w writer) setChange(s *step) ipset.Command {
	c := ipset.Command{
		Set: setName(s.Key.family, s.Key.name), Definition: w.sets[s.Key.family][s.Key.name], Member: s.Key.member,
		Mark: s.New.mark,
	}
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

func serverChange(s *step) ipvs.Command {
	c := ipvs.Command{Server: s.Key.server, Settings: s.New.settings, Exists: s.Op == ledger.Change}
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
