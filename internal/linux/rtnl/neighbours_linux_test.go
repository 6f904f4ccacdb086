package rtnl

import (
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// move moves an interface to another network namespace.
func move(name string, netns int) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetNsFd(link, netns)
}

// shell runs commands of a shell in a network namespace.
func shell(t *testing.T, netns int, commands ...string) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		for _, c := range commands {
			if out, err := exec.Command("sh", "-ec", c).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", c, err, out)
			}
		}
		return nil
	})
}

// An address is a neighbour that the kernel resolves by itself, or that it cannot resolve, or is behind a gateway, or
// there is no route to it.
func TestNeighbourhood(t *testing.T) {
	here, there := kerneltest.Namespace(t), kerneltest.Namespace(t)
	shell(t, here, "ip link add eth0 address 02:00:00:00:00:01 type veth peer name eth1 address 02:00:00:00:00:02")
	kerneltest.Do(t, here, func() error { return move("eth1", there) })
	shell(t, there, "ip addr add 10.0.0.2/24 dev eth1", "ip -6 addr add fd00::2/64 dev eth1 nodad", "ip link set eth1 up")
	shell(t, here, "ip addr add 10.0.0.1/24 dev eth0", "ip -6 addr add fd00::1/64 dev eth0 nodad", "ip link set eth0 up",
		"ip route add default via 10.0.0.9", "ip route add 10.9.0.0/16 via 10.0.0.2",
		"ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev eth0")
	eth0 := Device{"eth0", 0}
	want := Neighbourhood{
		Uplinks:  []Device{eth0},
		Gateways: []Neighbour{{Addr: parse("10.0.0.9")[0], Device: eth0, MAC: [6]byte{2, 0, 0, 0, 0, 9}, Resolved: true}},
		Peers: []*Neighbour{
			{Addr: parse("10.0.0.2")[0], Device: eth0, MAC: [6]byte{2, 0, 0, 0, 0, 2}, Resolved: true},
			{Addr: parse("fd00::2")[0], Device: eth0, MAC: [6]byte{2, 0, 0, 0, 0, 2}, Resolved: true},
			{Addr: parse("10.0.0.3")[0], Device: eth0},
			{Addr: parse("10.9.0.1")[0], Device: eth0, Routed: true},
			nil,
		},
	}
	var diff string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		got, err := New(here).Neighbourhood(t.Context(), parse("10.0.0.2", "fd00::2", "10.0.0.3", "10.9.0.1", "fd01::1"))
		if err != nil {
			t.Fatal(err)
		}
		diff = cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.IgnoreFields(Device{}, "Index"))
		if diff == "" {
			return
		}
	}
	t.Errorf("neighbours (-want +got):\n%s", diff)
}
