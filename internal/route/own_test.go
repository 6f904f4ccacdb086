package route

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

func healthServer(at string) []Listener {
	return []Listener{{At: netip.MustParseAddrPort(at), Name: "health server"}}
}

// reachedAt lists the frontends of a Service, "nodePort 3001".
func reachedAt(svc *Service) string {
	var list []string
	for _, p := range svc.Ports {
		for _, f := range p.Frontends {
			at := netip.AddrPortFrom(f.Addr, f.Port).String()
			if f.Kind == NodePort {
				at = p.Family.String()
			}
			list = append(list, f.Kind.String()+" "+at)
		}
	}
	return strings.Join(list, ", ")
}

// A frontend never hides a listener of the proxy itself.
func TestOwnListenersAreNotHidden(t *testing.T) {
	const port = 10256
	on := func(changes ...func(*cluster.Service)) *cluster.Service {
		svc := web(changes...)
		svc.Ports[0].Port = port
		return svc
	}
	balancer := func(svc *cluster.Service) {
		svc.Type, svc.LoadBalancerIPs = cluster.LoadBalancer, ips("192.168.1.2 203.0.113.9")
	}
	udp := func(svc *cluster.Service) { svc.Ports[0].Protocol = cluster.UDP }
	dual := func(svc *cluster.Service) { svc.ClusterIPs = ips("172.30.0.41 fd00:172:30::41") }
	all, primary := NodePortOptions{}, NodePortOptions{Primary: true}
	const v4 = "clusterIP 172.30.0.41:80"
	for _, tt := range []struct {
		name     string
		svc      *cluster.Service
		at       string
		ports    NodePortOptions
		want     string
		problems string // fields and values
	}{
		{"a NodePort", web(nodePort(port)), "0.0.0.0:10256", all, v4, "spec.ports[0].nodePort: 10256/tcp"},
		{
			"a NodePort of both families", web(nodePort(port), dual), "[::]:10256", primary,
			v4 + ", clusterIP [fd00:172:30::41]:80", "spec.ports[0].nodePort: 10256/tcp; spec.ports[0].nodePort: 10256/tcp",
		},
		{"another NodePort", web(nodePort(3001)), "0.0.0.0:10256", all, v4 + ", nodePort IPv4", ""},
		{"a NodePort of UDP", web(nodePort(port), udp), "0.0.0.0:10256", all, v4 + ", nodePort IPv4", ""},
		{"a NodePort, and a listener on loopback", web(nodePort(port)), "127.0.0.1:10256", all, v4 + ", nodePort IPv4", ""},
		{
			"a NodePort on loopback, and a listener there", web(nodePort(port)), "127.0.0.1:10256",
			NodePortOptions{Localhost: true},
			v4, "spec.ports[0].nodePort: 10256/tcp",
		},
		{
			"a NodePort on all addresses and loopback", web(nodePort(port)), "127.0.0.1:10256",
			NodePortOptions{Loopback: LoopbackIncluded},
			v4, "spec.ports[0].nodePort: 10256/tcp",
		},
		{
			"a NodePort, and a listener on one address", web(nodePort(port)), "192.168.0.2:10256", all, v4,
			"spec.ports[0].nodePort: 10256/tcp",
		},
		{
			"a NodePort on an address without the listener", web(nodePort(port)), "192.168.1.2:10256",
			primary, v4 + ", nodePort IPv4", "",
		},
		{"a listener of the other family", web(nodePort(port)), "[2001:db8::1]:10256", all, v4 + ", nodePort IPv4", ""},
		{
			"an external IP of the node", on(externalIP("192.168.0.2")), "0.0.0.0:10256", all,
			"clusterIP 172.30.0.41:10256", "spec.externalIPs: 192.168.0.2:10256/tcp",
		},
		{
			"an external IP that is not of the node", on(externalIP("203.0.113.9")), "0.0.0.0:10256", all,
			"clusterIP 172.30.0.41:10256, externalIP 203.0.113.9:10256", "",
		},
		{
			"an external IP of the node without the listener", on(externalIP("192.168.1.2")), "192.168.0.2:10256", all,
			"clusterIP 172.30.0.41:10256, externalIP 192.168.1.2:10256", "",
		},
		{
			"load balancer addresses, one of the node", on(balancer), "0.0.0.0:10256", all,
			"clusterIP 172.30.0.41:10256, loadBalancerIP 203.0.113.9:10256",
			"status.loadBalancer.ingress: 192.168.1.2:10256/tcp",
		},
		{
			"a ClusterIP of the node", on(clusterIP("192.168.0.2")), "0.0.0.0:10256", all,
			"", "spec.clusterIPs: 192.168.0.2; spec.clusterIPs: 192.168.0.2:10256/tcp",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := NewCompiler(Options{NodeName: "A", NodePorts: tt.ports, Listeners: healthServer(tt.at)})
			_, problems := c.Compile(cluster.Delta{
				Services: []cluster.State{stateOf(tt.svc)}, Facts: &cluster.Facts{Node: nodeA()},
			})
			if got := reachedAt(c.Table().Services[tt.svc.Name]); got != tt.want {
				t.Errorf("frontends %s, want %s", got, tt.want)
			}
			var said []string
			for _, p := range problems {
				said = append(said, p.Field+": "+p.Value)
				reason := "left out, as it would hide this proxy's health server, which listens on " + tt.at + "; use another port"
				if strings.Contains(p.Value, "/tcp") && p.Reason != reason {
					t.Errorf("reason %q", p.Reason)
				}
			}
			if got := strings.Join(said, "; "); got != tt.problems {
				t.Errorf("problems %s, want %s", got, tt.problems)
			}
		})
	}
}

// Only clusterIPs may be in a ServiceCIDR: an external IP there would take the connections of a Service to come.
func TestExternalAddressesInAServiceCIDR(t *testing.T) {
	balancer := func(s *cluster.Service) {
		s.Type, s.LoadBalancerIPs = cluster.LoadBalancer, ips("172.30.9.9 203.0.113.9")
	}
	c := NewCompiler(Options{NodeName: "A"})
	first := cluster.Delta{
		Services: []cluster.State{
			stateOf(web(balancer)), stateOf(claimant("other", 1, clusterIP("172.30.0.50"), externalIP("172.30.0.10"))),
		},
		Facts: &cluster.Facts{Node: nodeA(), ServiceCIDRs: cidrs("172.30.0.0/16")},
	}
	const reason = "left out, as only clusterIPs may be in the ServiceCIDR 172.30.0.0/16"
	for _, step := range []struct {
		change     cluster.Delta
		web, other string
		problems   string
	}{
		{
			first, "clusterIP 172.30.0.41:80, loadBalancerIP 203.0.113.9:80", "clusterIP 172.30.0.50:80",
			"spec.externalIPs: 172.30.0.10:80/tcp; status.loadBalancer.ingress: 172.30.9.9:80/tcp",
		},
		{
			cluster.Delta{Facts: &cluster.Facts{Node: nodeA(), ServiceCIDRs: cidrs("10.96.0.0/12")}},
			"clusterIP 172.30.0.41:80, loadBalancerIP 172.30.9.9:80, loadBalancerIP 203.0.113.9:80",
			"clusterIP 172.30.0.50:80, externalIP 172.30.0.10:80", "",
		},
	} {
		_, problems := c.Compile(step.change)
		services := c.Table().Services
		sameText(t, reachedAt(services[cluster.Name{Namespace: "default", Name: "web"}]), step.web)
		sameText(t, reachedAt(services[cluster.Name{Namespace: "default", Name: "other"}]), step.other)
		var said []string
		for _, p := range problems {
			said = append(said, p.Field+": "+p.Value)
			sameText(t, p.Reason, reason)
		}
		slices.Sort(said)
		sameText(t, strings.Join(said, "; "), step.problems)
	}
}

// A ClusterIP that is an address of the node is reported, and its ports work, even when the node gets or loses the
// address later.
func TestClusterIPsOfTheNodeAreReported(t *testing.T) {
	svc, other := web(clusterIP("192.168.7.7"), externalIP("192.168.0.2")), claimant("other", 1, clusterIP("172.30.0.50"))
	svc.Ports = append(svc.Ports, cluster.ServicePort{Name: "health", Protocol: cluster.TCP, Port: 10256})
	c := NewCompiler(Options{NodeName: "A", Listeners: healthServer("0.0.0.0:10256")})
	facts := func(local string) cluster.Delta {
		return cluster.Delta{Facts: &cluster.Facts{Node: nodeA(), Local: ips(local)}}
	}
	first := facts("127.0.0.1 192.168.0.2")
	first.Services = []cluster.State{stateOf(svc), stateOf(other)}
	const free = "clusterIP 192.168.7.7:80, externalIP 192.168.0.2:80, clusterIP 192.168.7.7:10256"
	const own = "clusterIP 192.168.7.7:80, externalIP 192.168.0.2:80"
	const hidden = "spec.externalIPs: 192.168.0.2:10256/tcp"
	for _, step := range []struct {
		change            cluster.Delta
		frontends, reason string
		touched           int
	}{
		{first, free, hidden, 2},
		{
			facts("127.0.0.1 192.168.0.2 192.168.7.7"), own,
			"spec.clusterIPs: 192.168.7.7; spec.clusterIPs: 192.168.7.7:10256/tcp", 1,
		},
		{facts("127.0.0.1 192.168.0.2 192.168.7.7 192.168.8.8"), own, "", 0},
		{facts("127.0.0.1 192.168.0.2"), free, "", 1},
		{
			facts("127.0.0.1 192.168.0.2 192.168.7.7"), own,
			"spec.clusterIPs: 192.168.7.7; spec.clusterIPs: 192.168.7.7:10256/tcp", 1,
		},
	} {
		change, problems := c.Compile(step.change)
		var said []string
		for _, p := range problems {
			said = append(said, p.Field+": "+p.Value)
			if p.Value == "192.168.7.7" && !strings.HasPrefix(p.Reason, "is an address of node A: ") {
				t.Errorf("reason %q", p.Reason)
			}
		}
		slices.Sort(said)
		if got := strings.Join(said, "; "); got != step.reason || len(change.Touched) != step.touched {
			t.Errorf("problems %s and %d touched, want %s and %d", got, len(change.Touched), step.reason, step.touched)
		}
		if got := reachedAt(c.Table().Services[svc.Name]); got != step.frontends {
			t.Errorf("frontends %s, want %s", got, step.frontends)
		}
	}
}
