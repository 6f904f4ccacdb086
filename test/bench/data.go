//go:build linux

package main

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// endpoints is the number of endpoints of a Service.
const endpoints = 3

const namespace = "bench"

// generator creates Services and EndpointSlices as the API server has them. It converts them as the source does, with
// interned strings.
type generator struct{ convert convert.Converter }

func newGenerator() generator { return generator{convert.Converter{Strings: convert.NewInterner()}} }

func serviceName(i int) string { return fmt.Sprintf("service-%06d", i) }

// clusterIP returns the ClusterIP of Service i, in 172.16.0.0/12.
func clusterIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)})
}

// podIP returns the address of endpoint j of Service i, in 10.0.0.0/8.
func podIP(i, j int) netip.Addr {
	n := uint32(i)*8 + uint32(j)
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func (m generator) service(i int) *cluster.Service {
	single := corev1.IPFamilyPolicySingleStack
	svc, _ := m.convert.Service(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName(i)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIP(i).String(), ClusterIPs: []string{clusterIP(i).String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single,
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	})
	return svc
}

// slice returns the EndpointSlice of Service i with the given endpoints.
func (m generator) slice(i int, which ...int) *cluster.Slice {
	http, port, tcp, yes, no := "http", int32(8080), corev1.ProtocolTCP, true, false
	es := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: serviceName(i) + "-abcde",
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &http, Port: &port, Protocol: &tcp}},
	}
	for _, j := range which {
		node := fmt.Sprintf("node-%04d", (i+j)%1000)
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{podIP(i, j).String()},
			NodeName:   &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		})
	}
	sl, _ := m.convert.Slice(es)
	return sl
}

// fill puts n Services and the other necessary objects into a store.
func (m generator) fill(store *cluster.Store, n int) {
	store.SetNode(&cluster.Node{Name: "node-0000", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}})
	store.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")})
	store.SetLocalAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.168.0.2")})
	for i := range n {
		store.SetService(m.service(i))
		store.SetSlice(m.slice(i, 0, 1, 2))
	}
}
