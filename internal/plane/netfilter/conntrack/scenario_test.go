package conntrack

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/cluster"
	kernel "github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/route"
)

// service reads "dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.1:53 10.1.0.2:53":
// the UDP frontends, and the serving backends behind all of them. IPv6 frontends take
// the IPv6 backends. With "dns/tcp:" and "dns/sctp:" it is about these.
func service(t testing.TB, text string) *route.Service {
	t.Helper()
	if text == "" {
		return nil
	}
	name, rest, _ := strings.Cut(text, ":")
	frontends, backends, _ := strings.Cut(rest, "=")
	name, protocol, _ := strings.Cut(name, "/")
	s := &route.Service{Name: cluster.Name{Namespace: "default", Name: name}}
	for _, family := range route.Families() {
		p := route.Port{Protocol: protocols()[protocol], Family: family}
		for f := range strings.FieldsSeq(frontends) {
			frontend, of := readFrontend(f)
			if of == family || of == 0 {
				p.Frontends = append(p.Frontends, frontend)
			}
		}
		for b := range strings.FieldsSeq(backends) {
			if a := netip.MustParseAddrPort(b); route.FamilyOf(a.Addr()) == family {
				at, _ := slices.BinarySearchFunc(p.Serving, a, netip.AddrPort.Compare)
				p.Serving = slices.Insert(p.Serving, at, a)
			}
		}
		if len(p.Serving) == 0 {
			for i := range p.Frontends {
				refuse := route.Action{Verdict: route.Reject}
				p.Frontends[i].Pods, p.Frontends[i].Node, p.Frontends[i].Others = refuse, refuse, refuse
			}
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

func protocols() map[string]cluster.Protocol {
	return map[string]cluster.Protocol{"": cluster.UDP, "tcp": cluster.TCP, "sctp": cluster.SCTP}
}

func readFrontend(text string) (route.Frontend, route.Family) {
	if port, ok := strings.CutPrefix(text, "nodePort:"); ok {
		p := netip.MustParseAddrPort("0.0.0.0:" + port).Port()
		return route.Frontend{Kind: route.NodePort, Port: p}, 0
	}
	kind := route.ClusterIP
	for prefix, k := range map[string]route.FrontendKind{"external:": route.ExternalIP, "lb:": route.LoadBalancer} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			kind, text = k, rest
		}
	}
	a := netip.MustParseAddrPort(text)
	return route.Frontend{Kind: kind, Addr: a.Addr(), Port: a.Port()}, route.FamilyOf(a.Addr())
}

// flow reads "17 10.0.0.1:7 > 10.96.0.10:53 via 10.1.0.1:53", as entries print themselves: over TCP and SCTP one that
// only begins. Behind it may be that it was answered, or that more than its first packet was seen.
func flow(t testing.TB, text string) kernel.Entry {
	t.Helper()
	text, isAnswered := strings.CutSuffix(text, answered)
	text, goesOn := strings.CutSuffix(text, oneWay)
	w := strings.Fields(text)
	e := kernel.Entry{
		Protocol: map[string]uint8{"6": kernel.TCP, "17": kernel.UDP, "132": kernel.SCTP}[w[0]],
		OrigSrc:  netip.MustParseAddrPort(w[1]),
		OrigDst:  netip.MustParseAddrPort(w[3]),
	}
	e.ReplySrc, e.ReplyDst = e.OrigDst, e.OrigSrc
	if len(w) > 4 {
		e.ReplySrc = netip.MustParseAddrPort(w[5])
	}
	const established = 3 // in both protocols
	switch {
	case isAnswered:
		e.Status, e.State = kernel.Answered, established
	case goesOn:
		e.State = established
	case e.Protocol == kernel.TCP:
		e.State = kernel.SynSent
	case e.Protocol == kernel.SCTP:
		e.State = kernel.CookieWait
	}
	if e.Protocol == kernel.UDP {
		e.State = 0
	}
	return e
}

const answered, oneWay = " answered", " one way"

// allLocal serves NodePorts on every local address.
func allLocal() route.Host {
	return route.Host{NodePorts: route.NodePorts{All4: true, All6: true}}
}

// onlyAt serves them at these.
func onlyAt(addrs ...string) route.Host {
	var h route.Host
	for _, a := range addrs {
		h.NodePorts.Addrs = append(h.NodePorts.Addrs, netip.MustParseAddr(a))
	}
	return h
}

func change(t testing.TB, host route.Host, services ...string) route.Change {
	t.Helper()
	c := route.Change{Table: &route.Table{Host: host}}
	for _, text := range services {
		// "-dns" is the Service that is gone.
		if name, gone := strings.CutPrefix(text, "-"); gone {
			c.Touched = append(c.Touched, route.Touch{Name: cluster.Name{Namespace: "default", Name: name}})
			continue
		}
		s := service(t, text)
		c.Touched = append(c.Touched, route.Touch{Name: s.Name, New: s})
	}
	return c
}

// following is a change after another one.
func following(first, c route.Change) route.Change {
	for i, t := range c.Touched {
		for _, before := range first.Touched {
			if before.Name == t.Name {
				c.Touched[i].Old = before.New
			}
		}
	}
	return c
}

func localAddrs() []netip.Addr {
	var addrs []netip.Addr
	for _, a := range []string{"127.0.0.1", "::1", "192.0.2.1", "198.51.100.1", "2001:db8::1"} {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return addrs
}

// settle does what is to be done now, as Run would. It returns how many flows it deleted.
func settle(t testing.TB, f *Follower) int {
	t.Helper()
	f.mu.Lock()
	w := f.pending
	f.pending = flows{}
	f.mu.Unlock()
	if len(w) == 0 {
		return 0
	}
	ended, err := f.scan(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return total(ended)
}

func total(ended map[route.Family]int) int { return ended[route.IPv4] + ended[route.IPv6] }

// scenario: some flows, a change, and the flows that are gone after it. The rest must be there.
type scenario struct {
	name          string
	host          func() route.Host // allLocal, if nil
	before, after []string
	afterHost     func() route.Host // as before, if nil
	kept, gone    []string
}

func (s scenario) hosts() (before, after route.Host) {
	if s.host == nil {
		s.host = allLocal
	}
	if s.afterHost == nil {
		s.afterHost = s.host
	}
	return s.host(), s.afterHost()
}

// creator is a Table in which a test can make flows.
type creator interface {
	Table
	Create(kernel.Entry) error
}

func (s scenario) run(t *testing.T, table creator) {
	f := New(Options{Table: table})
	before, after := s.hosts()
	f.SetLocal(localAddrs())
	first := change(t, before, s.before...)
	f.Applied(first)
	settle(t, f)
	for _, text := range slices.Concat(s.kept, s.gone) {
		if err := table.Create(flow(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	f.Applied(following(first, change(t, after, s.after...)))
	deleted := settle(t, f)
	for i := range s.kept {
		s.kept[i] = strings.TrimSuffix(strings.TrimSuffix(s.kept[i], answered), oneWay)
	}
	slices.Sort(s.kept)
	if d := cmp.Diff(strings.Join(s.kept, "\n"), strings.Join(contents(t, table), "\n")); d != "" {
		t.Errorf("flows left (-want +got):\n%s", d)
	}
	if deleted != len(s.gone) {
		t.Errorf("%d flows counted as deleted, want %d", deleted, len(s.gone))
	}
}

// contents returns all flows of a table, sorted.
func contents(t testing.TB, table Table) []string {
	t.Helper()
	var lines []string
	for _, family := range []kernel.Family{kernel.IPv4, kernel.IPv6} {
		for _, protocol := range []uint8{kernel.TCP, kernel.UDP, kernel.SCTP} {
			filter := kernel.Filter{Family: family, Protocol: protocol}
			err := table.Each(t.Context(), filter, func(e kernel.Entry) error {
				lines = append(lines, e.String())
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	slices.Sort(lines)
	return lines
}
