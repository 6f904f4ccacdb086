package shadowed

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/sockdiag"
	"github.com/sluice-proxy/sluice/internal/route"
)

// node is a host with sockets, and the Follower that looks at them.
type node struct {
	*Follower
	sockets  []sockdiag.Listener
	local    []netip.Addr
	err      error
	reports  []string
	failures []error
}

func newNode(sockets ...string) *node {
	n := &node{
		local: []netip.Addr{
			netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("2001:db8::1"),
		},
	}
	n.listen(sockets...)
	n.Follower = New(Options{
		Listeners: func(context.Context) ([]sockdiag.Listener, error) { return n.sockets, n.err },
		Local:     func(context.Context) ([]netip.Addr, error) { return n.local, nil },
		Report: func(problems []route.Problem) {
			for _, p := range problems {
				n.reports = append(n.reports, p.String())
			}
		},
		Failed: func(err error) { n.failures = append(n.failures, err) },
	})
	return n
}

// listen replaces the sockets: "tcp 0.0.0.0:22".
func (n *node) listen(sockets ...string) {
	n.sockets = nil
	for _, s := range sockets {
		protocol, at, _ := strings.Cut(s, " ")
		l := sockdiag.Listener{Protocol: uint8(cluster.TCP), At: netip.MustParseAddrPort(at), UID: 7}
		if protocol == "udp" {
			l.Protocol = uint8(cluster.UDP)
		}
		n.sockets = append(n.sockets, l)
	}
}

// applied makes a change in which a Service with these frontends of one port comes, in place of an earlier one.
func (n *node) applied(ports route.NodePorts, old, svc *route.Service) {
	n.Applied(route.Change{
		Table: &route.Table{Host: route.Host{NodePorts: ports}}, OldHost: &route.Host{},
		Touched: []route.Touch{{Old: old, New: svc}},
	})
}

func service(p route.Port, frontends ...route.Frontend) *route.Service {
	p.Frontends = frontends
	if p.Protocol == 0 {
		p.Protocol = cluster.TCP
	}
	if p.Family == 0 {
		p.Family = route.IPv4
	}
	return &route.Service{Name: cluster.Name{Namespace: "shop", Name: "web"}, Ports: []route.Port{p}}
}

func nodePort(port uint16) route.Frontend { return route.Frontend{Kind: route.NodePort, Port: port} }

func external(at string) route.Frontend {
	a := netip.MustParseAddrPort(at)
	return route.Frontend{Kind: route.ExternalIP, Addr: a.Addr(), Port: a.Port()}
}

func addresses(list ...string) route.NodePorts {
	var n route.NodePorts
	for _, a := range list {
		n.Addrs = append(n.Addrs, netip.MustParseAddr(a))
	}
	return n
}

func TestHiddenSockets(t *testing.T) {
	all := route.NodePorts{All4: true, All6: true}
	primary := addresses("192.168.0.2")
	for _, tt := range []struct {
		name   string
		ports  route.NodePorts
		svc    *route.Service
		socket string
		want   bool
	}{
		{"a NodePort and kubelet", all, service(route.Port{}, nodePort(10250)), "tcp [::]:10250", true},
		{"a NodePort on one address", primary, service(route.Port{}, nodePort(10250)), "tcp 0.0.0.0:10250", true},
		{"another port", all, service(route.Port{}, nodePort(10251)), "tcp [::]:10250", false},
		{"another protocol", all, service(route.Port{Protocol: cluster.UDP}, nodePort(10250)), "tcp [::]:10250", false},
		{"a socket of UDP", all, service(route.Port{Protocol: cluster.UDP}, nodePort(10250)), "udp 0.0.0.0:10250", true},
		{"another family", all, service(route.Port{Family: route.IPv6}, nodePort(10250)), "tcp 0.0.0.0:10250", false},
		{
			"a family without NodePorts", primary, service(route.Port{Family: route.IPv6}, nodePort(10250)), "tcp [::]:10250",
			false,
		},
		{
			"a socket of an address that serves none", primary, service(route.Port{}, nodePort(10248)), "tcp 127.0.0.1:10248",
			false,
		},
		{
			"a socket of loopback, which serves none", all, service(route.Port{}, nodePort(10248)), "tcp 127.0.0.1:10248", false,
		},
		{
			"a socket of loopback, which serves NodePorts", addresses("127.0.0.1"), service(route.Port{}, nodePort(10248)),
			"tcp 127.0.0.1:10248", true,
		},
		{"an external IP of the node", all, service(route.Port{}, external("192.168.0.2:22")), "tcp 0.0.0.0:22", true},
		{
			"an external IP of the node, and its own socket", all, service(route.Port{}, external("192.168.0.2:22")),
			"tcp 192.168.0.2:22", true,
		},
		{
			"an external IP of the node, and another address's socket", all, service(route.Port{}, external("192.168.0.2:22")),
			"tcp 127.0.0.1:22", false,
		},
		{
			"an external IP that is not of the node", all, service(route.Port{}, external("203.0.113.1:22")), "tcp 0.0.0.0:22",
			false,
		},
		{
			"an external IP whose endpoint is the socket", all,
			service(route.Port{Cluster: []netip.AddrPort{netip.MustParseAddrPort("192.168.0.2:80")}},
				external("192.168.0.2:80")),
			"tcp 0.0.0.0:80", false,
		},
		{
			"an external IP with another endpoint", all,
			service(route.Port{Local: []netip.AddrPort{netip.MustParseAddrPort("10.180.0.1:80")}}, external("192.168.0.2:80")),
			"tcp 0.0.0.0:80", true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(tt.socket)
			n.applied(tt.ports, nil, tt.svc)
			_, _ = n.scan(t.Context())
			_, _ = n.scan(t.Context())
			if got := len(n.reports) > 0; got != tt.want {
				t.Errorf("reports %q, want some: %v", n.reports, tt.want)
			}
		})
	}
}

// A socket is reported when two scans found it, once, and again when it came back.
func TestEachIsReportedOnce(t *testing.T) {
	n := newNode("tcp 0.0.0.0:10250", "tcp 0.0.0.0:22")
	svc := service(route.Port{}, nodePort(10250), external("192.168.0.2:22"))
	n.applied(route.NodePorts{All4: true}, nil, svc)
	want := []string{
		"Service shop/web: spec.externalIPs: 192.168.0.2:22/tcp: hides a socket of this node that listens on 0.0.0.0:22 " +
			"and belongs to user 7: the Service gets its connections; use another port",
		"Service shop/web: spec.ports.nodePort: 10250/tcp: hides a socket of this node that listens on 0.0.0.0:10250 " +
			"and belongs to user 7: the Service gets its connections; use another port",
	}
	scan := func(settled bool, want ...string) {
		t.Helper()
		n.reports = nil
		if got, err := n.scan(t.Context()); err != nil || (got == scanPeriod) != settled || !slices.Equal(n.reports, want) {
			t.Errorf("settled %v, reports %q, want %v, %q", got, n.reports, settled, want)
		}
	}
	scan(false)
	scan(true, want...)
	scan(true)
	n.listen("tcp 0.0.0.0:22")
	scan(true)
	n.listen("tcp 0.0.0.0:22", "tcp 0.0.0.0:10250")
	scan(false)
	scan(true, want[1])
	n.applied(route.NodePorts{All4: true}, svc, nil)
	scan(true)
	if len(n.frontends) > 0 {
		t.Errorf("frontends of a Service that is gone: %v", n.frontends)
	}
}

// A socket of a client is gone before it is confirmed.
func TestABriefSocketIsNotReported(t *testing.T) {
	n := newNode("udp 0.0.0.0:31000")
	n.applied(route.NodePorts{All4: true}, nil, service(route.Port{Protocol: cluster.UDP}, nodePort(31000)))
	if next, err := n.scan(t.Context()); err != nil || next != confirmPeriod {
		t.Errorf("%v, the next scan comes after %v, want %v", err, next, confirmPeriod)
	}
	n.listen()
	if next, err := n.scan(t.Context()); err != nil || next != scanPeriod || n.reports != nil {
		t.Errorf("%v, the next scan comes after %v, reports %q", err, next, n.reports)
	}
}

func TestRunScansAfterAChange(t *testing.T) {
	n := newNode("tcp [::]:10250")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	reported := make(chan struct{})
	n.opt.Report = func([]route.Problem) { close(reported) }
	go func() { done <- n.Run(ctx) }()
	n.applied(route.NodePorts{All4: true}, nil, service(route.Port{}, nodePort(10250)))
	<-reported
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
