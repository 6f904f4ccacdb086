package convert

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// FuzzService verifies the properties of converted Services that the rest of the program
// relies on, for all JSON that the API types accept.
func FuzzService(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"web"},"spec":{"clusterIP":"10.96.0.01","ports":[{"port":80,"nodePort":30000}]}}`))
	f.Add([]byte(`{"spec":{"clusterIPs":["10.0.0.1","fd00::1"],"ipFamilies":["IPv4","IPv6"],` +
		`"externalIPs":["","x","192.0.2.1"],
		"type":"LoadBalancer","sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":-1}},
		"externalTrafficPolicy":"Local","healthCheckNodePort":70000,"loadBalancerSourceRanges":[" 10.0.0.0/8","::/0","x"]},
		"status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"},{"ip":"::1","ipMode":"VIP"},{"ip":"2001:db8::1"}]}}}`))
	f.Add([]byte(`{"spec":{"clusterIP":"None","type":"ExternalName"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var in corev1.Service
		if json.Unmarshal(data, &in) != nil {
			return
		}
		c := Converter{AllowExternalIPs: true, Strings: NewInterner()}
		svc, problems := c.Service(&in)
		checkProblems(t, problems)
		if (svc.Ignored == "") != (len(svc.ClusterIPs) > 0) {
			t.Errorf("ignored %q with clusterIPs %v", svc.Ignored, svc.ClusterIPs)
		}
		for _, list := range [][]netip.Addr{svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs} {
			checkAddrs(t, list)
			for _, a := range list {
				if !route.FamilyOf(a).In(svc.ClusterIPs) {
					t.Errorf("%v is of a family without clusterIP", a)
				}
			}
		}
		for _, p := range svc.Ports {
			if p.Port == 0 || p.Protocol.String() == "unknown" || len(p.Name) > 63 {
				t.Errorf("port %+v", p)
			}
		}
		for _, p := range svc.SourceRanges {
			if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() || !svc.Restricted {
				t.Errorf("source range %v, restricted %v", p, svc.Restricted)
			}
		}
		if svc.Affinity < 0 || svc.Affinity > maxAffinity || svc.Affinity%time.Second != 0 {
			t.Errorf("affinity %v", svc.Affinity)
		}
		if sel := c.Selection(&in, svc); sel != nil && (svc.Ignored != "" || len(sel.Labels) == 0) {
			t.Errorf("selection %+v of %+v", sel, svc)
		}
	})
}

// FuzzSlice does the same for EndpointSlices.
func FuzzSlice(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"w-1","labels":{"kubernetes.io/service-name":"w"}},"addressType":"IPv4",
		"ports":[{"name":"","port":80},{"port":0},{"name":"x","protocol":"SCTP","port":65535}],
		"endpoints":[{"addresses":["10.0.0.01","x"],"nodeName":"n"},{"addresses":[]},` +
		`{"addresses":["127.0.0.1"],"conditions":{"ready":false}},
		{"addresses":["10.0.0.2"],"hints":{"forZones":[{"name":"a"}],"forNodes":[]}}]}`))
	f.Add([]byte(`{"metadata":{"labels":{"kubernetes.io/service-name":"w"}},"addressType":"IPv6",` +
		`"endpoints":[{"addresses":["::ffff:1.2.3.4"]},{"addresses":["fe80::1%x"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var in discoveryv1.EndpointSlice
		if json.Unmarshal(data, &in) != nil {
			return
		}
		sl, problems := Converter{Strings: NewInterner()}.Slice(&in)
		checkProblems(t, problems)
		if sl == nil {
			return
		}
		if sl.Service.Name == "" {
			t.Error("a slice without a Service")
		}
		for _, p := range sl.Ports {
			if p.Port == 0 || p.Protocol.String() == "unknown" {
				t.Errorf("port %+v", p)
			}
		}
		for _, ep := range sl.Endpoints {
			checkAddrs(t, []netip.Addr{ep.Addr})
			if route.FamilyOf(ep.Addr).String() != string(in.AddressType) || ep.Addr.IsLinkLocalUnicast() {
				t.Errorf("%v in a slice of %s", ep.Addr, in.AddressType)
			}
			if h := ep.Hints; h != nil && len(h.Zones)+len(h.Nodes) == 0 {
				t.Error("hints without zones and nodes")
			}
		}
	})
}

func checkAddrs(t *testing.T, list []netip.Addr) {
	t.Helper()
	seen := map[netip.Addr]bool{}
	for _, a := range list {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || seen[a] {
			t.Errorf("address %v in %v", a, list)
		}
		seen[a] = true
	}
}

func checkProblems(t *testing.T, problems []route.Problem) {
	t.Helper()
	for _, p := range problems {
		if p.Object == "" || p.Field == "" || p.Reason == "" {
			t.Errorf("problem %+v is incomplete", p)
		}
	}
}

// A Converter has no state except shared strings.
func TestConverterIsSafeForConcurrentUse(t *testing.T) {
	c := Converter{Strings: NewInterner()}
	done := make(chan *cluster.Service)
	for range 8 {
		go func() {
			var last *cluster.Service
			for range 200 {
				last, _ = c.Service(service(func(*corev1.Service) {}))
			}
			done <- last
		}()
	}
	want := converted(func(*cluster.Service) {})
	for range 8 {
		if d := diff(want, <-done); d != "" {
			t.Errorf("Service (-want +got):\n%s", d)
		}
	}
}
