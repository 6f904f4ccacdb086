package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// The model test: after any sequence of changes and failures the kernel holds the same
// as if everything had been written at once.

func TestModelOnTheFake(t *testing.T) {
	for seed := range seeds.Of(t, 20) {
		if err := newSubject(newFake().kernel()).run(seed, planetest.Rounds); err != nil {
			t.Fatal(err)
		}
	}
}

// subject is the plane and a kernel, for the model.
type subject struct {
	kernel  Kernel
	faults  *planetest.Faults
	foreign []ipvs.Server // virtual servers of other programs
}

func newSubject(kernel Kernel) *subject {
	return &subject{kernel: kernel, faults: &planetest.Faults{Room: 1 << 20}}
}

func (s *subject) run(seed uint64, rounds int) error {
	return planetest.NewModel(seed, s.hooks()).RunFor(rounds)
}

func newPlane(kernel Kernel, families []route.Family, room int) *Plane {
	return New(kernel, Options{Families: families, Mark: 0x4000, Room: room, Exclude: planetest.Prefixes("192.0.2.0/24")})
}

func (s *subject) hooks() planetest.Subject {
	return planetest.Subject{
		Plane: func(route.Options) plane.Plane {
			return newPlane(faulty{s.kernel, s.faults}.kernel(), route.Families(), s.faults.Room)
		},
		Faults:  s.faults,
		Rooms:   []int{1, 20, 60, 60, 200, 1 << 20, 1 << 20},
		State:   s.state,
		Scratch: func() planetest.Subject { return newSubject(newFake().kernel()).hooks() },
		Edit:    s.edit,
		Disturbed: func(err error) bool {
			_, refused := errors.AsType[plane.Refused](err)
			return refused
		},
	}
}

// state prints what the plane owns, and checks that the virtual server of another program is there.
func (s *subject) state(*route.Table) (string, error) {
	families := route.Families()
	p := newPlane(s.kernel, families, 1)
	st, err := p.read(context.Background())
	if err != nil {
		return "", err
	}
	for _, f := range s.foreign {
		if st.servers[f] == nil {
			return "", fmt.Errorf("the virtual server %s of another program is gone", f)
		}
		delete(st.servers, f)
	}
	return st.print(families), nil
}

// edit edits the kernel as another program might.
func (s *subject) edit(w *planetest.World) error {
	ctx := context.Background()
	st, err := newPlane(s.kernel, route.Families(), 1).read(ctx)
	if err != nil {
		return err
	}
	var changes []ipvs.Command
	for server, f := range st.servers {
		if slices.Contains(s.foreign, server) {
			continue
		}
		switch w.IntN(8) {
		case 0:
			changes = append(changes, ipvs.Command{Op: ipvs.Delete, Server: server})
		case 1:
			f.settings.Scheduler = "wrr"
			changes = append(changes, ipvs.Command{Op: ipvs.Set, Server: server, Settings: f.settings})
		case 2:
			for at := range f.dests {
				changes = append(changes, ipvs.Command{
					Op: planetest.Pick(w.Rand, ipvs.DeleteDest, ipvs.SetDest), Server: server,
					Dest: ipvs.Destination{At: at, Weight: uint32(w.IntN(3))},
				})
			}
		case 3:
			at := netip.AddrPortFrom(server.Addr.Next(), 9)
			changes = append(changes, ipvs.Command{Op: ipvs.SetDest, Server: server, Dest: ipvs.Destination{At: at, Weight: 1}})
		}
	}
	slices.SortFunc(changes, func(a, b ipvs.Command) int { return int(b.Op) - int(a.Op) })
	if w.Chance(3) {
		foreign := ipvs.Server{Addr: netip.MustParseAddr("192.0.2.7"), Protocol: 6, Port: 80}
		changes = append(changes, ipvs.Command{Op: ipvs.Set, Server: foreign, Settings: ipvs.Settings{Scheduler: "lc"}})
		if !slices.Contains(s.foreign, foreign) {
			s.foreign = append(s.foreign, foreign)
		}
	}
	if w.Chance(3) { // a Service that is gone
		stale := ipvs.Server{Addr: netip.MustParseAddr("192.168.0.2"), Protocol: 17, Port: 30999}
		changes = append(changes, ipvs.Command{Op: ipvs.Set, Server: stale, Settings: ipvs.Settings{Scheduler: "rr"}})
	}
	if err := s.kernel.Servers.Apply(ctx, changes); err != nil {
		return err
	}
	if w.Chance(2) {
		return s.editSets(w, st)
	}
	if !st.device {
		return nil
	}
	var gone []netip.Addr
	for a := range st.addrs {
		if w.Chance(6) {
			gone = append(gone, a)
		}
	}
	return s.kernel.Links.Change(ctx, Device, planetest.Addrs("172.30.9.9"), gone)
}

func (s *subject) editSets(w *planetest.World, st *state) error {
	var changes []ipset.Command
	cleared := setName(planetest.Pick(w.Rand, route.Families()...),
		planetest.Pick(w.Rand, clusterIPs, loopBack, boundIPs, loadBalancers, externalIPs))
	for name, set := range st.sets {
		for m := range set.Members {
			if name == cleared && w.Chance(2) {
				changes = append(changes, ipset.Command{Op: ipset.Delete, Set: name, Definition: set.Definition, Member: m})
			}
		}
		if set.Type == ipset.Port && w.Chance(4) {
			changes = append(changes, ipset.Command{
				Op: ipset.Add, Set: name, Definition: set.Definition, Member: ipset.Member{Port: 31999},
			})
		}
	}
	return s.kernel.Sets.Apply(context.Background(), changes)
}

// markNames returns names for marks, whose numbers may depend on history: a frontend that has the mark.
func (s *state) markNames(families []route.Family) map[uint32]string {
	names := map[uint32]string{}
	for _, f := range families {
		set := s.sets[setName(f, circuits)]
		if set == nil {
			continue
		}
		for m, mark := range set.Members {
			if text := m.String(); names[mark] == "" || text < names[mark] {
				names[mark] = text
			}
		}
	}
	return names
}

// print prints what the plane owns of some families, sorted.
func (s *state) print(families []route.Family) string {
	var lines []string
	add := func(a netip.Addr, format string, args ...any) {
		if slices.Contains(families, route.FamilyOf(a)) {
			lines = append(lines, fmt.Sprintf(format, args...))
		}
	}
	names := s.markNames(families)
	for server, f := range s.servers {
		if server.Mark != 0 {
			for at, weight := range f.dests {
				add(server.Addr, "mark of %s: %s %d", names[server.Mark], at, weight)
			}
			add(server.Addr, "mark of %s: %v", names[server.Mark], f.settings)
			continue
		}
		add(server.Addr, "%s", ipvs.Command{Op: ipvs.Set, Server: server, Settings: f.settings})
		for at, weight := range f.dests {
			dest := ipvs.Destination{At: at, Weight: weight}
			add(server.Addr, "%s", ipvs.Command{Op: ipvs.SetDest, Server: server, Dest: dest})
		}
	}
	for a := range s.addrs {
		add(a, "address %s", a)
	}
	for _, f := range families {
		for name := range setKinds(f) {
			set := s.sets[setName(f, name)]
			if set == nil {
				continue
			}
			for m, mark := range set.Members {
				lines = append(lines, fmt.Sprint(setName(f, name), " ", m, " ", names[mark]))
			}
		}
		for table, chains := range s.chains[f] {
			for name, c := range chains {
				for i, rule := range c.Rules {
					lines = append(lines, fmt.Sprint(f, table, name, i, rule))
				}
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
