package route

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func ips(s string) []netip.Addr {
	var list []netip.Addr
	for f := range strings.FieldsSeq(s) {
		list = append(list, ip(f))
	}
	return list
}

func cidrs(s string) []netip.Prefix {
	var list []netip.Prefix
	for f := range strings.FieldsSeq(s) {
		list = append(list, netip.MustParsePrefix(f))
	}
	return list
}

// nodeA is "our node" of the scenarios.
func nodeA() *cluster.Node {
	return &cluster.Node{
		Name:      "A",
		Zone:      "a",
		Addresses: ips("192.168.0.2 192.168.1.2 2001:db8::1"),
		PodCIDRs:  cidrs("10.180.0.0/24 fd00:10:180::/64"),
	}
}

func clusterCIDR() DetectorOptions {
	return DetectorOptions{Kind: DetectClusterCIDR, CIDRs: cidrs("10.0.0.0/8 fd00::/16")}
}

// endpoints parses one endpoint per line: an address, then @node, then its conditions as a word of the letters r, s and
// t (or "-" for none; "rs" if not given), zones as z=a,b and nodes as n=A,B.
func endpoints(t *testing.T, text string) []cluster.Endpoint {
	t.Helper()
	var list []cluster.Endpoint
	for line := range strings.SplitSeq(text, "\n") {
		if fields := strings.Fields(line); len(fields) > 0 {
			list = append(list, endpoint(t, fields))
		}
	}
	return list
}

func endpoint(t *testing.T, fields []string) cluster.Endpoint {
	t.Helper()
	e := cluster.Endpoint{Addr: ip(fields[0]), Ready: true, Serving: true}
	var h cluster.Hints
	for _, f := range fields[1:] {
		switch {
		case f[0] == '@':
			e.Node = f[1:]
		case strings.HasPrefix(f, "z="):
			h.Zones = strings.Split(f[2:], ",")
		case strings.HasPrefix(f, "n="):
			h.Nodes = strings.Split(f[2:], ",")
		case strings.Trim(f, "rst-") == "":
			e.Ready = strings.Contains(f, "r")
			e.Serving = strings.Contains(f, "s")
			e.Terminating = strings.Contains(f, "t")
		default:
			t.Fatalf("what is %q?", f)
		}
	}
	if len(h.Zones)+len(h.Nodes) > 0 {
		e.Hints = &h
	}
	return e
}

// web returns a Service of port 80 with a changed detail or two.
func web(changes ...func(*cluster.Service)) *cluster.Service {
	s := &cluster.Service{
		Name:       cluster.Name{Namespace: "default", Name: "web"},
		Created:    time.Unix(1000, 0),
		ClusterIPs: ips("172.30.0.41"),
		Ports:      []cluster.ServicePort{{Protocol: cluster.TCP, Port: 80}},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

// sliceOf returns a slice of a Service with one unnamed TCP port.
func sliceOf(svc *cluster.Service, name string, list []cluster.Endpoint) *cluster.Slice {
	return &cluster.Slice{
		Name:      cluster.Name{Namespace: svc.Name.Namespace, Name: svc.Name.Name + "-" + name},
		Service:   svc.Name,
		Ports:     []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
		Endpoints: list,
	}
}

func stateOf(svc *cluster.Service, list ...*cluster.Slice) cluster.State {
	return cluster.State{Name: svc.Name, Service: svc, Slices: list}
}

// compileOne returns the route of one Service on node A.
func compileOne(t *testing.T, opt Options, svc *cluster.Service, list ...*cluster.Slice) *Service {
	t.Helper()
	opt.NodeName = cmp.Or(opt.NodeName, "A")
	c := NewCompiler(opt)
	c.Compile(cluster.Delta{
		Services: []cluster.State{stateOf(svc, list...)},
		Facts:    &cluster.Facts{Node: nodeA()},
	})
	return c.Table().Services[svc.Name]
}

// text prints a route so that tests can compare it whole.
func (s *Service) text() string {
	if s == nil {
		return "none\n"
	}
	var b strings.Builder
	if s.Ignored != "" {
		fmt.Fprintf(&b, "ignored: %s\n", s.Ignored)
	}
	for i := range s.Ports {
		s.Ports[i].print(&b)
	}
	return b.String()
}

func (p *Port) print(b *strings.Builder) {
	fmt.Fprintf(b, "%q %s %s", p.Name, p.Protocol, p.Family)
	if p.Affinity > 0 {
		fmt.Fprintf(b, " sticky %s", p.Affinity)
	}
	b.WriteString("\n")
	for _, f := range p.Frontends {
		fmt.Fprintf(b, "  %s %s: pods %s, node %s, others %s",
			f.Kind, netip.AddrPortFrom(f.Addr, f.Port), f.Pods, f.Node, f.Others)
		if f.Restricted {
			fmt.Fprintf(b, "; only %v", f.Allow)
		}
		b.WriteString("\n")
	}
	printList(b, "cluster", p.Cluster)
	printList(b, "local", p.Local)
	printList(b, "here", p.Here)
	printList(b, "serving", p.Serving)
}

func printList[T fmt.Stringer](b *strings.Builder, name string, list []T) {
	if len(list) > 0 {
		fmt.Fprintf(b, "  %s %s\n", name, join(list))
	}
}

func join[T fmt.Stringer](list []T) string {
	var words []string
	for _, x := range list {
		words = append(words, x.String())
	}
	return strings.Join(words, " ")
}

// String prints a Way in a test.
func (w Action) String() string {
	switch w.Verdict {
	case Reject:
		return "reject"
	case Drop:
		return "drop"
	case Balance:
	}
	s := "cluster"
	if w.Pool == Local {
		s = "local"
	}
	if w.Masquerade {
		s += "+masq"
	}
	return s
}

// same fails the test when two texts differ, after trimming indentation.
func sameText(t *testing.T, got, want string) {
	t.Helper()
	g, w := trimLines(got), trimLines(want)
	if !slices.Equal(g, w) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(g, "\n"), strings.Join(w, "\n"))
	}
}

func trimLines(s string) []string {
	var list []string
	for line := range strings.SplitSeq(s, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			list = append(list, line)
		}
	}
	return list
}
