//go:build linux

package apiserver

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/test/lab"
)

// ports are addresses with a port.
func ports(port uint16, addrs ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(netip.MustParseAddr(a), port))
	}
	return out
}

// nodePorts are the NodePort of a Service at node A's first addresses.
func (w *world) nodePorts(svc *corev1.Service) []netip.AddrPort {
	w.Helper()
	port := uint16(svc.Spec.Ports[0].NodePort)
	if port == 0 {
		w.Fatal("the API server gave no NodePort")
	}
	return ports(port, "192.168.0.2", "2001:db8::1")
}

// answered says which target does not answer.
func answered(from *lab.Host, to []netip.AddrPort) error {
	for _, target := range to {
		if r := from.Dial(lab.TCP, target); r.Outcome != lab.Answered {
			return fmt.Errorf("%s: %s", target, r)
		}
	}
	return nil
}
