package iptables

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

const testMark = 0x4000

// realKernel returns the tools of one variant in a new network namespace.
func realKernel(t testing.TB, variant iptables.Variant) (tools *iptables.Tools, netns int) {
	t.Helper()
	netns = kerneltest.Namespace(t)
	return toolsIn(t, variant, netns), netns
}

// toolsIn returns the tools of one variant in a network namespace.
func toolsIn(t testing.TB, variant iptables.Variant, netns int) *iptables.Tools {
	t.Helper()
	programs := t.TempDir()
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			name := family + "-" + string(variant) + suffix
			path, err := exec.LookPath(filepath.Join("/usr/sbin", name))
			if err != nil {
				t.Fatalf("the programs of iptables are needed: %v", err)
			}
			if err := os.Symlink(path, filepath.Join(programs, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	tools, err := iptables.Open(t.Context(), iptables.Options{
		NetNS: netns, Path: programs, Lock: filepath.Join(t.TempDir(), "lock"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return tools
}

// variants are those that tests run with: in quick tests the one of today's distributions.
func variants() []iptables.Variant {
	if testing.Short() {
		return []iptables.Variant{iptables.NFT}
	}
	return []iptables.Variant{iptables.NFT, iptables.Legacy}
}

func newPlane(kernel Kernel) *Plane {
	return New(kernel, Options{Families: route.Families(), Mark: testMark})
}

// load writes a change with a new plane, which compares it with the present state of the kernel.
func load(t testing.TB, kernel Kernel, change route.Change) {
	t.Helper()
	planetest.Load(t, newPlane(kernel), change)
}

// checkSettled verifies that a new plane finds nothing to write.
func checkSettled(t testing.TB, kernel Kernel, table *route.Table) {
	t.Helper()
	planetest.Settled(t, newPlane(kernel), table)
}

// owned reports whether a chain belongs to a single Service port.
func owned(name string) bool {
	prefixes := []string{clusterPrefix, localPrefix, externalPrefix, rangesPrefix, endpointPrefix}
	return slices.ContainsFunc(prefixes, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

func bothFamilies() []*family { return newPlane(nil).families }
