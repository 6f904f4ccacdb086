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

// TestIPVS verifies that the cleanup removes the state of the real kube-proxy in mode ipvs, and
// keeps foreign virtual servers. It was run on user-mode Linux 6.1, with IPVS.
func TestIPVS(t *testing.T) {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		t.Skip("this kernel has no IPVS")
	}
	if program() == "" {
		t.Skip("there is no real kube-proxy (KUBE_PROXY)")
	}
	w := newTestEnv(t, apiserver.Start(t))
	m := mode{"iptables-legacy", "ipvs", "xtables-legacy-multi"}
	w.loadForeignRules(m)
	before := w.dump() + w.ipvsState()
	w.kubeProxy(m).stop()
	w.lab.NodeA.MustRun("ipvsadm", "-A", "-t", "192.168.0.2:81", "-s", "rr") // added now, because kube-proxy would have removed it

	report := w.cleanUpKubeProxy()
	t.Log(report)
	w.lab.NodeA.MustRun("ipvsadm", "-D", "-t", "192.168.0.2:81") // fails if the cleanup removed it
	if diff := cmp.Diff(before, w.dump()+w.ipvsState()); diff != "" {
		t.Errorf("state differs from that before kube-proxy (-before, +after):\n%s", diff)
	}
	for _, want := range []string{"removed ipvs: ", "removed iptables-legacy: ", "left ipvs: 1 virtual server not known as kube-proxy's: tcp 192.168.0.2:81"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if again := w.cleanUpKubeProxy(); again != "" {
		t.Errorf("a second cleanup reports:\n%s", again)
	}
}

// cleanUpKubeProxy removes only the state of kube-proxy: a kernel with IPVS may lack features
// that Sluice's planes need.
func (w *testEnv) cleanUpKubeProxy() string {
	w.Helper()
	account, err := takeover.Cleanup(w.Context(), takeover.Options{NetNS: w.lab.NodeA.NetNSFD()})
	w.must(err)
	return strings.Join(account.Lines(), "\n")
}

// ipvsState lists IPVS, ipsets, and kube-proxy's interface.
func (w *testEnv) ipvsState() string {
	w.Helper()
	return "== ipvs\n" + w.lab.NodeA.MustRun("ipvsadm", "-S", "-n") + w.lab.NodeA.MustRun("ipset", "list", "-n") +
		w.lab.NodeA.MustRun("sh", "-c", "ip -o addr show kube-ipvs0 2>/dev/null || true")
}
