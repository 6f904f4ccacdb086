//go:build linux

package harness

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Pods adds a client to node A and up to three backends, on nodes A, B and A, which serve TCP
// port 80. All have addresses in both IP families.
func Pods(l *lab.Lab, backends int) (client *lab.Host, pods []*lab.Host) {
	client = l.Pod(l.NodeA, "10.180.0.9", "fd00:10:180::9")
	for i, node := range []*lab.Host{l.NodeA, l.NodeB, l.NodeA}[:backends] {
		a := PodAddr(i)
		pod := l.Pod(node, a.String(), lab.Analog(a).String())
		pod.Serve(lab.TCP, 80)
		pods = append(pods, pod)
	}
	return client, pods
}

// PodAddr returns the IPv4 address of a backend. Its IPv6 address is lab.Analog of it.
func PodAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 180, 1, byte(i + 1)}) }
