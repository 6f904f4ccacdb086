//go:build linux

package takeover

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/apiserver"
)

// testOtherMechanisms takes over from a kube-proxy that uses another kernel mechanism than Sluice.
func testOtherMechanisms(t *testing.T, c *apiserver.Cluster) {
	for _, pair := range [][2]string{
		{"nftables", "iptables-nft"}, {"iptables-legacy", "iptables-nft"}, {"iptables-nft", "iptables-legacy"},
	} {
		t.Run(pair[0]+" to "+pair[1], func(t *testing.T) {
			testOtherMechanism(newTestEnv(t, c), modeByName(pair[0]), modeByName(pair[1]))
		})
	}
}

func modeByName(name string) mode {
	all := modes()
	return all[slices.IndexFunc(all, func(m mode) bool { return m.name == name })]
}

// testSwitchModes restarts Sluice in another mode, and back in the first.
func testSwitchModes(w *testEnv, m mode) {
	w.loadForeignRules(m)
	before := w.dump()
	p, _ := w.startIptables(m)
	w.waitReachable()
	traffic := w.startTraffic()
	chains := w.chains(m.name)
	p.Stop()

	p = w.startSluice("--proxy-mode=nftables")
	w.waitForLog(p, `msg="Removed leftovers of kube-proxy or of another mode" mechanism=`+m.name)
	w.checkRestored(before)
	p.Stop()

	p, _ = w.startIptables(m)
	w.waitForLog(p, `msg="Removed leftovers of Sluice in another mode" mode=nftables`)
	// The guard of loopback addresses belongs to both modes.
	tables := w.lab.NodeA.MustRun("nft", "list", "tables")
	if strings.Contains(strings.ReplaceAll(tables, "sluice-localnet", ""), "sluice") {
		w.Errorf("tables of mode nftables remain:\n%s", tables)
	}
	w.waitExact(m.name)
	w.checkChains(m.name, chains)
	w.endTraffic(traffic)
}

// testOtherMechanism verifies that kube-proxy's rules are removed once Sluice's chains exist.
// Sluice uses the variant for which kubelet has created a hint.
func testOtherMechanism(w *testEnv, theirs, ours mode) {
	_, err := w.lab.NodeA.Run("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n", ours.name+"-restore", "--noflush")
	w.must(err)
	w.kubeProxy(theirs).stop()
	traffic := w.startTraffic()
	p, _ := w.startIptables(ours)
	w.waitRemoved(p, theirs)
	if theirs.iptables != "" {
		w.checkNoChains(theirs.name)
	}
	if tables := w.lab.NodeA.MustRun("nft", "list", "tables"); strings.Contains(tables, "kube-proxy") {
		w.Errorf("tables of kube-proxy remain:\n%s", tables)
	}
	w.waitExact(ours.name)
	w.endTraffic(traffic)
}
