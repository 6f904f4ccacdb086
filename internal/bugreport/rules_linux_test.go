package bugreport

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// The rules of Sluice and kube-proxy are listed, and nothing of other programs.
func TestRules(t *testing.T) {
	ns := kerneltest.Namespace(t)
	if got, err := Rules(t.Context(), ns); len(got) != 0 || err != nil {
		t.Errorf("of an empty namespace: %q, %v", got, err)
	}
	kerneltest.Do(t, ns, func() error {
		for _, c := range []string{
			"nft add table ip sluice", "nft add chain ip sluice services", "nft add rule ip sluice services accept",
			"nft add table ip firewall", "nft add chain ip firewall private",
			"iptables-nft -t nat -N KUBE-SERVICES", "iptables-nft -t nat -N OTHERS",
			"iptables-nft -t nat -A KUBE-SERVICES -s 203.0.113.9 -j RETURN",
		} {
			words := strings.Fields(c)
			cmd := exec.Command(words[0], words[1:]...)
			cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(t.TempDir(), "lock"))
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", c, err, out)
			}
		}
		return nil
	})
	got, err := Rules(t.Context(), ns)
	const want = "table ip sluice\n  chain services\n    ACCEPT\niptables-nft nat chain KUBE-SERVICES\n    RETURN\n"
	if string(got) != want || err != nil {
		t.Errorf("got\n%s%v\nwant\n%s", got, err, want)
	}
}
