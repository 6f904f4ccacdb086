package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// A Service of as many backends as an action counts is written; a larger one is too large for the plane.
func TestTheMostBackends(t *testing.T) {
	seeds.Long(t)
	const most = maxElements - 1
	svc := numberedService(1)
	list := func(first, n int) []netip.AddrPort {
		var all []netip.AddrPort
		for i := range n {
			a := netip.AddrFrom4([4]byte{10, byte((first + i) >> 16), byte((first + i) >> 8), byte(first + i)})
			all = append(all, netip.AddrPortFrom(a, 80))
		}
		return all
	}
	svc.Ports[0].Cluster = list(0, most)
	table := &route.Table{Services: map[cluster.Name]*route.Service{svc.Name: svc}}
	if size, _ := Excess(svc); size != "" {
		t.Errorf("a Service of %s is too large", size)
	}
	conn, _ := realKernel(t)
	p := load(t, conn, route.Change{Table: table}, route.IPv4)
	rows := func() int {
		state, err := conn.Read(context.Background(), bothTables[0], nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(state.Sets["backends"].Elements)
	}
	if n := rows(); n != most {
		t.Errorf("%d backends, want %d", n, most)
	}
	checkSettled(t, conn, table, route.IPv4)

	other := numberedService(1)
	other.Ports[0].Cluster = list(50, most)
	table.Services[svc.Name] = other
	if err := p.Plan(route.Change{
		Table: table, Touched: []route.Touch{{Name: svc.Name, Old: svc, New: other}},
	}).Apply(context.Background()); err != nil {
		t.Fatal(err)
	}
	checkSettled(t, conn, table, route.IPv4)
	few := numberedService(1, 0, 1)
	table.Services[svc.Name] = few
	if err := p.Plan(route.Change{
		Table: table, Touched: []route.Touch{{Name: svc.Name, Old: other, New: few}},
	}).Apply(context.Background()); err != nil {
		t.Fatal(err)
	}
	checkSettled(t, conn, table, route.IPv4)
	if n := rows(); n != 2 {
		t.Errorf("%d backends left, want 2", n)
	}
}

// S-251: the longest possible names, with and without session affinity.
func TestLongestNames(t *testing.T) {
	long := strings.Repeat("n", 63)
	s := cluster.NewStore()
	for i, affinity := range []time.Duration{0, time.Hour} {
		svc := &cluster.Service{
			Name: cluster.Name{Namespace: long, Name: long[1:] + fmt.Sprint(i)}, Affinity: affinity,
			ClusterIPs: planetest.Addrs(fmt.Sprintf("172.30.0.%d", i+1), fmt.Sprintf("fd00::%d", i+1)),
		}
		sl := &cluster.Slice{Name: svc.Name, Service: svc.Name}
		for k, name := range []string{long[1:] + "a", long[1:] + "b", ""} {
			svc.Ports = append(svc.Ports, cluster.ServicePort{Name: name, Protocol: cluster.SCTP, Port: uint16(80 + k)})
			sl.Ports = append(sl.Ports, cluster.SlicePort{Name: name, Protocol: cluster.SCTP, Port: uint16(8080 + k)})
		}
		six := &cluster.Slice{
			Name: cluster.Name{Namespace: long, Name: fmt.Sprint("six", i)}, Service: svc.Name, Ports: sl.Ports,
		}
		sl.Endpoints = append(sl.Endpoints, planetest.Endpoint("10.180.100.100", "a"),
			planetest.Endpoint("10.180.100.101", "a"))
		six.Endpoints = append(six.Endpoints, planetest.Endpoint("fd00:1111:2222:3333:4444:5555:6666:7777", "a"),
			planetest.Endpoint("fd00:1111:2222:3333:4444:5555:6666:7778", "a"))
		s.SetService(svc)
		s.SetSlice(sl)
		s.SetSlice(six)
	}
	change := planetest.Compile(s, route.Options{})
	conn, netns := realKernel(t)
	roundTrip(t, conn, change)
	out, err := runNft(t, netns, "", "list", "ruleset")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := `comment "` + long + "/" + long[1:] + "0"; !strings.Contains(out, want) {
		t.Errorf("no %s in\n%.3000s", want, out)
	}
}

func TestComments(t *testing.T) {
	long := strings.Repeat("x", 63)
	for _, c := range []struct{ namespace, name, port, want string }{
		{"ns", "web", "http", "ns/web:http"},
		{"ns", "web", "", "ns/web"},
		{long, long, "", long + "/" + long},
		{long, long, "http", (long + "/" + long + ":http")[:nft.MaxComment-1]},
	} {
		if got := comment(cluster.Name{Namespace: c.namespace, Name: c.name}, c.port); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// A host with one family has no table of the other family, even if it had both before.
func TestOneFamilyOnly(t *testing.T) {
	for i, ip := range append(route.Families(), route.Families()...) {
		fake := nft.NewFake()
		if i >= len(route.Families()) {
			i -= len(route.Families())
			load(t, fake, planetest.Compile(planetest.EveryShape(), route.Options{}), route.Families()...)
		}
		change := planetest.Compile(planetest.EveryShape(), route.Options{Families: []route.Family{ip}})
		load(t, fake, change, ip)
		checkSettled(t, fake, change.Table, ip)
		if fake.Tables[bothTables[i]] == nil || fake.Tables[bothTables[1-i]] != nil {
			t.Errorf("%s: unexpected tables", ip)
		}
	}
}

// A table with another layout, from another version or another program, is replaced.
// Additional objects in our table are deleted.
func TestLeftovers(t *testing.T) {
	for name, leftover := range map[string]string{
		"other map":   "add table ip sluice; add map ip sluice fronts { type ipv4_addr : ipv4_addr; }",
		"other flags": "add table ip sluice; add set ip sluice cluster-ips { type ipv4_addr; flags interval; }",
		"other hook": "add table ip sluice; " +
			"add chain ip sluice prerouting { type filter hook prerouting priority 0; }",
		"no hook":               "add table ip sluice; add chain ip sluice prerouting",
		"hook of a fixed chain": "add table ip sluice; add chain ip sluice services { type nat hook prerouting priority 0; }",
		"hook of an action": "add table ip sluice; " +
			"add chain ip sluice balance-2 { type nat hook prerouting priority 0; }",
		"other priority": "add table ip sluice; add chain ip sluice output { type nat hook output priority -99; }",
		"other client map": "add table ip sluice; " +
			"add map ip sluice clients { type ipv4_addr : mark; flags dynamic,timeout; }",
		"foreign chain": "add table ip sluice; " +
			"add chain ip sluice mine { type filter hook input priority 0; policy drop; }",
		"foreign rule": "add table ip sluice; add chain ip sluice services; add rule ip sluice services drop",
		"foreign map": "add table ip sluice; add chain ip sluice a; " +
			"add map ip sluice m { type ipv4_addr : verdict; }; add element ip sluice m { 10.0.0.1 : goto a }",
		"chains in a cycle": "add table ip sluice; add chain ip sluice a; add chain ip sluice b; " +
			"add rule ip sluice a jump b; add rule ip sluice b jump a",
		"one family": "add table ip6 sluice",
	} {
		t.Run(name, func(t *testing.T) {
			conn, netns := realKernel(t)
			change := planetest.Compile(planetest.EveryShape(), route.Options{})
			if out, err := runNft(t, netns, strings.ReplaceAll(leftover, "; add", "\nadd"), "-f", "-"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			load(t, conn, change)
			checkSettled(t, conn, change.Table)
		})
	}
}

// The names of all chains of actions are recognized.
func TestActionChainsAreRecognized(t *testing.T) {
	p := load(t, nft.NewFake(), planetest.Compile(planetest.EveryShape(), route.Options{}))
	for k := range p.render.chains {
		if is := isActionChain(k.name); is != (k.of == actionChain) {
			t.Errorf("the chain %s is that of an action: %t", k.name, is)
		}
	}
}

// A repair keeps base chains that are as wanted.
func TestRepairDoesNotReplaceTheTable(t *testing.T) {
	conn, netns := realKernel(t)
	change := planetest.Compile(planetest.EveryShape(), route.Options{})
	p := load(t, conn, change)
	edits := `delete element ip sluice fronts { 172.30.0.3 . tcp . 80 }
flush map ip6 sluice backends
flush chain ip sluice services
flush chain ip sluice prerouting
add rule ip6 sluice postrouting drop
add element ip sluice cluster-ips { 172.30.9.9 }
add chain ip sluice mine
`
	if out, err := runNft(t, netns, edits, "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := p.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	plan := p.Plan(route.Change{Table: change.Table})
	if text := plan.String(); strings.Contains(text, "delete table") || strings.Count(text, "flush chain") != 4 {
		t.Errorf("the plan is more than a repair:\n%.3000s", text)
	}
	if err := plan.Apply(context.Background()); err != nil {
		t.Fatal(err)
	}
	checkSettled(t, conn, change.Table)
}

// S-279, reversed: the plane does not depend on other tables, even if they have the same names.
func TestForeignTablesWithOurNames(t *testing.T) {
	conn, netns := realKernel(t)
	foreign := "table inet sluice {\n\tset fronts {\n\t\ttype ipv4_addr\n\t}\n\n\tchain services {\n\t\tdrop\n\t}\n}\n"
	if out, err := runNft(t, netns, foreign, "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	roundTrip(t, conn, planetest.Compile(planetest.EveryShape(), route.Options{}))
	if out, err := runNft(t, netns, "", "list", "table", "inet", "sluice"); err != nil || out != foreign {
		t.Errorf("%v\n%s\nwant\n%s", err, out, foreign)
	}
}
