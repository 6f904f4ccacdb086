package probe

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// This kernel supports everything, and the probe takes a fraction of a second and leaves nothing.
func TestNFTables(t *testing.T) {
	ns := kerneltest.Namespace(t)
	started := time.Now()
	got, err := NFTables(t.Context(), Options{NetNS: ns})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the probe took %v", time.Since(started))
	if !got.IPv4 || !got.IPv6 || got.NoIPv6 != "" || len(got.Missing) != 0 {
		t.Errorf("got %+v", got)
	}
	conn, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil || len(tables) != 0 {
		t.Errorf("the probe left %v, %v", tables, err)
	}
}

// Each feature works alone. Otherwise it would be reported when another one is missing.
func TestEachFeature(t *testing.T) {
	conn, err := nft.Open(nft.Options{NetNS: kerneltest.Namespace(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for _, family := range []nft.Family{nft.IP4, nft.IP6} {
		for _, one := range features() {
			if err := try(t.Context(), conn, family, []feature{one}); err != nil {
				t.Errorf("%s in %s: %v", one.name, family, err)
			}
		}
	}
}

// A host with IPv6 disabled is served in IPv4, and the reason says how to enable IPv6. (S-301)
func TestIPv6SwitchedOff(t *testing.T) {
	ns := kerneltest.Namespace(t)
	const key = "net.ipv6.conf.all.disable_ipv6"
	if err := sysctl.New(sysctl.Options{NetNS: ns}).Set(key, "1"); err != nil {
		t.Fatal(err)
	}
	got, err := NFTables(t.Context(), Options{NetNS: ns})
	if err != nil {
		t.Fatal(err)
	}
	if !got.IPv4 || got.IPv6 || !strings.Contains(got.NoIPv6, "sysctl -w "+key+"=0") {
		t.Errorf("got %+v", got)
	}
}

// Without the capability the error names it, and contains advice.
func TestWithoutCapability(t *testing.T) {
	var got error
	kerneltest.Do(t, kerneltest.Namespace(t), func() error {
		if err := drop(unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		_, got = NFTables(t.Context(), Options{})
		return nil
	})
	if !errors.Is(got, ErrPrivilege) || !strings.Contains(got.Error(), "CAP_NET_ADMIN: run as root") {
		t.Errorf("got %v", got)
	}
}

// drop removes a capability from the calling thread.
func drop(capability int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	data[0].Effective &^= 1 << capability
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

// Each missing feature is reported with its own remedy, and nothing else.
func TestMissingFeatures(t *testing.T) {
	lacks := func(names ...string) func(...feature) error {
		return func(features ...feature) error {
			for _, f := range features {
				for _, name := range names {
					if strings.HasPrefix(f.name, name) {
						return fmt.Errorf("conn.Receive: %w", unix.EOPNOTSUPP)
					}
				}
			}
			return nil
		}
	}
	always := func(err error) func(...feature) error {
		return func(...feature) error { return err }
	}
	together := func(features ...feature) error {
		if len(features) > 1 {
			return unix.ENOMEM
		}
		return nil
	}
	cases := []struct {
		name   string
		family nft.Family
		try    func(...feature) error
		is     error
		want   string
	}{
		{"nothing", nft.IP4, lacks(), nil, ""},
		{
			"one", nft.IP4, lacks("reject"), ErrFeature,
			"missing kernel feature: nf_tables reject in prerouting in IPv4: use kernel 5.9 or newer with CONFIG_NFT_REJECT",
		},
		{
			"two", nft.IP6, lacks("address type", "random"), ErrFeature,
			"missing kernel feature: nf_tables random numbers (numgen) in IPv6: use a kernel with CONFIG_NFT_NUMGEN\n" +
				"missing kernel feature: nf_tables address type look-ups (fib) in IPv6: use a kernel with CONFIG_NFT_FIB_IPV6",
		},
		{
			"privilege", nft.IP4, always(os.ErrPermission), ErrPrivilege,
			"missing privilege: programming nf_tables needs the capability CAP_NET_ADMIN: " +
				"run as root, or grant it (in a pod: securityContext.capabilities.add: [NET_ADMIN])",
		},
		{
			"another error", nft.IP4, always(unix.ENOMEM), unix.ENOMEM,
			"try nf_tables NAT chains in IPv4: cannot allocate memory",
		},
		{
			"together", nft.IP4, together, unix.ENOMEM,
			"try nf_tables in IPv4: each feature works alone, but not all together: cannot allocate memory",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := missingFeatures(c.family, c.try)
			if !errors.Is(err, c.is) {
				t.Fatalf("got %v", err)
			}
			if err != nil && err.Error() != c.want {
				t.Errorf("got\n%v\nwant\n%s", err, c.want)
			}
		})
	}
}

// A kernel without nf_tables at all.
func TestUnreachable(t *testing.T) {
	for _, code := range []error{unix.EINVAL, unix.EOPNOTSUPP} {
		err := explainReach(fmt.Errorf("netlink receive: %w", code))
		if !errors.Is(err, ErrFeature) || !strings.Contains(err.Error(), "modprobe nf_tables") {
			t.Errorf("%v: %v", code, err)
		}
	}
	if err := explainReach(unix.EIO); errors.Is(err, ErrFeature) || errors.Is(err, ErrPrivilege) {
		t.Errorf("an input/output error is neither: %v", err)
	}
}
