//go:build linux

package apiserver

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/test/lab"
)

// ports combines addresses with a port.
func ports(port uint16, addrs ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(netip.MustParseAddr(a), port))
	}
	return out
}

// nodePorts returns the NodePort of a Service on node A's primary addresses.
func (w *testEnv) nodePorts(svc *corev1.Service) []netip.AddrPort {
	w.Helper()
	port := uint16(svc.Spec.Ports[0].NodePort)
	if port == 0 {
		w.Fatal("the API server assigned no NodePort")
	}
	return ports(port, "192.168.0.2", "2001:db8::1")
}

// checkAnswered returns an error if a target does not answer.
func checkAnswered(from *lab.Host, to []netip.AddrPort) error {
	for _, target := range to {
		if r := from.Dial(lab.TCP, target); r.Outcome != lab.Answered {
			return fmt.Errorf("%s: %s", target, r)
		}
	}
	return nil
}
