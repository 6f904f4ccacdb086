package convert

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

func endpointSlice(mutate func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: ptr.To[int32](8080)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
	}
	mutate(es)
	return es
}

func slice(mutate func(*cluster.Slice)) *cluster.Slice {
	sl := &cluster.Slice{
		Name:      cluster.Name{Namespace: "default", Name: "web-1"},
		Service:   cluster.Name{Namespace: "default", Name: "web"},
		Ports:     []cluster.SlicePort{{Name: "http", Protocol: cluster.TCP, Port: 8080}},
		Endpoints: []cluster.Endpoint{{Addr: addrs("10.0.0.1")[0], Ready: true, Serving: true}},
	}
	mutate(sl)
	return sl
}

func TestSlice(t *testing.T) {
	cases := []struct {
		name     string
		in       func(*discoveryv1.EndpointSlice)
		want     func(*cluster.Slice) // nil: no slice
		problems []string
	}{
		{"plain", func(*discoveryv1.EndpointSlice) {}, func(*cluster.Slice) {}, nil},
		{"S-238 headless", func(es *discoveryv1.EndpointSlice) { es.Labels[LabelHeadless] = "" }, nil, nil},
		{"S-240 FQDN", func(es *discoveryv1.EndpointSlice) { es.AddressType = discoveryv1.AddressTypeFQDN }, nil, nil},
		{"S-241 no service", func(es *discoveryv1.EndpointSlice) { es.Labels = nil }, nil, []string{"metadata.labels "}},
		{
			"unknown address type", func(es *discoveryv1.EndpointSlice) { es.AddressType = "IPX" },
			nil,
			[]string{"addressType IPX"},
		},
		{"S-242 odd ports", func(es *discoveryv1.EndpointSlice) {
			es.Ports = []discoveryv1.EndpointPort{
				{Port: ptr.To[int32](1)},
				{Name: new("all")},
				{Name: new("zero"), Port: ptr.To[int32](0)},
				{Name: new("high"), Port: ptr.To[int32](65536)},
				{Name: new("proto"), Port: ptr.To[int32](2), Protocol: ptr.To(corev1.Protocol("IGMP"))},
				{Name: new(""), Port: ptr.To[int32](53), Protocol: ptr.To(corev1.ProtocolUDP)},
			}
		}, func(sl *cluster.Slice) {
			sl.Ports = []cluster.SlicePort{{Protocol: cluster.UDP, Port: 53}}
		}, []string{"ports[0].name ", "ports[1].port ", "ports[2].port ", "ports[3].port 65536", "ports[4].protocol IGMP"}},
		{
			"no ports at all", func(es *discoveryv1.EndpointSlice) { es.Ports = nil },
			func(sl *cluster.Slice) { sl.Ports = nil }, nil,
		},
		{
			"S-243 S-244 S-245 addresses", func(es *discoveryv1.EndpointSlice) {
				es.Endpoints = []discoveryv1.Endpoint{
					{}, {Addresses: []string{"10.180.00.001", "10.0.0.9"}}, {Addresses: []string{"x"}},
				}
			}, func(sl *cluster.Slice) { sl.Endpoints[0].Addr = addrs("10.180.0.1")[0] },
			[]string{"endpoints[2].addresses[0] x"},
		},
		{"special addresses", func(es *discoveryv1.EndpointSlice) {
			for _, a := range []string{"127.0.0.1", "0.0.0.0", "224.0.0.1", "169.254.1.1", "fd00::1"} {
				es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
			}
		}, func(*cluster.Slice) {}, []string{
			"endpoints[1].addresses[0] 127.0.0.1", "endpoints[2].addresses[0] 0.0.0.0", "endpoints[3].addresses[0] 224.0.0.1",
			"endpoints[4].addresses[0] 169.254.1.1", "endpoints[5].addresses[0] fd00::1",
		}},
		{"IPv6", func(es *discoveryv1.EndpointSlice) {
			es.AddressType = discoveryv1.AddressTypeIPv6
			es.Endpoints = []discoveryv1.Endpoint{
				{Addresses: []string{"fd00:0::1"}}, {Addresses: []string{"::ffff:10.0.0.1"}}, {Addresses: []string{"fe80::1"}},
			}
		}, func(sl *cluster.Slice) { sl.Endpoints[0].Addr = addrs("fd00::1")[0] }, []string{
			"endpoints[1].addresses[0] ::ffff:10.0.0.1", "endpoints[2].addresses[0] fe80::1",
		}},
		{"conditions and node", func(es *discoveryv1.EndpointSlice) {
			es.Endpoints[0].NodeName = new("n1")
			es.Endpoints[0].Conditions = discoveryv1.EndpointConditions{
				Ready: new(false), Serving: new(false), Terminating: new(true),
			}
		}, func(sl *cluster.Slice) {
			sl.Endpoints[0] = cluster.Endpoint{Addr: addrs("10.0.0.1")[0], Node: "n1", Terminating: true}
		}, nil},
		{"pods, if they are the targets", func(es *discoveryv1.EndpointSlice) {
			es.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "web-0"}
			es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{"10.0.0.2"}, TargetRef: &corev1.ObjectReference{Kind: "Node", Name: "n1"},
			})
		}, func(sl *cluster.Slice) {
			sl.Endpoints = append(sl.Endpoints, cluster.Endpoint{Addr: addrs("10.0.0.2")[0], Ready: true, Serving: true})
			sl.Pods = []cluster.Pod{{Name: "web-0", Addr: addrs("10.0.0.1")[0]}}
		}, nil},
		{"serving is true by default", func(es *discoveryv1.EndpointSlice) {
			es.Endpoints[0].Conditions.Ready = new(false)
		}, func(sl *cluster.Slice) { sl.Endpoints[0].Ready = false }, nil},
		{"hints", func(es *discoveryv1.EndpointSlice) {
			es.Endpoints[0].Hints = &discoveryv1.EndpointHints{
				ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}}, ForNodes: []discoveryv1.ForNode{{Name: "n1"}},
			}
		}, func(sl *cluster.Slice) {
			sl.Endpoints[0].Hints = &cluster.Hints{Zones: []string{"a", "b"}, Nodes: []string{"n1"}}
		}, nil},
		{"empty hints are none", func(es *discoveryv1.EndpointSlice) {
			es.Endpoints[0].Hints = &discoveryv1.EndpointHints{}
		}, func(*cluster.Slice) {}, nil},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, problems := Converter{Strings: NewInterner()}.Slice(endpointSlice(tc.in))
			var want *cluster.Slice
			if tc.want != nil {
				want = slice(tc.want)
			}
			if d := diff(want, got); d != "" {
				t.Errorf("Slice (-want +got):\n%s", d)
			}
			if d := diff(tc.problems, fieldsOf(t, "EndpointSlice default/web-1", problems)); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
		})
	}
}

func TestEndpoints(t *testing.T) {
	eps := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Subsets: []corev1.EndpointSubset{
			{
				Addresses: []corev1.EndpointAddress{
					{IP: "10.0.0.01", NodeName: new("n1")}, {IP: "fd00::1"}, {IP: "127.0.0.1"},
				},
				NotReadyAddresses: []corev1.EndpointAddress{{IP: "10.0.0.2"}, {IP: "?"}},
				Ports:             []corev1.EndpointPort{{Port: 8080}, {Name: "zero"}, {Name: "p", Port: 1, Protocol: "X"}},
			},
			{Addresses: []corev1.EndpointAddress{{IP: "10.0.0.3"}}, Ports: []corev1.EndpointPort{{Port: 9090, Protocol: "UDP"}}},
		},
	}
	web := cluster.Name{Namespace: "default", Name: "web"}
	want := []*cluster.Slice{
		{
			Name: cluster.Name{Namespace: "default", Name: "web/endpoints/0"}, Service: web,
			Ports: []cluster.SlicePort{{Protocol: cluster.TCP, Port: 8080}},
			Endpoints: []cluster.Endpoint{
				{Addr: addrs("10.0.0.1")[0], Node: "n1", Ready: true, Serving: true},
				{Addr: addrs("fd00::1")[0], Ready: true, Serving: true},
				{Addr: addrs("10.0.0.2")[0]},
			},
		},
		{
			Name: cluster.Name{Namespace: "default", Name: "web/endpoints/1"}, Service: web,
			Ports:     []cluster.SlicePort{{Protocol: cluster.UDP, Port: 9090}},
			Endpoints: []cluster.Endpoint{{Addr: addrs("10.0.0.3")[0], Ready: true, Serving: true}},
		},
	}
	got, problems := Converter{}.Endpoints(eps)
	if d := diff(want, got); d != "" {
		t.Errorf("Endpoints (-want +got):\n%s", d)
	}
	if d := diff([]string{
		"subsets[0].ports[1].port 0", "subsets[0].ports[2].protocol X",
		"subsets[0].addresses[2].ip 127.0.0.1", "subsets[0].notReadyAddresses[1].ip ?",
	}, fieldsOf(t, "Endpoints default/web", problems)); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
	eps.Labels = map[string]string{LabelHeadless: ""}
	if got, problems := (Converter{}).Endpoints(eps); got != nil || problems != nil {
		t.Errorf("headless Endpoints became %v, %v", got, problems)
	}
}

// Slices from an API server name the pods of this node only, as there are very many others.
func TestPodsOfThisNode(t *testing.T) {
	es := endpointSlice(func(es *discoveryv1.EndpointSlice) {
		es.Endpoints[0].NodeName, es.Endpoints[0].TargetRef = new("one"), &corev1.ObjectReference{Kind: "Pod", Name: "web-0"}
	})
	for node, want := range map[string]int{"": 1, "one": 1, "two": 0} {
		got, problems := Converter{PodsOf: node}.Slice(es)
		if len(got.Pods) != want || len(problems) > 0 {
			t.Errorf("node %q: got %v and %v, want %d pods", node, got.Pods, problems, want)
		}
	}
}
