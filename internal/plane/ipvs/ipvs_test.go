package ipvs

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

func update(t *testing.T, p *Plane, old, now *route.Service) string {
	t.Helper()
	table := &route.Table{Services: map[cluster.Name]*route.Service{now.Name: now}}
	plan := p.Plan(route.Change{Table: table, Touched: []route.Touch{{Name: now.Name, Old: old, New: now}}})
	text := plan.String()
	if err := plan.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	return text
}

// A change of an endpoint is two steps, whatever else there is.
func TestAnEndpointIsReplacedInTwoSteps(t *testing.T) {
	fake := newFake()
	change, svc := oneService("10.0.0.1:80", "10.0.0.2:80")
	p := newPlane(fake.kernel(), route.Families(), 1<<20)
	written(t, p, change)
	const want = `# ipvsadm --restore
-a -t 10.96.0.1:80 -r 10.0.0.3:80 -m -w 1
# ipvsadm --restore
-d -t 10.96.0.1:80 -r 10.0.0.1:80
`
	if got := update(t, p, svc, withBackends(svc, "10.0.0.2:80", "10.0.0.3:80")); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A destination that is used again while it drains gets connections again, and stays.
func TestADestinationReturnsWhileItDrains(t *testing.T) {
	fake := newFake()
	conns := 1
	fake.servers.Connections = func(ipvs.Server, netip.AddrPort) int { return conns }
	now := time.Now()
	change, both := oneService("10.0.0.1:80", "10.0.0.2:80")
	p := New(fake.kernel(), Options{Families: route.Families(), Mark: 0x4000, Now: func() time.Time { return now }})
	written(t, p, change)
	one := withBackends(both, "10.0.0.2:80")
	step := func(old, svc *route.Service, want string) {
		t.Helper()
		update(t, p, old, svc)
		if got := destinations(t, fake.kernel()); got != want {
			t.Errorf("destinations %s, want %s", got, want)
		}
	}
	step(both, one, "10.0.0.1:80 0, 10.0.0.2:80 1")
	if due := p.Due(); due != now.Add(drainCheck) {
		t.Errorf("due at %v", due)
	}
	step(one, both, "10.0.0.1:80 1, 10.0.0.2:80 1")
	if due := p.Due(); !due.IsZero() {
		t.Errorf("due at %v although nothing drains", due)
	}
	step(both, one, "10.0.0.1:80 0, 10.0.0.2:80 1")
	now = now.Add(drainCheck)
	step(one, one, "10.0.0.1:80 0, 10.0.0.2:80 1")
	conns, now = 0, now.Add(drainCheck)
	step(one, one, "10.0.0.2:80 1")
}

// UDP has no connections to wait for. A backend that still serves gets no new flows, but keeps those that it has.
func TestUDPDoesNotDrain(t *testing.T) {
	fake := newFake()
	fake.servers.Connections = func(ipvs.Server, netip.AddrPort) int { return 1 }
	change, svc := oneService("10.0.0.1:53", "10.0.0.2:53", "10.0.0.3:53")
	svc.Ports[0].Protocol = cluster.UDP
	p := newPlane(fake.kernel(), route.Families(), 1<<20)
	written(t, p, change)
	after := withBackends(svc, "10.0.0.3:53")
	after.Ports[0].Serving = []netip.AddrPort{
		netip.MustParseAddrPort("10.0.0.2:53"), netip.MustParseAddrPort("10.0.0.3:53"),
	}
	update(t, p, svc, after)
	const want = "-A -u 10.96.0.1:80 -s rr\n-a -u 10.96.0.1:80 -r 10.0.0.2:53 -m -w 0\n" +
		"-a -u 10.96.0.1:80 -r 10.0.0.3:53 -m -w 1\n"
	if got := fake.servers.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A set that is full refuses the Services that do not fit, and no others.
func TestAFullSetRefusesOnlyWhatDoesNotFit(t *testing.T) {
	fake := newFake()
	fake.sets.Max = 2
	table := &route.Table{Services: map[cluster.Name]*route.Service{}}
	for i, name := range []string{"a", "b", "c"} {
		_, svc := oneService("10.0.0.1:80")
		svc.Name.Name = name
		svc.Ports[0].Frontends[0].Addr = netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)})
		table.Services[svc.Name] = svc
	}
	p := newPlane(fake.kernel(), route.Families(), 1<<20)
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := p.Plan(route.Change{Table: table}).Apply(t.Context())
	refused, is := errors.AsType[plane.Refused](err)
	if !is || len(refused) != 1 || !errors.Is(refused[refused.Names()[0]], ipset.ErrFull) {
		t.Fatalf("got %v, want one Service refused as a set is full", err)
	}
	if n := strings.Count(fake.servers.String(), "-A "); n != 2 {
		t.Errorf("%d virtual servers, want those of two Services:\n%s", n, fake.servers)
	}
}

// A Service with a scheduler of its own changes it in place.
func TestAServiceHasASchedulerOfItsOwn(t *testing.T) {
	fake := newFake()
	change, svc := oneService("10.0.0.1:80")
	p := newPlane(fake.kernel(), route.Families(), 1<<20)
	written(t, p, change)
	for _, c := range []struct{ name, want string }{
		{"wlc", "wlc"}, {"mh", "mh -b mh-port"}, {"maglev", "mh"}, {"p2c", "wlc"}, {"", "rr"},
	} {
		after := withBackends(svc, "10.0.0.1:80")
		after.Ports[0].Scheduler = c.name
		update(t, p, svc, after)
		svc = after
		if got, _, _ := strings.Cut(fake.servers.String(), "\n"); got != "-A -t 10.96.0.1:80 -s "+c.want {
			t.Errorf("%q: got %s, want scheduler %q", c.name, got, c.want)
		}
	}
}

// An unknown scheduler refuses the Service with its name.
func TestAnUnknownSchedulerIsNamed(t *testing.T) {
	change, svc := oneService("10.0.0.1:80")
	svc.Ports[0].Scheduler = "best"
	p := New(newFake().kernel(), Options{Families: route.Families(), Mark: 0x4000})
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := p.Plan(change).Apply(t.Context())
	refused, _ := errors.AsType[plane.Refused](err)
	if refused[svc.Name] == nil || !strings.Contains(err.Error(), `this kernel does not have the scheduler: "best"`) {
		t.Errorf("got %v", err)
	}
}

// Two ports whose marks would be the same get different ones, and keep them.
func TestMarksAreUnique(t *testing.T) {
	m := newMarks()
	one, two := route.PortID{Name: "one"}, route.PortID{Name: "two", Protocol: cluster.UDP}
	m.set(route.PortID{Name: "other"}, firstMark(one))
	if a, again := m.mark(one), m.mark(one); a != next(firstMark(one)) || a != again {
		t.Errorf("marks %#x, %#x, want %#x", a, again, next(firstMark(one)))
	}
	if mark := m.mark(two); mark&markUDP == 0 || !isShortCut(mark) {
		t.Errorf("the mark of a UDP port is %#x", mark)
	}
	if last := uint32(shortCut | markNumber); next(last) != shortCut {
		t.Errorf("after %#x: %#x", last, next(last))
	}
}

func TestSetNames(t *testing.T) {
	var names []string
	for _, f := range route.Families() {
		for name := range setKinds(f) {
			names = append(names, setName(f, name))
		}
	}
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) != 38 {
		t.Errorf("%d names: %q", len(names), names)
	}
	for _, name := range []string{
		"KUBE-CLUSTER-IP", "KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
		"KUBE-6-HEALTH-CHECK-NODE-PORT",
	} {
		if !slices.Contains(names, name) {
			t.Errorf("no set %s", name)
		}
	}
}

func TestPreviewNeedsNoKernel(t *testing.T) {
	change, _ := oneService("10.0.0.1:80")
	p := Kind().Preview(plane.Setup{Config: &config.Config{MasqueradeMark: 0x4000}, Families: route.Families()})
	planned := New(Kernel{}, Options{Families: route.Families(), Mark: 0x4000})
	for _, p := range []plane.Plane{p, planned} {
		if err := p.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		text := p.Plan(change).String()
		for _, want := range []string{
			"-A -t 10.96.0.1:80 -s rr", "create KUBE-CLUSTER-IP hash:ip,port family inet",
			"address add 10.96.0.1 dev kube-ipvs0", "# ip6tables-restore --noflush",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
	}
}

func TestCostGrowsWithBackends(t *testing.T) {
	_, few := oneService("10.0.0.1:80")
	_, more := oneService("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")
	if a, b := cost(&few.Ports[0]), cost(&more.Ports[0]); b-a != 2 {
		t.Errorf("costs %d and %d", a, b)
	}
}

func TestPath(t *testing.T) {
	_, svc := oneService("10.0.0.1:80")
	for _, c := range []struct {
		want       string
		connection plane.Connection
	}{
		{
			"nat KUBE-SERVICES, virtual server tcp 10.96.0.1:80, destination 10.0.0.1:80",
			plane.Connection{Backend: netip.MustParseAddrPort("10.0.0.1:80")},
		},
		{"nat KUBE-SERVICES, virtual server tcp 10.96.0.1:80", plane.Connection{Way: route.Action{Verdict: route.Reject}}},
		{"filter KUBE-IPVS-FILTER", plane.Connection{Way: route.Action{Verdict: route.Drop}}},
		{"filter KUBE-PROXY-FIREWALL", plane.Connection{KeptOut: true}},
	} {
		c.connection.Service = svc
		if got := strings.Join(Path(c.connection), ", "); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

// What is written for the host is always in the same order, so that two plans can be compared.
func TestTheOrderOfTheHost(t *testing.T) {
	p := New(Kernel{}, Options{Families: route.Families()})
	first := p.fixed(&route.Host{})
	for range 20 {
		if !slices.Equal(p.fixed(&route.Host{}), first) {
			t.Fatal("the order changes")
		}
	}
}
