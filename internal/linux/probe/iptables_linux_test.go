package probe

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// hint returns a namespace with the hint of kubelet that the host uses a variant.
func hint(t *testing.T, variant iptables.Variant) int {
	t.Helper()
	ns := kerneltest.Namespace(t)
	kerneltest.Do(t, ns, func() error {
		cmd := exec.Command("iptables-"+string(variant), "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
		cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(t.TempDir(), "lock"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return ns
}

// tables lists the tables in a namespace.
func tables(t *testing.T, ns int) []string {
	t.Helper()
	all, err := iptables.NewKernel(iptables.Options{NetNS: ns}).Outlines(t.Context(), iptables.AllRules)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, table := range all {
		names = append(names, table.String())
		for _, c := range table.Chains {
			if strings.HasPrefix(c.Name, "SLUICE") {
				t.Errorf("the probe left chain %s", c.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// This kernel supports everything, in both variants, and the probe leaves nothing.
func TestIptables(t *testing.T) {
	for _, variant := range []iptables.Variant{iptables.NFT, iptables.Legacy} {
		ns := hint(t, variant)
		before := tables(t, ns)
		started := time.Now()
		got, err := Iptables(t.Context(), Options{NetNS: ns})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: the probe took %v", variant, time.Since(started))
		if !got.IPv4 || !got.IPv6 || got.NoIPv6 != "" || len(got.Missing) != 0 {
			t.Errorf("%s: %+v", variant, got)
		}
		if after := tables(t, ns); !slices.Equal(after, before) {
			t.Errorf("%s: tables %v, before %v", variant, after, before)
		}
	}
}

// Each extension works alone, with the programs and the kernel, and all together pass a test without a write.
func TestEachExtension(t *testing.T) {
	for _, variant := range []iptables.Variant{iptables.NFT, iptables.Legacy} {
		tools, err := iptables.Open(t.Context(), iptables.Options{
			NetNS: hint(t, variant), Lock: filepath.Join(t.TempDir(), "lock"),
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range xtFamilies() {
			for _, one := range extensions(variant) {
				if err := tools.Restore(t.Context(), f.family, []byte(input(f, []extension{one}))); err != nil {
					t.Errorf("%s in %s: %v", one.name, f.name, err)
				}
			}
			if err := tools.Test(t.Context(), f.family, []byte(input(f, extensions(variant)))); err != nil {
				t.Error(err)
			}
		}
	}
}

// Without the capabilities the error names them, and contains advice.
func TestIptablesWithoutCapability(t *testing.T) {
	for _, c := range []struct {
		variant    iptables.Variant
		name       string
		capability int
	}{
		{iptables.NFT, "CAP_NET_ADMIN", unix.CAP_NET_ADMIN},
		{iptables.Legacy, "CAP_NET_ADMIN", unix.CAP_NET_ADMIN},
		{iptables.Legacy, "CAP_NET_RAW", unix.CAP_NET_RAW},
	} {
		var got error
		kerneltest.Do(t, hint(t, c.variant), func() error {
			if err := drop(c.capability); err != nil {
				return err
			}
			_, got = Iptables(t.Context(), Options{})
			return nil
		})
		if !errors.Is(got, ErrPrivilege) || !strings.Contains(got.Error(), "need the capability "+c.name+": run as root") {
			t.Errorf("%s without %s: %v", c.variant, c.name, got)
		}
	}
}

// Each missing extension is reported with its own remedy. A missing extension that only
// some Services need is not an error.
func TestMissingExtensions(t *testing.T) {
	refusal := &iptables.RestoreError{Program: "iptables-restore", Rule: "-A X", Reason: "Couldn't load it"}
	lacks := func(names ...string) func(...extension) error {
		return func(all ...extension) error {
			for _, e := range all {
				if slices.Contains(names, e.name) {
					return refusal
				}
			}
			return nil
		}
	}
	ip4, ip6 := xtFamilies()[0], xtFamilies()[1]
	for _, c := range []struct {
		name   string
		family xtFamily
		try    func(...extension) error
		is     error
		want   string
		absent string // what is reported besides an error
	}{
		{"nothing", ip4, lacks(), nil, "", ""},
		{
			"a match", ip4, lacks("match statistic"), ErrFeature,
			"missing kernel feature: iptables match statistic in IPv4: load it with: modprobe xt_statistic, " +
				"or use a kernel with CONFIG_NETFILTER_XT_MATCH_STATISTIC" +
				` (iptables-restore: "-A X": Couldn't load it)`, "",
		},
		{
			"a table", ip6, lacks("table nat"), ErrFeature,
			"missing kernel feature: iptables table nat in IPv6: load it with: modprobe ip6table_nat, " +
				"or use a kernel with CONFIG_IP6_NF_NAT" +
				` (iptables-restore: "-A X": Couldn't load it)`, "",
		},
		{
			"extensions that only some Services need", ip4, lacks("match sctp", "match recent"), nil, "",
			"match recent in IPv4: load it with: modprobe xt_recent, or use a kernel with CONFIG_NETFILTER_XT_MATCH_RECENT\n" +
				"match sctp in IPv4: load it with: modprobe xt_sctp, or use a kernel with CONFIG_NETFILTER_XT_MATCH_SCTP",
		},
		{"another error", ip4, func(all ...extension) error {
			if all[0].table == "" || len(all) > 1 {
				return unix.ENOMEM
			}
			return nil
		}, unix.ENOMEM, "try iptables match tcp in IPv4: cannot allocate memory", ""},
		{"together", ip4, func(all ...extension) error {
			if len(all) > 1 {
				return unix.ENOMEM
			}
			return nil
		}, unix.ENOMEM, "try iptables in IPv4: each feature works alone, but not all together: cannot allocate memory", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			missing, err := missingExtensions(c.family, iptables.Legacy, c.try)
			if !errors.Is(err, c.is) {
				t.Fatalf("got %v", err)
			}
			if err != nil && err.Error() != c.want {
				t.Errorf("got\n%v\nwant\n%s", err, c.want)
			}
			var lines []string
			for _, m := range missing {
				lines = append(lines, fmt.Sprintf("%s in %s: %s", m.Name, m.Family, m.Remedy))
			}
			if got := strings.Join(lines, "\n"); got != c.absent {
				t.Errorf("missing\n%s\nwant\n%s", got, c.absent)
			}
		})
	}
}
