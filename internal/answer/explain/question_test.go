package explain

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

func TestParse(t *testing.T) {
	web := cluster.Name{Namespace: "default", Name: "web"}
	pod := netip.MustParseAddr("10.244.1.5")
	dns := netip.MustParseAddr("10.96.0.10")
	dns6 := netip.MustParseAddr("fd00::a")
	for _, tt := range []struct {
		source, destination string
		want                Question
	}{
		{"10.244.1.5", "10.96.0.10:53/udp", Question{Source: pod, Destination: dns, Port: 53, Protocol: cluster.UDP}},
		{"10.244.1.5", "10.96.0.10:53", Question{Source: pod, Destination: dns, Port: 53, Protocol: cluster.TCP}},
		{
			"::ffff:10.244.1.5", "[::ffff:10.96.0.10]:53",
			Question{Source: pod, Destination: dns, Port: 53, Protocol: cluster.TCP},
		},
		{"node", "10.96.0.10", Question{Destination: dns}},
		{"node", "10.96.0.10/UDP", Question{Destination: dns, Protocol: cluster.UDP}},
		{"node", "10.96.0.10/icmp", Question{Destination: dns, Protocol: ICMP}},
		{"node", "[fd00::a]:80", Question{Destination: dns6, Port: 80, Protocol: cluster.TCP}},
		{"node", "[fd00::a]:80/sctp", Question{Destination: dns6, Port: 80, Protocol: cluster.SCTP}},
		{"node", "fd00::a", Question{Destination: dns6}},
		{"node", "[fd00::a]", Question{Destination: dns6}},
		{"node", "fd00::a/udp", Question{Destination: dns6, Protocol: cluster.UDP}},
		{"node", "default/web", Question{Service: web}},
		{"node", "default/web:http", Question{Service: web, PortName: "http"}},
		{"node", "default/web:http/udp", Question{Service: web, PortName: "http", Protocol: cluster.UDP}},
		{"node", "default/web:80", Question{Service: web, Port: 80, Protocol: cluster.TCP}},
		{"node", "default/web:80/udp", Question{Service: web, Port: 80, Protocol: cluster.UDP}},
		{"node", "default/web/udp", Question{Service: web, Protocol: cluster.UDP}},
		{"node", "default/tcp", Question{Service: cluster.Name{Namespace: "default", Name: "tcp"}}},
		{"node", "web", Question{Service: cluster.Name{Name: "web"}}},
		{"node", "web:80/udp", Question{Service: cluster.Name{Name: "web"}, Port: 80, Protocol: cluster.UDP}},
		{"node", "web.default", Question{Service: web}},
		{"node", "web.default.svc:http", Question{Service: web, PortName: "http"}},
		{"node", "web.default.svc.cluster.local.", Question{Service: web}},
		{"node", "web.default.svc.k8s.example:80", Question{Service: web, Port: 80, Protocol: cluster.TCP}},
		{"node", "web.default.svc/udp", Question{Service: web, Protocol: cluster.UDP}},
		{"node", "10.96.0.10:dns/udp", Question{Destination: dns, PortName: "dns", Protocol: cluster.UDP}},
		{"node", "[fd00::a]:dns", Question{Destination: dns6, PortName: "dns"}},
		{"default/web", "10.96.0.10", Question{Pod: web, Destination: dns}},
		{"client-0", "10.96.0.10", Question{Pod: cluster.Name{Name: "client-0"}, Destination: dns}},
	} {
		got, err := Parse(tt.source, tt.destination)
		if err != nil || got != tt.want {
			t.Errorf("%s %s: got %+v, %v, want %+v", tt.source, tt.destination, got, err, tt.want)
		}
	}
}

// What is wrong is said with what was expected.
func TestParseErrors(t *testing.T) {
	const sources = `want an IP address, a pod such as default/client, or "node" for this node itself`
	const forms = "10.96.0.10, 10.96.0.10:53/udp, [fd00::a]:80, web, default/web, default/web:80, default/web:http " +
		"or web.default.svc"
	for _, tt := range []struct{ source, destination, want string }{
		{"a/b/c", "10.96.0.10", `source "a/b/c": ` + sources},
		{"/pod", "10.96.0.10", `source "/pod": ` + sources},
		{"", "10.96.0.10", `source "": ` + sources},
		{"10.244.1.500", "10.96.0.10", `source "10.244.1.500": ` + sources},
		{"fe80::1%eth0", "fd00::a", `source "fe80::1%eth0": ` + sources},
		{"fd00::1", "10.96.0.10", "source fd00::1 and destination 10.96.0.10 are of different IP families"},
		{"node", "", `destination "": want an address or a Service, such as ` + forms},
		{"node", "Web", `destination "Web": want an address or a Service, such as ` + forms},
		{"node", "web.default.pod", `destination "web.default.pod": want an address or a Service, such as ` + forms},
		{"node", "/web", `destination "/web": want an address or a Service, such as ` + forms},
		{"node", "10.96.0.10:53/ucp", `destination "10.96.0.10:53/ucp": unknown protocol "ucp": want tcp, udp, sctp or icmp`},
		{"node", "10.96.0.10:h p", `destination "10.96.0.10:h p": want ` + forms},
		{"node", "10.96.0.10:0", `destination "10.96.0.10:0": no port 0: want 1 to 65535, or the name of a port`},
		{"node", "10.96.0.10:80/icmp", `destination "10.96.0.10:80/icmp": ICMP has no ports`},
		{"node", "[fe80::1%eth0]:80", `destination "[fe80::1%eth0]:80": want ` + forms},
		{"node", "[fd00::a", `destination "[fd00::a": want ` + forms},
		{
			"node", "default/web:70000",
			`destination "default/web:70000": no port 70000: want 1 to 65535, or the name of a port`,
		},
		{"node", "default/web:", `destination "default/web:": no port : want 1 to 65535, or the name of a port`},
		{"node", "default/web/x/udp", `destination "default/web/x/udp": want an address or a Service, such as ` + forms},
	} {
		_, err := Parse(tt.source, tt.destination)
		if err == nil || err.Error() != tt.want {
			t.Errorf("%q %q: got\n%v, want\n%s", tt.source, tt.destination, err, tt.want)
		}
	}
}

// A question reads the same after it was written out.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"10.96.0.10:53/udp", "[fd00::a]:80", "fd00::a", "default/web", "default/web:http/tcp", "default/web:80",
		"10.96.0.10/icmp", "a/b/c", "a/b:0", "::", "[::]:1/sctp", "a/b:c/d", "::ffff:1.2.3.4", ":::80",
		"web", "web.default.svc.cluster.local.:80", "10.96.0.10:http", "[fd00::a]:http",
	} {
		f.Add("node", s)
		f.Add("10.0.0.1", s)
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, source, destination string) {
		q, err := Parse(source, destination)
		if err != nil {
			return
		}
		again, err := Parse(q.From(), q.To())
		if err != nil || again != q {
			t.Errorf("%q %q became %+v, and by way of %q %q %+v: %v", source, destination, q, q.From(), q.To(), again, err)
		}
	})
}
