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

// writer writes entries. Each phase is written by one mechanism, except the first.
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

// phases yields the steps phase by phase.
func phases(steps []*step, do func([]*step) error) error {
	for len(steps) > 0 {
		end := slices.IndexFunc(steps, func(s *step) bool { return s.Phase != steps[0].Phase })
		if end < 0 {
			end = len(steps)
		}
		if err := do(steps[:end]); err != nil {
			return err
		}
		steps = steps[end:]
	}
	return nil
}

// Write implements ledger.Writer. Each step may be carried out twice: a phase that the
// kernel refuses is written again in parts.
func (w writer) Write(ctx context.Context, steps []*step) error {
	return phases(steps, func(steps []*step) error {
		err := w.write(ctx, steps)
		_, rules := errors.AsType[*iptables.RestoreError](err)
		if rules || errors.Is(err, ipvs.ErrScheduler) || errors.Is(err, ipset.ErrFull) {
			return &ledger.Refusal{Phase: steps[0].Phase, Err: err}
		}
		return err
	})
}

// write writes the steps of one phase.
func (w writer) write(ctx context.Context, steps []*step) error {
	b, err := w.batch(ctx, steps)
	if err != nil {
		return err
	}
	return b.write(ctx, w.kernel)
}

// batch is what the steps of one phase change in each mechanism.
type batch struct {
	device      ledger.Op // Add or Remove, if there is a step for the interface
	hasDevice   bool
	add, remove []netip.Addr
	sets        []ipset.Change
	servers     []ipvs.Change
	rules       map[route.Family]string // input of iptables-restore
}

// batch translates steps. Removed destinations with connections drain instead.
func (w writer) batch(ctx context.Context, steps []*step) (batch, error) {
	var b batch
	for _, s := range steps {
		k := s.Key
		switch k.class {
		case device:
			b.device, b.hasDevice = s.Op, true
		case set, member:
			b.sets = append(b.sets, w.setChange(s))
		case chain, jump:
			if b.rules == nil {
				b.rules = compose(steps)
			}
		case server:
			b.servers = append(b.servers, serverChange(s))
		case destination:
			b.servers = append(b.servers, destinationChange(s))
		case address:
			if s.Op == ledger.Remove {
				b.remove = append(b.remove, k.at.Addr())
			} else {
				b.add = append(b.add, k.at.Addr())
			}
		}
	}
	var err error
	b.servers, err = w.retire(ctx, b.servers)
	return b, err
}

func (b batch) write(ctx context.Context, k Kernel) error {
	if b.hasDevice && b.device == ledger.Add {
		if err := k.Links.Create(ctx, Device); err != nil {
			return err
		}
	}
	for _, f := range []route.Family{route.IPv4, route.IPv6} {
		if input := b.rules[f]; input != "" {
			if err := k.Chains.Restore(ctx, familyOf(f).kernel, []byte(input)); err != nil {
				return err
			}
		}
	}
	if len(b.sets) > 0 {
		if err := k.Sets.Apply(ctx, b.sets); err != nil {
			return err
		}
	}
	if len(b.servers) > 0 {
		if err := k.Servers.Apply(ctx, b.servers); err != nil {
			return err
		}
	}
	if b.hasDevice && b.device == ledger.Remove {
		return k.Links.Delete(ctx, Device)
	}
	if len(b.add)+len(b.remove) == 0 {
		return nil
	}
	return k.Links.Change(ctx, Device, b.add, b.remove)
}

// Print implements ledger.Writer. It returns commands with their input.
func (w writer) Print(steps []*step) string {
	var out strings.Builder
	section := func(title string, lines []string) {
		if len(lines) > 0 {
			out.WriteString("# " + title + "\n" + strings.Join(lines, "\n") + "\n")
		}
	}
	_ = phases(steps, func(steps []*step) error { // it returns no error
		var b batch
		var links, sets, servers []string
		for _, s := range steps {
			switch k := s.Key; k.class {
			case device:
				links = append(links, "link "+verb(s, "del")+" "+Device+" type dummy")
			case address:
				links = append(links, "address "+verb(s, "del")+" "+k.at.Addr().String()+" dev "+Device)
			case set, member:
				sets = append(sets, w.setChange(s).String())
			case chain, jump:
				b.rules = compose(steps)
			case server:
				servers = append(servers, serverChange(s).String())
			case destination:
				servers = append(servers, destinationChange(s).String())
			}
		}
		section("ip -batch -", links)
		section("ipset restore", sets)
		section("ipvsadm --restore", servers)
		for _, f := range []route.Family{route.IPv4, route.IPv6} {
			if b.rules[f] != "" {
				section(familyOf(f).program+"-restore --noflush", []string{strings.TrimSuffix(b.rules[f], "\n")})
			}
		}
		return nil
	})
	return out.String()
}

func verb(s *step, remove string) string {
	if s.Op == ledger.Remove {
		return remove
	}
	return "add"
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
	if s.Op == ledger.Remove {
		return ipvs.Change{Op: ipvs.Delete, Server: s.Key.server}
	}
	return ipvs.Change{Op: ipvs.Set, Server: s.Key.server, Settings: s.New.settings}
}

func destinationChange(s *step) ipvs.Change {
	c := ipvs.Change{Op: ipvs.SetDest, Server: s.Key.server, Dest: ipvs.Destination{At: s.Key.at, Weight: s.New.weight}}
	if s.Op == ledger.Remove {
		c.Op = ipvs.DeleteDest
	}
	return c
}

// compose prints the steps of chains and jumps as the input of iptables-restore. A table
// changes as a whole.
func compose(steps []*step) map[route.Family]string {
	all := map[route.Family]string{}
	for _, f := range []route.Family{route.IPv4, route.IPv6} {
		for _, table := range tables() {
			var names, rules, jumps, gone strings.Builder
			for _, s := range steps {
				of, rest, _ := strings.Cut(s.Key.name, " ")
				if s.Key.family != f || of != table {
					continue
				}
				name, rule, _ := strings.Cut(rest, " ")
				switch {
				case s.Key.class == jump && s.Op == ledger.Remove:
					jumps.WriteString("-D " + name + " " + rule + "\n")
				case s.Key.class == jump:
					jumps.WriteString("-I " + name + " " + rule + "\n")
				default:
					names.WriteString(":" + name + " - [0:0]\n")
					for line := range strings.Lines(s.New.rules) {
						rules.WriteString("-A " + name + " " + line)
					}
					if s.Op == ledger.Remove {
						gone.WriteString("-X " + name + "\n")
					}
				}
			}
			if text := names.String() + rules.String() + jumps.String() + gone.String(); text != "" {
				all[f] += "*" + table + "\n" + text + "COMMIT\n"
			}
		}
	}
	return all
}
