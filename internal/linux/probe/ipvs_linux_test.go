package probe

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// A kernel without IPVS is named with the remedy; with IPVS the probe leaves nothing.
func TestIPVS(t *testing.T) {
	ns := hint(t, iptables.NFT)
	before := tables(t, ns)
	got, err := IPVS(t.Context(), Options{NetNS: ns})
	if loadErr := ipvs.New(ns).Load(t.Context()); errors.Is(loadErr, ipvs.ErrAbsent) {
		const want = "missing kernel feature: the kernel has no IPVS: load it with: modprobe ip_vs, " +
			"or use a kernel with CONFIG_IP_VS (this kernel has no IPVS)"
		if !errors.Is(err, ErrFeature) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	} else if err != nil || !got.IPv4 || !got.IPv6 {
		t.Errorf("got %+v, %v", got, err)
	}
	if after := tables(t, ns); len(after) != len(before) {
		t.Errorf("tables %v, before %v", after, before)
	}
	if names, err := ipset.New(ns).Names(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("sets %v, %v", names, err)
	}
	if _, err := rtnl.New(ns).Addresses(t.Context(), probeSet); !errors.Is(err, rtnl.ErrNotFound) {
		t.Errorf("the interface: %v", err)
	}
}

func TestAbsentFeaturesHaveARemedy(t *testing.T) {
	if err := absent(nil, "x", "y", "Z"); err != nil {
		t.Errorf("nothing is absent: %v", err)
	}
	if err := absent(unix.EPERM, "IPVS", "ip_vs", "IP_VS"); !errors.Is(err, ErrPrivilege) ||
		!strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("without the privilege: %v", err)
	}
	err := absent(unix.EOPNOTSUPP, "dummy interfaces", "dummy", "DUMMY")
	const want = "the kernel has no dummy interfaces: load it with: modprobe dummy, or use a kernel with CONFIG_DUMMY"
	if !errors.Is(err, ErrFeature) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}

func TestIPVSWithoutCapability(t *testing.T) {
	var got error
	kerneltest.Do(t, hint(t, iptables.NFT), func() error {
		if err := drop(unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		_, got = IPVS(t.Context(), Options{})
		return nil
	})
	if !errors.Is(got, ErrPrivilege) {
		t.Errorf("got %v", got)
	}
}
