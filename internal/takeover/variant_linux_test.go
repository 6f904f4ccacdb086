package takeover

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/testing/iptablestest"
)

// What Sluice made in its mode iptables goes while a kube-proxy runs, as far as that kube-proxy cannot be using it.
func TestCleanupRemovesChainsThatARunningKubeProxyCannotUse(t *testing.T) {
	const ownChain = "KUBE-MARK-MASQ-NOT-POD"
	nat := func(services ...iptables.RuleOutline) *node {
		return &node{tables: afterNFTables().tables, chains: iptablestest.NewKernel(iptables.Outline{
			TableID: iptables.TableID{Variant: iptables.NFT, Family: iptables.IPv4, Name: "nat"},
			Chains: []iptables.ChainOutline{
				{Name: "KUBE-SERVICES", Rules: services},
				{Name: "KUBE-MARK-MASQ"},
				{Name: ownChain, Rules: []iptables.RuleOutline{{Target: "KUBE-MARK-MASQ", Jump: true}}},
			},
		})}
	}
	leading := iptables.RuleOutline{Target: ownChain, Jump: true}
	for _, c := range []struct {
		name string
		node *node
		mode string
		want string
	}{
		{"mode nftables", nat(leading), "nftables", "removed iptables-nft: 3 chains in iptables-nft nat\n"},
		{"mode iptables", nat(), "iptables", "removed iptables-nft: 1 chain in iptables-nft nat\n"},
		{
			"Sluice's rules lead there yet", nat(leading), "iptables",
			"left chains to which rules lead that kube-proxy has not replaced yet\n",
		},
	} {
		m := &machine{pids: []int{812}, answers: speaking(c.mode)}
		a, err := cleanup(t.Context(), c.node.rules(), m.detector(), Options{})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		compare(t, c.name, c.want+"kube-proxy (pid 812, /usr/local/bin/kube-proxy) in mode "+c.mode+
			" runs (it listens on port 10256): left the rules that it may use; to remove them stop it first, "+
			"or add --ignore-kube-proxy", strings.Join(a.Lines(), "\n"))
		if len(c.node.tables) != len(afterNFTables().tables) {
			t.Errorf("%s: tables left: %v", c.name, c.node.tables)
		}
	}
}

// If Sluice uses one variant, the rules in the other are still leftovers, in all counts and messages.
func TestRulesInTheOtherVariantAreRemoved(t *testing.T) {
	both := func() *node {
		all, err := afterIPTables(iptables.Legacy).chains.Outlines(t.Context(), iptables.AllRules)
		if err != nil {
			t.Fatal(err)
		}
		own, err := afterIPTables(iptables.NFT).chains.Outlines(t.Context(), iptables.AllRules)
		if err != nil {
			t.Fatal(err)
		}
		return &node{chains: iptablestest.NewKernel(append(all, own...)...)}
	}
	untouched := afterIPTables(iptables.NFT).chains.String()
	n := both()
	r := n.rules()
	r.ours = []Mechanism{IPTablesNFT}
	compare(t, "done", "unchain\nremoved iptables-legacy: 3 chains and 1 rule in iptables-legacy nat\n", takeAll(t, n, r))
	if !strings.Contains(n.chains.String(), untouched) {
		t.Errorf("ours were changed:\n%s\nwant\n%s", n.chains, untouched)
	}
	if found, err := r.find(t.Context()); err != nil || len(found.entries()) > 0 {
		t.Errorf("then there is left %v, %v", found.entries(), err)
	}
	n = both()
	r = n.rules()
	r.ours = []Mechanism{IPTablesNFT}
	a, err := cleanup(t.Context(), r, silent(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "cleanup", "removed iptables-legacy: 3 chains and 1 rule in iptables-legacy nat",
		strings.Join(a.Lines(), "; "))
}

// Search finds everything that a take-over would remove, and removes nothing.
func TestSearch(t *testing.T) {
	node := afterIPTables(iptables.Legacy)
	node.tables = afterNFTables().tables
	m := &machine{pids: []int{812}, answers: speaking("iptables")}
	r := node.rules()
	found, err := search(t.Context(), r, m.detector())
	if err != nil || found.KubeProxy == nil || found.KubeProxy.PID != 812 || found.Same || len(found.Rules) != 2 {
		t.Fatalf("found %+v, %v", found, err)
	}
	legacy, tables := found.Rules[0], found.Rules[1]
	if legacy.Mechanism != IPTablesLegacy || tables.Mechanism != NFTables {
		t.Errorf("rules %+v", found.Rules)
	}
	if len(node.done) != 0 {
		t.Errorf("it did %q", node.done)
	}
	r.ours = []Mechanism{IPTablesLegacy, IPTablesNFT}
	if found, err = search(t.Context(), r, m.detector()); err != nil || !found.Same || len(found.Rules) != 1 {
		t.Errorf("with the same chains: %+v, %v", found, err)
	}
}

// An external IP may be an address of the node, which is not on the interface. NodePorts always are.
func TestSetsTellWhichVirtualServersAtAddressesOfTheNodeAreRemoved(t *testing.T) {
	external, ports := afterIPVS(), afterIPVS()
	external.frontends = []ipset.Member{{Addr: netip.MustParseAddr("192.0.2.7"), Protocol: 6, Port: 80}}
	ports.nodePorts = []uint16{80, 30080}
	for _, n := range []*node{external, ports} {
		takeAll(t, n, n.rules())
		compare(t, "virtual servers left", "tcp 198.51.100.1:80 mark 7", join(n.order))
	}
}
