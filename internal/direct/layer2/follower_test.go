package layer2

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// fake is nf_tables in memory that knows which tables exist.
type fake struct {
	*nft.Fake

	edit func(nft.Edit)
}

func (f *fake) Has(_ context.Context, t nft.Table, chain string) (bool, error) {
	state := f.Tables[t]
	if state == nil || chain == "" {
		return state != nil, nil
	}
	_, has := state.Chains[chain]
	return has, nil
}

func (f *fake) Watch(ctx context.Context, _ []nft.Table, _ func(), report func(nft.Edit)) error {
	f.edit = report
	<-ctx.Done()
	return nil
}

// world is a Follower of node a beside nodes b and c, in a synctest bubble.
type world struct {
	*testing.T
	kernel *fake
	peers  *cluster.Peers
	near   map[netip.Addr]*rtnl.Neighbour
	table  *route.Table
	f      *Follower
	moved  []string      // hardware addresses of nodes that have changed
	probes int           // rounds
	silent []bool        // whether node c does not answer, by round
	slow   time.Duration // of a poll of the neighbours
}

func newWorld(t *testing.T, kernel *fake) *world {
	w := &world{
		T: t, kernel: kernel, peers: cluster.NewStore().Peers(), near: map[netip.Addr]*rtnl.Neighbour{},
	}
	for i, name := range []string{"a", "b", "c"} {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		w.peers.Set(&cluster.Node{Name: name, Addresses: []netip.Addr{addr}})
		w.near[addr] = &rtnl.Neighbour{
			Addr: addr, Device: rtnl.Device{Name: "eth0", Index: 2}, MAC: [6]byte{2, 0, 0, 0, 0, byte(i + 1)}, Resolved: true,
		}
	}
	w.peers.Listed()
	w.table = &route.Table{Services: map[cluster.Name]*route.Service{}}
	w.f = New(Options{
		Kernel: kernel, Watch: kernel.Watch, Room: func() int { return 1 << 30 },
		Peers: w.peers, Self: "a", Neighbours: w.neighbours, Probe: w.probe, Tunnel: &fakeTunnel{},
		Failed: func(err error) { t.Error(err) },
		Moved: func(node string, from, to net.HardwareAddr) {
			w.moved = append(w.moved, fmt.Sprintf("%s from %s to %s", node, from, to))
		},
	})
	return w
}

func (w *world) neighbours(_ context.Context, peers []netip.Addr) (n rtnl.Neighbourhood, err error) {
	time.Sleep(w.slow)
	n.Uplinks = []rtnl.Device{{Name: "eth0", Index: 2}}
	for _, a := range peers {
		n.Peers = append(n.Peers, w.near[a])
	}
	return n, nil
}

func (w *world) probe(_ netip.Addr, to []netip.Addr) (answered []bool, err error) {
	for _, a := range to {
		is := a == netip.MustParseAddr("10.0.0.3") && w.probes < len(w.silent) && w.silent[w.probes]
		answered = append(answered, !is)
	}
	w.probes++
	if len(w.silent) > 0 && w.probes > len(w.silent)+5 {
		return nil, errors.New("no socket")
	}
	return answered, nil
}

// run runs the Follower during the test.
func (w *world) run() {
	ctx, stop := context.WithCancel(w.Context())
	done := make(chan error)
	go func() { done <- w.f.Run(ctx) }()
	w.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			w.Error(err)
		}
	})
}

// apply gives a Service owners; none: it is not direct. Names of other lengths have other port numbers.
func (w *world) apply(name string, vip byte, owners ...string) {
	svc := &route.Service{Name: cluster.Name{Namespace: "default", Name: name}}
	p := route.Port{Protocol: cluster.TCP, Family: route.IPv4, Frontends: []route.Frontend{
		{Kind: route.ClusterIP, Addr: netip.MustParseAddr("172.30.0.1"), Port: 80},
		{Kind: route.LoadBalancer, Addr: netip.AddrFrom4([4]byte{198, 51, 100, vip}), Port: uint16(80 + len(name))},
	}}
	for _, o := range owners {
		p.Owners = append(p.Owners, route.Owner{Node: o, Weight: 1})
	}
	svc.Ports = []route.Port{p}
	old := w.table.Services[svc.Name]
	w.table.Services[svc.Name] = svc
	w.f.Applied(route.Change{Table: w.table, Touched: []route.Touch{{Name: svc.Name, Old: old, New: svc}}})
	synctest.Wait()
}

// text returns the elements of all tables, whatever their generation and the numbers of nodes.
func (w *world) text() string {
	text := map[string]bool{}
	for t, state := range w.kernel.Tables {
		nodes := nodesIn(state, map[netip.Addr]string{
			netip.MustParseAddr("10.0.0.2"): "b", netip.MustParseAddr("10.0.0.3"): "c",
		})
		for name, set := range state.Sets {
			for _, e := range set.Elements.All() {
				data := nodes[e.Data]
				if strings.HasPrefix(name, "nodes-") {
					e.Key = ""
				}
				if data == "" {
					data = fmt.Sprintf("%x", e.Data)
				}
				text[fmt.Sprintf("%s %s %x: %s", t.Family, name, e.Key, data)] = true
			}
		}
	}
	return fmt.Sprint(text)
}

func (w *world) tables() (names []string) {
	for t := range w.kernel.Tables {
		names = append(names, t.Name)
	}
	return names
}

// Changes lead to the same tables as if everything had been written at once, and cost a transaction each.
func TestChangesLeadToTheSameTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &fake{Fake: nft.NewFake()})
		w.run()
		w.apply("web", 1, "a", "b")
		w.apply("shop", 2, "c")
		before := w.kernel.Commits
		w.apply("shop", 2, "b")
		w.apply("shop", 2)
		w.apply("mail", 3, "b", "c")
		if n := w.kernel.Commits - before; n != 3 {
			t.Errorf("three changes take %d transactions", n)
		}
		other := newWorld(t, &fake{Fake: nft.NewFake()})
		other.apply("web", 1, "a", "b")
		other.apply("mail", 3, "b", "c")
		other.run()
		synctest.Wait()
		if diff := cmp.Diff(other.text(), w.text()); diff != "" {
			t.Errorf("tables (-at once +by changes):\n%s", diff)
		}
		want := &plane.Direct{Ports: 2, Checksum: w.f.Status().Checksum, Peers: []plane.Peer{
			{Node: "b", Family: "IPv4"}, {Node: "c", Family: "IPv4"},
		}}
		if diff := cmp.Diff(want, w.f.Status()); diff != "" || other.f.Status().Checksum != want.Checksum {
			t.Errorf("status (-want +got), other checksum %s:\n%s", other.f.Status().Checksum, diff)
		}
	})
}

// Without ports there are no tables, even if an earlier run left some.
func TestTablesGoWithTheLastPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &fake{Fake: nft.NewFake()}
		w := newWorld(t, kernel)
		w.run()
		w.apply("web", 1, "b")
		if got := w.tables(); len(got) != 3 {
			t.Fatalf("tables %v, want 3", got)
		}
		again := newWorld(t, kernel)
		again.run()
		again.apply("web", 1)
		if got := w.tables(); len(got) > 0 || again.f.Status() != nil {
			t.Errorf("tables %v with status %v, want none", got, again.f.Status())
		}
	})
}

// A restart and an edit of another program lead to the same tables under the other name, with the former owners.
func TestTablesAreRebuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &fake{Fake: nft.NewFake()}
		w := newWorld(t, kernel)
		w.run()
		w.apply("web", 1, "b", "c")
		w.apply("web", 1, "a", "b")
		want := w.text()
		kernel.edit(nft.Edit{})
		synctest.Wait()
		if got := w.tables(); got[0] != generation(1).name() || len(got) != 3 || w.text() != want {
			t.Errorf("after an edit there are %v (-want +got):\n%s", got, cmp.Diff(want, w.text()))
		}
		again := newWorld(t, kernel)
		again.apply("web", 1, "a", "b")
		again.run()
		synctest.Wait()
		if got := w.tables(); got[0] != generation(0).name() || len(got) != 3 {
			t.Errorf("after a restart there are %v", got)
		}
		was, is := w.f.written.ports[webPort()], again.f.written.ports[webPort()]
		if diff := cmp.Diff(was.nodes[entering], is.nodes[entering]); diff != "" {
			t.Errorf("owners after a restart (-before +after):\n%s", diff)
		}
		for slot, before := range was.nodes[unknown] {
			if now := is.nodes[unknown][slot]; (before == 0) != (now == 0) {
				t.Fatalf("slot %d: node %d was before this one, after the restart it is %d", slot, before, now)
			}
		}
	})
}

// A run that follows one that was killed while it built tables keeps those that work until its own do.
func TestTablesThatWorkStayUntilOthersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, unfinished := range []generation{1, 0} {
			kernel := &fake{Fake: nft.NewFake()}
			w := newWorld(t, kernel)
			w.run()
			w.apply("web", 1, "b", "c")
			if unfinished == 0 { // the second build has the other name
				kernel.edit(nft.Edit{})
				synctest.Wait()
			}
			if got := w.tables(); len(got) != 3 || got[0] == unfinished.name() {
				t.Fatalf("there are %v", got)
			}
			tx := &nft.Tx{}
			for _, table := range unfinished.tables() {
				tx.AddTable(table)
			}
			if err := kernel.Commit(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			again := newWorld(t, kernel)
			again.apply("web", 1, "b", "c")
			again.run()
			synctest.Wait()
			if got := w.tables(); len(got) != 3 || got[0] != unfinished.name() {
				t.Errorf("tables %v were built, want %s in place of the unfinished ones", got, unfinished.name())
			}
		}
	})
}

func webPort() route.PortID {
	return route.PortID{
		Service: cluster.Name{Namespace: "default", Name: "web"}, Protocol: cluster.TCP, Family: route.IPv4,
	}
}

// Neighbours are looked at again each second: one that no longer answers gets nothing.
func TestANeighbourThatIsGoneGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &fake{Fake: nft.NewFake()})
		w.run()
		w.apply("web", 1, "b", "c")
		w.near[netip.MustParseAddr("10.0.0.3")].Resolved = false
		synctest.Wait()
		for w.f.Status().Peers[1].Why == "" {
			w.f.loop.Wake()
			synctest.Wait()
		}
		rendered := w.f.written.ports[webPort()].nodes[entering]
		for slot, node := range rendered {
			if node != w.number("10.0.0.2") {
				t.Fatalf("slot %d goes to node %d, want b, %d", slot, node, w.number("10.0.0.2"))
			}
		}
	})
}

// A node whose hardware address changes still gets its slots, and the change is reported once.
func TestAChangedHardwareAddressIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &fake{Fake: nft.NewFake()})
		w.run()
		w.apply("web", 1, "b", "c")
		want := w.f.written.ports[webPort()]
		w.near[netip.MustParseAddr("10.0.0.3")].MAC = [6]byte{2, 0, 0, 0, 0, 9}
		for range 2 {
			w.f.loop.Wake()
			synctest.Wait()
		}
		if diff := cmp.Diff([]string{"c from 02:00:00:00:00:03 to 02:00:00:00:00:09"}, w.moved); diff != "" {
			t.Errorf("reported (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want.nodes, w.f.written.ports[webPort()].nodes); diff != "" {
			t.Errorf("slots (-before +after):\n%s", diff)
		}
	})
}

// ICMP errors, whose rules see no port, go to the owner that all ports of the address have, and nowhere if they have
// different ones.
func TestErrorsGoWhereAllPortsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &fake{Fake: nft.NewFake()})
		w.run()
		w.apply("web", 1, "b", "c")
		w.apply("shop", 2, "b", "c")
		one := netip.MustParseAddr("198.51.100.1")
		port := w.f.written.ports[webPort()]
		if diff := cmp.Diff(port.nodes, w.f.written.addrs[one].nodes); diff != "" {
			t.Errorf("errors of an address with one port (-port +errors):\n%s", diff)
		}
		w.apply("shop", 1, "b")
		if n := len(w.f.written.addrs); n != 1 {
			t.Errorf("%d addresses have errors, want 1", n)
		}
		for slot, node := range w.f.written.addrs[one].nodes[entering] {
			want := port.nodes[entering][slot]
			if want != w.number("10.0.0.2") {
				want = 0
			}
			if node != want {
				t.Fatalf("errors of slot %d go to node %d, want %d", slot, node, want)
			}
		}
	})
}

// number returns the number of a node.
func (w *world) number(addr string) uint16 {
	return w.f.numbers[link{netip.MustParseAddr(addr), nft.Device{Name: "eth0", Index: 2}}]
}
