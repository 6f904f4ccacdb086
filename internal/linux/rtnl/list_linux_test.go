package rtnl

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// Network lists the interfaces, and says which are ports of a bridge and which lead to everywhere.
func TestNetwork(t *testing.T) {
	ns := kerneltest.Namespace(t)
	kerneltest.Do(t, ns, func() error {
		for _, c := range []string{
			"link add eth0 type veth peer name far", "link set eth0 mtu 1400 up", "link set far up",
			"addr add 10.0.0.4/24 dev eth0",
			"route add 10.1.0.0/16 via 10.0.0.1", "route add default via 10.0.0.1",
			"link add cni0 type bridge", "link set far master cni0",
		} {
			if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", c, err, out)
			}
		}
		return nil
	})
	got, err := New(ns).Network(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Routes < 3 {
		t.Errorf("%d routes", got.Routes)
	}
	byName := map[string]Link{}
	for _, l := range got.Links {
		byName[l.Name] = l
	}
	want := map[string]Link{
		"lo":   {Name: "lo", Kind: "device", MTU: 65536, Up: true},
		"eth0": {Name: "eth0", Kind: "veth", MTU: 1400, Up: true, Uplink: true},
		"far":  {Name: "far", Kind: "veth", MTU: 1500, Up: true, Bridge: "cni0"},
		"cni0": {Name: "cni0", Kind: "bridge", MTU: 1500},
	}
	for name := range want {
		if diff := cmp.Diff(want[name], byName[name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
