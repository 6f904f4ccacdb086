//go:build linux

package takeover

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/test/apiserver"
)

// testOthers: kube-proxy has its rules where Sluice has none.
func testOthers(t *testing.T, c *apiserver.Cluster) {
	for _, pair := range [][2]string{
		{"nftables", "iptables-nft"}, {"iptables-legacy", "iptables-nft"}, {"iptables-nft", "iptables-legacy"},
	} {
		t.Run(pair[0]+" to "+pair[1], func(t *testing.T) { testOther(newWorld(t, c), named(pair[0]), named(pair[1])) })
	}
}

func named(name string) mode {
	all := modes()
	return all[slices.IndexFunc(all, func(m mode) bool { return m.name == name })]
}

// testModes: Sluice is started again in another mode, there and back.
func testModes(w *world, m mode) {
	w.others(m)
	before := w.dump()
	p, _ := w.inPlace(m)
	w.served()
	traffic := w.start()
	chains := w.chains(m.name)
	p.Stop()

	p = w.takeOver("--proxy-mode=nftables")
	w.says(p, `msg="Removed what kube-proxy, or Sluice in mode iptables, left" mechanism=`+m.name)
	w.same(before)
	p.Stop()

	p, _ = w.inPlace(m)
	w.says(p, `msg="Removed what Sluice left in another mode" mode=nftables`)
	// The guard of loopback addresses belongs to both modes.
	if tables := w.lab.NodeA.MustRun("nft", "list", "tables"); strings.Contains(strings.ReplaceAll(tables, "sluice-localnet", ""), "sluice") {
		w.Errorf("tables of the mode nftables are left:\n%s", tables)
	}
	w.exact(m.name)
	w.equal(m.name, chains)
	w.settled(traffic)
}

// testOther: what kube-proxy has elsewhere goes when Sluice's chains are there.
// The variant is that of which kubelet has put a hint.
func testOther(w *world, theirs, ours mode) {
	_, err := w.lab.NodeA.Run("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n", ours.name+"-restore", "--noflush")
	w.must(err)
	load := w.leave
	if program() != "" {
		load = func(m mode) { w.kubeProxy(m).end() }
	}
	load(theirs)
	traffic := w.start()
	p, _ := w.inPlace(ours)
	w.taken(p, theirs)
	if theirs.iptables != "" {
		w.chainless(theirs.name)
	}
	if tables := w.lab.NodeA.MustRun("nft", "list", "tables"); strings.Contains(tables, "kube-proxy") {
		w.Errorf("tables of kube-proxy are left:\n%s", tables)
	}
	w.exact(ours.name)
	w.settled(traffic)
}
