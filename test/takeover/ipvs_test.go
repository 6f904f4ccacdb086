//go:build linux

package takeover

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/takeover"
	"github.com/sluice-proxy/sluice/test/apiserver"
)

// TestIPVS: what the real kube-proxy leaves in mode ipvs goes, and what others
// have in IPVS stays. It ran in user-mode Linux 6.1, which has IPVS.
func TestIPVS(t *testing.T) {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		t.Skip("this kernel has no IPVS")
	}
	if program() == "" {
		t.Skip("there is no real kube-proxy (KUBE_PROXY)")
	}
	w := newWorld(t, apiserver.Start(t))
	m := mode{"iptables-legacy", "ipvs", "xtables-legacy-multi"}
	w.others(m)
	before := w.dump() + w.balancer()
	w.kubeProxy(m).end()
	w.lab.NodeA.MustRun("ipvsadm", "-A", "-t", "192.168.0.2:81", "-s", "rr") // kube-proxy would have removed it

	said := w.theirs()
	t.Log(said)
	w.lab.NodeA.MustRun("ipvsadm", "-D", "-t", "192.168.0.2:81") // fails if it is gone
	if diff := cmp.Diff(before, w.dump()+w.balancer()); diff != "" {
		t.Errorf("not as without kube-proxy (-before, +now):\n%s", diff)
	}
	for _, want := range []string{"removed ipvs: ", "removed iptables-legacy: ", "left ipvs: 1 virtual server not known as kube-proxy's: tcp 192.168.0.2:81"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if again := w.theirs(); again != "" {
		t.Errorf("with nothing left it says:\n%s", again)
	}
}

// theirs removes what is kube-proxy's alone: a kernel with IPVS need not have
// what Sluice's planes need.
func (w *world) theirs() string {
	w.Helper()
	account, err := takeover.Cleanup(w.Context(), takeover.Options{NetNS: w.lab.NodeA.NetNSFD()})
	w.must(err)
	return strings.Join(account.Lines(), "\n")
}

// balancer is what there is of IPVS and ipsets, and kube-proxy's interface.
func (w *world) balancer() string {
	w.Helper()
	return "== balancer\n" + w.lab.NodeA.MustRun("ipvsadm", "-S", "-n") + w.lab.NodeA.MustRun("ipset", "list", "-n") +
		w.lab.NodeA.MustRun("sh", "-c", "ip -o addr show kube-ipvs0 2>/dev/null || true")
}
