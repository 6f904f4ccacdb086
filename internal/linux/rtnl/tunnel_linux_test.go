package rtnl

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// Hosts behind a router become neighbours by their tunnels, also with strict reverse path filters. One without a
// tunnel does not answer. A removed tunnel leaves nothing, and can be made again.
func TestATunnelMakesDistantHostsNeighbours(t *testing.T) {
	router := kerneltest.Namespace(t)
	run := func(netns int, format string, args ...any) {
		t.Helper()
		shell(t, netns, fmt.Sprintf(format, args...))
	}
	run(router, "sysctl -qw net.ipv4.ip_forward=1")
	hosts, ends := make([]int, 3), make([]End, 3)
	for i := range hosts {
		hosts[i] = kerneltest.Namespace(t)
		name := fmt.Sprintf("node-%d", i)
		ends[i] = End{name, netip.AddrFrom4([4]byte{10, 0, byte(i), 2}), netip.AddrFrom4([4]byte{10, 0, byte(i), 2})}
		run(router, "ip link add r%d type veth peer name eth0", i)
		kerneltest.Do(t, router, func() error { return move("eth0", hosts[i]) })
		run(router, "ip addr add 10.0.%d.1/24 dev r%d; ip link set r%d up", i, i, i)
		run(hosts[i], "ip addr add 10.0.%d.2/24 dev eth0; ip link set eth0 up; ip route add default via 10.0.%d.1; "+
			"sysctl -qw net.ipv4.conf.all.rp_filter=1", i, i)
	}
	v6 := func(e End) End {
		e.Inner = Inner(e.Name, netip.MustParseAddr("fd00::2"))
		return e
	}
	tunnels := []*Tunnel{NewTunnel(hosts[0], "tunnel", 10264), NewTunnel(hosts[1], "tunnel", 10264)}
	far := []End{ends[1], ends[2], v6(ends[1]), v6(ends[2])}
	look := func() []Neighbour {
		t.Helper()
		_, err := tunnels[1].Neighbours(t.Context(), ends[1], []End{ends[0], v6(ends[0])})
		if err != nil {
			t.Fatal(err)
		}
		list, err := tunnels[0].Neighbours(t.Context(), ends[0], far)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	wait := func(resolved ...bool) {
		t.Helper()
		var want []Neighbour
		for i, e := range far {
			want = append(want, Neighbour{
				Addr: e.Inner, Device: Device{Name: "tunnel"}, MAC: hardwareAddress(e.Name), Resolved: resolved[i],
			})
		}
		diff := "-"
		for deadline := time.Now().Add(30 * time.Second); diff != "" && time.Now().Before(deadline); {
			diff = cmp.Diff(want, look(), cmpopts.IgnoreFields(Device{}, "Index"), cmpopts.EquateComparable(netip.Addr{}))
			time.Sleep(20 * time.Millisecond)
		}
		if diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
	wait(true, false, true, false)
	far = far[1:]
	wait(false, true, false)

	for _, want := range []bool{true, false} {
		if got, err := tunnels[0].Remove(); got != want || err != nil {
			t.Errorf("removed %v, %v", got, err)
		}
	}
	run(hosts[0], "! ip link show tunnel 2>/dev/null; test $(ip rule | wc -l) = 3")
	far = []End{ends[1], v6(ends[1])}
	wait(true, true)
	run(hosts[0], "ip rule del oif tunnel; ip addr del 192.0.0.8/32 dev tunnel") // as if the process was killed before
	tunnels[0] = NewTunnel(hosts[0], "tunnel", 10264)
	look()
	run(hosts[0], "ip rule | grep -q 'oif tunnel'; ip addr show tunnel | grep -q 192.0.0.8")
	wait(true, true)
}
