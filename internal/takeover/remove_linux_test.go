package takeover

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/testing/iptablestest"
)

func addrs(text ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range text {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func tcp(text string) ipvs.Server {
	at := netip.MustParseAddrPort(text)
	return ipvs.Server{Addr: at.Addr(), Port: at.Port(), Protocol: unix.IPPROTO_TCP}
}

// afterNFTables has the leftovers of its nftables mode.
func afterNFTables() *node {
	return &node{tables: []nft.Outline{
		{Table: nft.Table{Family: nft.IP4, Name: "kube-proxy"}, Chains: make([]nft.ChainOutline, 20)},
		{Table: nft.Table{Family: nft.IP6, Name: "kube-proxy"}, Chains: make([]nft.ChainOutline, 1)},
		{Table: nft.Table{Family: nft.IP4, Name: "others"}, Chains: make([]nft.ChainOutline, 3)},
	}}
}

// afterIPTables has the leftovers of its iptables mode, in one variant.
func afterIPTables(v iptables.Variant) *node {
	return &node{chains: iptablestest.NewKernel(
		iptables.Outline{
			TableID: iptables.TableID{Variant: v, Family: iptables.IPv4, Name: "nat"},
			Chains: []iptables.ChainOutline{
				{Name: "PREROUTING", Builtin: true, Rules: []iptables.RuleOutline{
					{Target: "MINE", Jump: true}, {Target: "KUBE-SERVICES", Jump: true},
				}},
				{Name: "KUBE-SERVICES", Rules: []iptables.RuleOutline{{Target: "KUBE-SVC-NPX46M4PTMTKRN6Y", Jump: true}}},
				{Name: "KUBE-SVC-NPX46M4PTMTKRN6Y"},
				{Name: "KUBE-PROXY-CANARY"},
				{Name: "MINE", Rules: []iptables.RuleOutline{{Target: "ACCEPT"}}},
			},
		},
	)}
}

// afterIPVS has the leftovers of its ipvs mode, beside virtual servers of others.
func afterIPVS() *node {
	n := afterIPTables(iptables.NFT)
	n.vips = addrs("10.96.0.1", "10.96.0.10")
	n.others = addrs("127.0.0.1", "192.0.2.7")
	n.nodePorts = []uint16{30080}
	n.sets = []string{"KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", "KUBE-CLUSTER-IP", "KUBE-SRC-OTHERS", "mine"}
	n.order = []ipvs.Server{
		tcp("10.96.0.1:443"), tcp("10.96.0.10:53"), // Services
		tcp("192.0.2.7:30080"), tcp("192.0.2.7:80"), // a node port, and somebody else's
		tcp("198.51.100.1:80"), {Addr: netip.IPv4Unspecified(), Mark: 7},
	}
	n.servers = map[ipvs.Server]int{}
	for _, s := range n.order {
		n.servers[s] = 0
	}
	return n
}

// takeAll finds and removes, and returns the operations and the account.
func takeAll(t *testing.T, n *node, r *rules) string {
	t.Helper()
	found, err := r.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return removeAll(t, n, r, found)
}

func removeAll(t *testing.T, n *node, r *rules, found findings) string {
	t.Helper()
	n.done = nil
	a, err := r.remove(t.Context(), found)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(append(n.done, a.Lines()...), "\n") + "\n"
}

func compare(t *testing.T, what, want, got string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestTablesOfNFTablesModeAreClosedBeforeTheyAreDeleted(t *testing.T) {
	n := afterNFTables()
	compare(t, "done", `close ip kube-proxy
close ip6 kube-proxy
pause
delete ip kube-proxy
delete ip6 kube-proxy
removed nftables: table ip kube-proxy with 20 chains, table ip6 kube-proxy with 1 chain
`, takeAll(t, n, n.rules()))
	compare(t, "again", "\n", takeAll(t, n, n.rules()))
	if len(n.tables) != 1 || n.tables[0].Name != "others" {
		t.Errorf("tables left: %v", n.tables)
	}
}

func TestIPTablesModeIsRemovedInEitherVariant(t *testing.T) {
	for _, v := range []iptables.Variant{iptables.Legacy, iptables.NFT} {
		n := afterIPTables(v)
		compare(t, "done", fmt.Sprintf(`unchain
removed iptables-%s: 3 chains and 1 rule in iptables-%[1]s nat
`, v), takeAll(t, n, n.rules()))
		compare(t, "again", "\n", takeAll(t, n, n.rules()))
		compare(t, "rules left", fmt.Sprintf(`# iptables-%s nat
:PREROUTING
:MINE
-A PREROUTING -j MINE
-A MINE -j ACCEPT
`, v), n.chains.String())
	}
}

func TestARuleOfAnotherProgramThatJumpsToKubeProxysChainsIsRemoved(t *testing.T) {
	n := afterIPTables(iptables.NFT)
	n.chains = iptablestest.NewKernel(iptables.Outline{
		TableID: iptables.TableID{Variant: iptables.NFT, Family: iptables.IPv6, Name: "nat"},
		Chains: []iptables.ChainOutline{
			{Name: "KUBE-SERVICES"},
			{Name: "MINE", Rules: []iptables.RuleOutline{{Target: "KUBE-SERVICES", Jump: true}, {Target: "ACCEPT"}}},
		},
	})
	compare(t, "done", `unchain
removed iptables-nft: 1 chain and 1 rule in ip6tables-nft nat
`, takeAll(t, n, n.rules()))
}

func TestIPVSModeIsRemovedWithoutVirtualServersOfOtherPrograms(t *testing.T) {
	n := afterIPVS()
	compare(t, "done", `stop tcp 10.96.0.1:443
stop tcp 10.96.0.10:53
stop tcp 192.0.2.7:30080
prefer 192.0.2.7 192.0.2.7
unaddress kube-ipvs0 10.96.0.1 10.96.0.10
unlink kube-ipvs0
unchain
destroy KUBE-6-NODE-PORT-LOCAL-SCTP-HAS
destroy KUBE-CLUSTER-IP
removed iptables-nft: 3 chains and 1 rule in iptables-nft nat
removed ipvs: 3 virtual servers, interface kube-ipvs0 with 2 addresses, 2 ipsets
left 3 virtual servers not known as kube-proxy's
`, takeAll(t, n, n.rules()))
	compare(t, "again", "\n", takeAll(t, n, n.rules()))
}

// While it is not known which virtual servers are kube-proxy's, the interface that identifies them stays, and
// everything that their connections need. Everything else is removed.
func TestNoVirtualServerIsRemovedWhileItsOwnerIsUnknown(t *testing.T) {
	n := afterIPVS()
	n.tables = afterNFTables().tables
	whole := join(n.order)
	play(t, n, func(s *stage) {
		busy := errors.New("the kernel is busy")
		s.controller.platform.rules.servers = serversFake{&node{broken: map[string]error{"read": busy}}}
		close(s.ready)
		state := s.after(0)
		if !errors.Is(state.Err, busy) || len(n.vips) != 2 || join(n.order) != whole || len(n.tables) != 1 {
			t.Errorf("left %v, %v, tables %v, %+v", n.order, n.vips, n.tables, state)
		}
		compare(t, "done", "close ip kube-proxy, close ip6 kube-proxy, pause, delete ip kube-proxy, delete ip6 kube-proxy",
			strings.Join(s.done, ", "))
		s.controller.platform.rules.servers = serversFake{n}
		state = s.after(time.Hour)
		if state.Err != nil || n.vips != nil || join(n.order) != "tcp 192.0.2.7:80 tcp 198.51.100.1:80 mark 7" {
			t.Errorf("later left %v, %v, %+v", n.order, n.vips, state)
		}
	})
}

func TestWithoutKubeProxysInterfaceNoVirtualServerIsRemoved(t *testing.T) {
	n := afterIPVS()
	n.vips, n.chains, n.sets = nil, nil, nil
	compare(t, "done", "\n", takeAll(t, n, n.rules()))
}

func TestConnectionsThroughIPVSEndBeforeTheirVirtualServerGoes(t *testing.T) {
	n := afterIPVS()
	n.servers[tcp("10.96.0.1:443")] = 3
	compare(t, "with connections", `stop tcp 10.96.0.10:53
stop tcp 192.0.2.7:30080
prefer 192.0.2.7 192.0.2.7
unaddress kube-ipvs0 10.96.0.10
removed ipvs: 2 virtual servers
left 1 virtual server, as long as connections go through
left interface kube-ipvs0 and kube-proxy's rules in iptables, until then
left 3 virtual servers not known as kube-proxy's
`, takeAll(t, n, n.rules()))

	n.servers[tcp("10.96.0.1:443")] = 0
	compare(t, "when they have ended", `stop tcp 10.96.0.1:443
prefer 192.0.2.7 192.0.2.7
unaddress kube-ipvs0 10.96.0.1
unlink kube-ipvs0
unchain
destroy KUBE-6-NODE-PORT-LOCAL-SCTP-HAS
destroy KUBE-CLUSTER-IP
removed iptables-nft: 3 chains and 1 rule in iptables-nft nat
removed ipvs: 1 virtual server, interface kube-ipvs0 with 1 address, 2 ipsets
left 3 virtual servers not known as kube-proxy's
`, takeAll(t, n, n.rules()))
}

// Connections through a virtual server for a mark of Sluice's mode ipvs are to addresses that a set has with the mark.
func TestAddressesStayWhileAVirtualServerForAMarkHasConnections(t *testing.T) {
	n := afterIPVS()
	n.vips = addrs("10.96.0.1", "10.96.0.2", "10.96.0.3")
	n.marks = map[netip.Addr]uint32{n.vips[0]: ipvs.OwnMark | 6, n.vips[2]: ipvs.OwnMark | 5}
	mark := ipvs.Server{Addr: netip.IPv4Unspecified(), Mark: ipvs.OwnMark | 5}
	n.order = []ipvs.Server{tcp("10.96.0.1:443"), mark}
	n.servers = map[ipvs.Server]int{mark: 2}
	compare(t, "with connections", `stop tcp 10.96.0.1:443
prefer 192.0.2.7 192.0.2.7
unaddress kube-ipvs0 10.96.0.1 10.96.0.2
removed ipvs: 1 virtual server
left 1 virtual server, as long as connections go through
left interface kube-ipvs0 and kube-proxy's rules in iptables, until then
`, takeAll(t, n, n.rules()))
}

// Rules for new connections only, which Sluice's mode ipvs has in table mangle, go at once.
func TestRulesForNewConnectionsDoNotWait(t *testing.T) {
	n := afterIPVS()
	n.servers[tcp("10.96.0.1:443")] = 3
	nat, err := n.chains.Outlines(t.Context(), iptables.AllRules)
	if err != nil {
		t.Fatal(err)
	}
	n.chains = iptablestest.NewKernel(append(nat, iptables.Outline{
		TableID: iptables.TableID{Variant: iptables.NFT, Family: iptables.IPv4, Name: "mangle"},
		Chains: []iptables.ChainOutline{
			{Name: "PREROUTING", Builtin: true, Rules: []iptables.RuleOutline{{Target: "KUBE-IPVS-SHORT-CUT", Jump: true}}},
			{Name: "KUBE-IPVS-SHORT-CUT"},
		},
	})...)
	compare(t, "with connections", `stop tcp 10.96.0.10:53
stop tcp 192.0.2.7:30080
prefer 192.0.2.7 192.0.2.7
unaddress kube-ipvs0 10.96.0.10
unchain
removed iptables-nft: 1 chain and 1 rule in iptables-nft mangle
removed ipvs: 2 virtual servers
left 1 virtual server, as long as connections go through
left interface kube-ipvs0 and kube-proxy's rules in iptables, until then
left 3 virtual servers not known as kube-proxy's
`, takeAll(t, n, n.rules()))
}

func TestAnAddressStaysWhileLocalConnectionsUseIt(t *testing.T) {
	n := afterIPVS()
	n.sockets = map[netip.Addr]int{n.vips[0]: 2, n.others[1]: 5}
	compare(t, "with connections", `stop tcp 10.96.0.1:443
stop tcp 10.96.0.10:53
stop tcp 192.0.2.7:30080
prefer 192.0.2.7 192.0.2.7
unaddress kube-ipvs0 10.96.0.10
removed ipvs: 3 virtual servers
left 1 address of kube-ipvs0, as long as programs of this node have connections from there
left interface kube-ipvs0 and kube-proxy's rules in iptables, until then
left 3 virtual servers not known as kube-proxy's
`, takeAll(t, n, n.rules()))
	n.sockets = nil
	takeAll(t, n, n.rules())
	if n.vips != nil || len(n.sets) != 2 {
		t.Errorf("left: addresses %v, sets %v", n.vips, n.sets)
	}
}

func TestCleanupDoesNotWaitForAKubeProxy(t *testing.T) {
	n := afterIPVS()
	n.servers[tcp("10.96.0.1:443")] = 3
	n.sockets = map[netip.Addr]int{n.vips[0]: 2}
	r := n.rules()
	a, err := cleanup(t.Context(), r, silent(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "account", `removed iptables-nft: 3 chains and 1 rule in iptables-nft nat; `+
		`removed ipvs: 3 virtual servers, interface kube-ipvs0 with 2 addresses, 2 ipsets; `+
		`left 3 virtual servers not known as kube-proxy's`,
		strings.Join(a.Lines(), "; "))
}

// What a kube-proxy that runs has in the kernel is no leftover.
func TestCleanupKeepsTheRulesOfARunningKubeProxy(t *testing.T) {
	n := afterIPVS()
	a, err := cleanup(t.Context(), n.rules(), (&machine{pids: []int{812}}).detector(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Removed) > 0 || a.KubeProxy == nil || a.KubeProxy.PID != 812 || len(n.done) > 0 {
		t.Errorf("account %q, want all left to it", a)
	}
}

func TestAFailureInOneMechanismDoesNotAffectTheOthers(t *testing.T) {
	refused := errors.New("refused")
	for _, c := range []struct{ verb, want string }{
		{"close", "removed iptables-nft, ipvs"},
		{"delete", "removed iptables-nft, ipvs"},
		{"stop", "removed nftables, iptables-nft, ipvs"}, // the ipsets
		{"prefer", "removed nftables, iptables-nft, ipvs"},
		{"unlink", "removed nftables, iptables-nft, ipvs"},
		{"unchain", "removed nftables, ipvs"},
		{"destroy", "removed nftables, iptables-nft, ipvs"},
	} {
		n := afterIPVS()
		n.tables = afterNFTables().tables
		n.broken = map[string]error{c.verb: refused}
		r := n.rules()
		found, err := r.find(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a, err := r.remove(t.Context(), found)
		if !errors.Is(err, refused) {
			t.Errorf("%s: the error is %v", c.verb, err)
		}
		var removed []string
		for _, e := range a.Removed {
			removed = append(removed, string(e.Mechanism))
		}
		compare(t, c.verb, c.want, "removed "+strings.Join(removed, ", "))

		n.broken = nil // later it works
		takeAll(t, n, r)
		if found, err = r.find(t.Context()); err != nil || len(found.entries()) > 0 {
			t.Errorf("%s: tried again, there is left %v, %v", c.verb, found.entries(), err)
		}
	}
}

func TestAnUnreadableMechanismDoesNotHideTheOthers(t *testing.T) {
	n := afterIPVS()
	n.tables = afterNFTables().tables
	r := n.rules()
	r.servers = serversFake{&node{broken: map[string]error{"read": errors.New("cut off")}}}
	found, err := r.find(t.Context())
	if err == nil || err.Error() != "cut off" {
		t.Errorf("the error is %v", err)
	}
	var seen []string
	for _, e := range found.entries() {
		seen = append(seen, e.String())
	}
	compare(t, "found", `iptables-nft: 3 chains and 1 rule in iptables-nft nat
ipvs: interface kube-ipvs0 with 2 addresses, 2 ipsets
nftables: table ip kube-proxy with 20 chains, table ip6 kube-proxy with 1 chain`, strings.Join(seen, "\n"))
}

func TestMechanismsOfThisPlaneAreNotRemoved(t *testing.T) {
	n := afterIPVS()
	n.tables = afterNFTables().tables
	r := n.rules()
	r.ours = []Mechanism{IPVS, IPTablesNFT}
	found, err := r.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[Mechanism]int{NFTables: 23}, counts(found.entries())); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	r.ours = Mechanisms()
	if found, err := r.find(t.Context()); err != nil || len(found.entries()) > 0 {
		t.Errorf("with all ours: %v, %v", found.entries(), err)
	}
}
