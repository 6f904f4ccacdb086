package iptables

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// host is a namespace with the programs of one variant.
type host struct {
	t     *testing.T
	netns int
	lock  string
	tools *Tools
}

// onlyPrograms returns a folder with links to the programs of these variants.
func onlyPrograms(t *testing.T, variants ...Variant) string {
	t.Helper()
	folder := t.TempDir()
	for _, variant := range variants {
		for _, family := range []Family{IPv4, IPv6} {
			for _, suffix := range []string{"", "-save", "-restore"} {
				name := family.Program() + "-" + string(variant) + suffix
				path, err := exec.LookPath("/usr/sbin/" + name)
				if err != nil {
					t.Fatalf("the programs of iptables are needed: %v", err)
				}
				if err := os.Symlink(path, filepath.Join(folder, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return folder
}

func newHost(t *testing.T, variant Variant) *host {
	t.Helper()
	return newHostWith(t, variant, Options{})
}

func newHostWith(t *testing.T, variant Variant, o Options) *host {
	t.Helper()
	h := &host{t: t, netns: kerneltest.Namespace(t), lock: filepath.Join(t.TempDir(), "lock")}
	o.NetNS, o.Lock, o.Path = h.netns, h.lock, onlyPrograms(t, variant)
	if o.Poll == 0 {
		o.Poll = 20 * time.Millisecond
	}
	tools, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if tools.Variant() != variant {
		t.Fatalf("variant %s: %s", tools.Variant(), tools.Reason())
	}
	h.tools = tools
	return h
}

// run runs a command in the namespace like another program; it adds the variant to the names of iptables and ip6tables.
func (h *host) run(command string) {
	h.t.Helper()
	args := strings.Fields(command)
	if program, suffix, _ := strings.Cut(args[0], "-"); strings.HasSuffix(program, "tables") {
		args[0] = strings.TrimSuffix(program+"-"+string(h.tools.Variant())+"-"+suffix, "-")
	}
	runIn(h.t, h.netns, h.lock, args...)
}

func runIn(t *testing.T, netns int, lock string, args ...string) {
	t.Helper()
	kerneltest.Do(t, netns, func() error {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+lock, "PATH=/usr/sbin:/sbin:/usr/bin:/bin")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	})
}

func (h *host) restore(family Family, input string) {
	h.t.Helper()
	if err := h.tools.Restore(h.t.Context(), family, []byte(input)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) read(family Family, table string) Chains {
	h.t.Helper()
	chains, err := h.tools.Read(h.t.Context(), Table{family, table})
	if err != nil {
		h.t.Fatal(err)
	}
	return chains
}

// both runs a test for each variant.
func both(t *testing.T, test func(t *testing.T, variant Variant)) {
	t.Helper()
	for _, variant := range []Variant{NFT, Legacy} {
		t.Run(string(variant), func(t *testing.T) {
			t.Parallel() // most of the time is waiting
			test(t, variant)
		})
	}
}

func families() []Family { return []Family{IPv4, IPv6} }
