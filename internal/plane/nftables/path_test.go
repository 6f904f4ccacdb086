package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

// Every path exists in the loaded tables: each step exists and leads to the next.
func TestPathsLeadThroughTheTables(t *testing.T) {
	walked := map[string]bool{}
	for detector, opt := range planetest.Detectors() {
		fake := nft.NewFake()
		change := planetest.Compile(planetest.EveryShape(), opt)
		load(t, fake, change)
		for _, svc := range change.Table.Services {
			for i := range svc.Ports {
				for _, p := range connections(svc, i) {
					path := Path(p)
					if err := walk(fake, p, path); err != nil {
						t.Errorf("%s: %+v: %s: %v", detector, p, strings.Join(path, " -> "), err)
					}
					for _, step := range path {
						walked[step] = true
					}
				}
			}
		}
	}
	l := newLayout()
	for of, set := range l {
		ofPath := object(of) >= allowedRanges && !strings.HasSuffix(set.Name, "counts")
		if ofPath && !walked["map "+set.Name] && !walked["set "+set.Name] {
			t.Errorf("no path leads through %s", set.Name)
		}
	}
}

// connections returns connections to a port, from clients of every kind.
func connections(svc *route.Service, port int) []plane.Connection {
	var all []plane.Connection
	p := &svc.Ports[port]
	for i, f := range p.Frontends {
		all = append(all, plane.Connection{Service: svc, Port: port, Frontend: i, KeptOut: f.Restricted})
		for _, inside := range []bool{true, false} {
			all = append(all, plane.Connection{Service: svc, Port: port, Frontend: i, Inside: inside})
		}
	}
	return all
}

// walk verifies a path in the tables.
func walk(fake *nft.Fake, p plane.Connection, path []string) error {
	w := walker{fake, bothTables[0], p}
	port := &p.Service.Ports[p.Port]
	if port.Family == route.IPv6 {
		w.table = bothTables[1]
	}
	k := keyOf(port, &port.Frontends[p.Frontend])
	chain, from := "services", "" // the current chain, and the one it returns to
	for i, step := range path {
		kind, name, _ := strings.Cut(step, " ")
		switch {
		case kind == "chain" && w.mentions(chain, "jump "+name):
			chain, from = name, chain
		case kind == "chain" && w.mentions(from, "jump "+name):
			chain = name
		case kind != "chain":
			if !w.mentions(chain, "@"+name) {
				return fmt.Errorf("chain %s does not use %s", chain, name)
			}
		case i > 0 && strings.HasPrefix(path[i-1], "map "):
			if !slices.Contains(w.leads(strings.TrimPrefix(path[i-1], "map "), k.name), name) {
				return fmt.Errorf("%s does not lead to %s", path[i-1], step)
			}
			chain = name
		case w.mentions(chain, "goto "+name):
			chain = name
		default:
			return fmt.Errorf("chain %s does not lead to %s", chain, name)
		}
	}
	return w.ends(path[len(path)-1], k.name)
}

type walker struct {
	fake  *nft.Fake
	table nft.Table
	plane.Connection
}

// mentions reports whether a rule of a chain has these words.
func (w walker) mentions(chain, words string) bool {
	return slices.ContainsFunc(w.fake.Rules[w.table][chain], func(r nft.Rule) bool {
		return strings.Contains(" "+r.String()+" ", " "+words+" ")
	})
}

// leads returns the chains to which an element leads, directly or through the maps of actions.
func (w walker) leads(set, key string) []string {
	state := w.fake.Tables[w.table]
	e, there := state.Sets[set].Elements.Get(key)
	if !there {
		return nil
	}
	chains := []string{e.Goto}
	for _, actions := range newLayout()[wayElement:hairpinElement] {
		to, _ := state.Sets[actions.Name].Elements.Get(e.Data)
		chains = append(chains, to.Goto)
	}
	return chains
}

// ends verifies that a path ends with the backends, or with the verdict.
func (w walker) ends(step, key string) error {
	port := &w.Service.Ports[w.Port]
	f := &port.Frontends[w.Frontend]
	way := f.Others
	if w.Inside {
		way = f.Node
	}
	kind, name, _ := strings.Cut(step, " ")
	switch {
	case w.KeptOut:
		return wanted(kind == "set" && strings.HasSuffix(name, "allowed"), "the source ranges")
	case way.Verdict == route.Reject:
		return wanted(step == "chain rejected", "the chain rejected")
	case way.Verdict == route.Drop:
		return wanted(step == "chain dropped", "the chain dropped")
	}
	var backends []netip.AddrPort
	elements := w.fake.Tables[w.table].Sets[name].Elements
	first := 0
	if port.Affinity > 0 {
		first = int(way.Pool)
	}
	for i := range count(port, way.Pool) {
		e, _ := elements.Get(string(nft.Key(key).Index(number(first, i))))
		backends = append(backends, backendIn(e.Data))
	}
	slices.SortFunc(backends, netip.AddrPort.Compare)
	want := slices.SortedFunc(slices.Values(slotsOf(port, way.Pool)), netip.AddrPort.Compare)
	return wanted(slices.Equal(backends, want), "the backends")
}

func wanted(ok bool, what string) error {
	if ok {
		return nil
	}
	return fmt.Errorf("does not end at %s", what)
}

func TestStraysAreRefusedAndDropped(t *testing.T) {
	fake := nft.NewFake()
	load(t, fake, planetest.Compile(planetest.EveryShape(), route.Options{}))
	for rule, path := range map[string][]string{
		"daddr @cluster-ips fib daddr type != local goto rejected":  facts().OtherPort.Path,
		"daddr @service-cidrs fib daddr type != local goto dropped": facts().Unallocated.Path,
	} {
		for _, step := range path {
			if step = strings.NewReplacer("set ", "@", "chain ", "goto ").Replace(step); !strings.Contains(rule, step) {
				t.Errorf("%q is not in %q", step, rule)
			}
		}
		for _, table := range bothTables {
			if w := (walker{fake: fake, table: table}); !w.mentions("services", rule) {
				t.Errorf("%s: no rule %q", table, rule)
			}
		}
	}
}

// Path returns these names for examples of every kind of frontend.
func TestPath(t *testing.T) {
	change := planetest.Compile(planetest.EveryShape(), planetest.Detectors()["cidr"])
	for _, tt := range []struct {
		service, frontend string
		connection        plane.Connection
		want              string
	}{
		{"svc-3", "clusterIP", plane.Connection{}, "map fronts > chain off-pod-3 > chain at-backends > map backends"},
		{
			"svc-3", "nodePort",
			plane.Connection{},
			"map nodeport-fronts > chain nodeport-masquerade-3 > chain at-nodeport-backends > map nodeport-backends",
		},
		{"svc-1", "clusterIP", plane.Connection{}, "map fronts > chain rejected"},
		{"svc-9", "loadBalancerIP", plane.Connection{KeptOut: true}, "map fronts > chain masquerade-3-guarded > set allowed"},
		{
			"svc-9", "loadBalancerIP",
			plane.Connection{},
			"map fronts > chain masquerade-3-guarded > set allowed > chain at-backends > map backends",
		},
		{"svc-14", "externalIP", plane.Connection{}, "map fronts > chain split > map outside > chain dropped"},
		{
			"svc-15", "externalIP",
			plane.Connection{},
			"map fronts > chain split > map outside > chain outside-1 > chain at-outside-backends > map outside-backends",
		},
		{
			"svc-15", "externalIP",
			plane.Connection{Inside: true},
			"map fronts > chain split > chain inside > map inside > chain balance-3 > chain at-backends > map backends",
		},
		{
			"svc-6", "clusterIP",
			plane.Connection{},
			"map fronts > chain sticky-off-pod-4-10800s > chain affinity > map affinity > " +
				"chain draw-and-keep-sticky-off-pod-4-10800s > map clients > " +
				"chain at-clients-of-backends > map clients > map backends",
		},
	} {
		p := tt.connection
		for name, svc := range change.Table.Services {
			if name.Name == tt.service {
				p.Service = svc
			}
		}
		p.Port = slices.IndexFunc(p.Service.Ports, func(p route.Port) bool { return p.Family == route.IPv4 })
		p.Frontend = slices.IndexFunc(p.Service.Ports[p.Port].Frontends, func(f route.Frontend) bool {
			return f.Kind.String() == tt.frontend
		})
		if got := strings.Join(Path(p), " > "); got != tt.want {
			t.Errorf("%s of %s, %+v: %s, want %s", tt.frontend, tt.service, tt.connection, got, tt.want)
		}
	}
}
