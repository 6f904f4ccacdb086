package takeover

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/testing/iptablestest"
)

// parseSaved parses the output of iptables-save.
func parseSaved(saved string) []iptables.Outline {
	line := regexp.MustCompile(`(?m)^(?:\*(\S+)|:(\S+) (\S+) .*|(?:\[\S+\] )?-A (\S+)(?:.*? -[jg] (\S+))?.*)$`)
	var all []iptables.Outline
	for _, m := range line.FindAllStringSubmatch(saved, -1) {
		if m[1] != "" {
			id := iptables.TableID{Variant: iptables.Legacy, Family: iptables.IPv4, Name: m[1]}
			all = append(all, iptables.Outline{TableID: id})
			continue
		}
		t := &all[len(all)-1]
		if m[2] != "" {
			t.Chains = append(t.Chains, iptables.ChainOutline{Name: m[2], Builtin: m[3] != "-"})
			continue
		}
		find := func(name string) int {
			return slices.IndexFunc(t.Chains, func(c iptables.ChainOutline) bool { return c.Name == name })
		}
		chain := &t.Chains[find(m[4])]
		chain.Rules = append(chain.Rules, iptables.RuleOutline{Target: m[5], Jump: find(m[5]) >= 0})
	}
	return all
}

// A node has docker, flannel, kubelet and rules of its operator besides kube-proxy's.
func TestLeftoversOfTheIptablesMode(t *testing.T) {
	saved, err := os.ReadFile("../linux/iptables/testdata/iptables.save")
	if err != nil {
		t.Fatal(err)
	}
	kernel := iptablestest.NewKernel(parseSaved(string(saved))...)
	all, err := kernel.Outlines(t.Context(), iptables.AllRules)
	if err != nil {
		t.Fatal(err)
	}
	found := leftovers(all, kubechain.Proxy)
	var lines []string
	for _, r := range found {
		for _, rule := range r.Rules {
			lines = append(lines, fmt.Sprintf("%s: %s to %s", r.Table.Name, rule.Chain, rule.Target))
		}
		lines = append(lines, r.Table.Name+": "+strings.Join(r.Chains, " "))
	}
	const want = `mangle: KUBE-PROXY-CANARY
nat: PREROUTING to KUBE-SERVICES
nat: OUTPUT to KUBE-SERVICES
nat: POSTROUTING to KUBE-POSTROUTING
nat: ADMIN to KUBE-SVC-67RL4FN6JRUPOJYM
nat: KUBE-EXT-67RL4FN6JRUPOJYM KUBE-FW-67RL4FN6JRUPOJYM KUBE-MARK-MASQ KUBE-NODEPORTS ` +
		`KUBE-POSTROUTING KUBE-PROXY-CANARY KUBE-SEP-ID6YWIT3F6WNZ47P KUBE-SEP-IN2YML2VIFH5RO2T KUBE-SERVICES ` +
		`KUBE-SVC-67RL4FN6JRUPOJYM KUBE-SVC-NPX46M4PTMTKRN6Y KUBE-SVL-67RL4FN6JRUPOJYM
filter: INPUT to KUBE-PROXY-FIREWALL
filter: INPUT to KUBE-NODEPORTS
filter: INPUT to KUBE-EXTERNAL-SERVICES
filter: FORWARD to KUBE-PROXY-FIREWALL
filter: FORWARD to KUBE-FORWARD
filter: FORWARD to KUBE-SERVICES
filter: FORWARD to KUBE-EXTERNAL-SERVICES
filter: OUTPUT to KUBE-PROXY-FIREWALL
filter: OUTPUT to KUBE-SERVICES
filter: KUBE-EXTERNAL-SERVICES KUBE-FORWARD KUBE-NODEPORTS KUBE-PROXY-CANARY KUBE-PROXY-FIREWALL KUBE-SERVICES`
	if diff := cmp.Diff(want, strings.Join(lines, "\n")); diff != "" {
		t.Errorf("leftovers (-want +got):\n%s", diff)
	}

	if err := kernel.Remove(t.Context(), found...); err != nil {
		t.Fatal(err)
	}
	const stays = `# iptables-legacy mangle
:PREROUTING
:INPUT
:FORWARD
:OUTPUT
:POSTROUTING
:KUBE-IPTABLES-HINT
:KUBE-KUBELET-CANARY
-A FORWARD -j TCPMSS
# iptables-legacy nat
:PREROUTING
:INPUT
:OUTPUT
:POSTROUTING
:ADMIN
:CNI-HOSTPORT-DNAT
:DOCKER
:KUBE-KUBELET-CANARY
:KUBE-MARK-DROP
-A PREROUTING -j RETURN
-A PREROUTING -j DOCKER
-A PREROUTING -j CNI-HOSTPORT-DNAT
-A OUTPUT -j DOCKER
-A OUTPUT -j ADMIN
-A POSTROUTING -j MASQUERADE
-A POSTROUTING -j MASQUERADE
-A ADMIN
-A ADMIN -j DOCKER
-A CNI-HOSTPORT-DNAT -j DNAT
-A DOCKER -j RETURN
-A DOCKER -j DNAT
-A KUBE-MARK-DROP -j MARK
# iptables-legacy filter
:INPUT
:FORWARD
:OUTPUT
:DOCKER-USER
:KUBE-FIREWALL
:KUBE-KUBELET-CANARY
:KUBE-ROUTER-INPUT
-A INPUT -j KUBE-FIREWALL
-A INPUT -j KUBE-ROUTER-INPUT
-A INPUT -j LOG
-A FORWARD -j DOCKER-USER
-A FORWARD -j ACCEPT
-A FORWARD -j ACCEPT
-A OUTPUT -j KUBE-FIREWALL
-A DOCKER-USER -j RETURN
-A KUBE-FIREWALL -j DROP
-A KUBE-ROUTER-INPUT -j RETURN
`
	if diff := cmp.Diff(stays, kernel.String()); diff != "" {
		t.Errorf("what stays (-want +got):\n%s", diff)
	}
	if all, err = kernel.Outlines(t.Context(), iptables.AllRules); err != nil || leftovers(all, kubechain.Proxy) != nil {
		t.Errorf("a second look finds %v, %v, want nothing", leftovers(all, kubechain.Proxy), err)
	}
}

// The names of all modes and versions, and names that only look like them.
func TestOwnerOfAChain(t *testing.T) {
	theirs := `KUBE-SERVICES KUBE-EXTERNAL-SERVICES KUBE-NODEPORTS KUBE-POSTROUTING KUBE-MARK-MASQ KUBE-FORWARD
		KUBE-PROXY-FIREWALL KUBE-PROXY-CANARY KUBE-SVC-NPX46M4PTMTKRN6Y KUBE-SVL-NPX46M4PTMTKRN6Y
		KUBE-EXT-NPX46M4PTMTKRN6Y KUBE-FW-NPX46M4PTMTKRN6Y KUBE-SEP-ID6YWIT3F6WNZ47P KUBE-XLB-NPX46M4PTMTKRN6Y
		KUBE-NODE-PORT KUBE-LOAD-BALANCER KUBE-SOURCE-RANGES-FIREWALL KUBE-IPVS-FILTER KUBE-IPVS-OUT-FILTER
		KUBE-FIRE-WALL KUBE-PORTALS-CONTAINER KUBE-PORTALS-HOST KUBE-NODEPORT-CONTAINER KUBE-NODEPORT-HOST
		KUBE-NODEPORT-NON-LOCAL`
	others := `KUBE-FIREWALL KUBE-MARK-DROP KUBE-KUBELET-CANARY KUBE-IPTABLES-HINT KUBE-HOSTPORTS KUBE-HP-NPX46M4PTMTKRN6Y
		KUBE-ROUTER-SERVICES KUBE-POD-FW-NPX46M4PTMTKRN6Y KUBE-NWPLCY-NPX46M4PTMTKRN6Y KUBE-SERVICES-OLD MY-KUBE-SERVICES
		SERVICES SVC-NPX46M4PTMTKRN6Y KUBE- kube-services DOCKER INPUT CNI-HOSTPORT-DNAT cali-PREROUTING CILIUM_PRE_nat`
	for name := range strings.FieldsSeq(theirs) {
		if !kubechain.Proxy(name) {
			t.Errorf("%s is not taken for kube-proxy's", name)
		}
	}
	for name := range strings.FieldsSeq(others) {
		if kubechain.Proxy(name) {
			t.Errorf("%s is taken for kube-proxy's", name)
		}
	}
}

// A rule can do what a chain of that name would: a target is no chain, and a built-in chain is not removed, no matter
// its name.
func TestLeftoversAreChains(t *testing.T) {
	id := iptables.TableID{Variant: iptables.NFT, Family: iptables.IPv6, Name: "nat"}
	all := []iptables.Outline{{TableID: id, Chains: []iptables.ChainOutline{
		{Name: "KUBE-SERVICES", Builtin: true, Rules: []iptables.RuleOutline{{Target: "KUBE-MARK-MASQ"}}},
	}}}
	if found := leftovers(all, kubechain.Proxy); found != nil {
		t.Errorf("found %v, want nothing", found)
	}
}

// A network plugin that has packets masqueraded by kube-proxy's chains keeps them.
func TestTheMasqueradeChainsOfANetworkPluginStay(t *testing.T) {
	id := iptables.TableID{Variant: iptables.NFT, Family: iptables.IPv4, Name: "nat"}
	jump := func(to string) iptables.RuleOutline { return iptables.RuleOutline{Target: to, Jump: true} }
	all := []iptables.Outline{{TableID: id, Chains: []iptables.ChainOutline{
		{Name: "PREROUTING", Builtin: true, Rules: []iptables.RuleOutline{jump("KUBE-SERVICES")}},
		{Name: "POSTROUTING", Builtin: true, Rules: []iptables.RuleOutline{jump("KUBE-POSTROUTING")}},
		{Name: "KUBE-SERVICES", Rules: []iptables.RuleOutline{jump("KUBE-MARK-MASQ")}},
		{Name: "KUBE-MARK-MASQ"},
		{Name: "KUBE-POSTROUTING"},
		{Name: "CNI-HOSTPORT-SETMARK", Rules: []iptables.RuleOutline{jump("KUBE-MARK-MASQ")}},
	}}}
	want := []iptables.Removal{{
		Table: id, Chains: []string{"KUBE-SERVICES"},
		Rules: []iptables.ChainRule{{Chain: "PREROUTING", RuleOutline: jump("KUBE-SERVICES")}},
	}}
	if found := leftovers(all, kubechain.Proxy); !reflect.DeepEqual(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}

// The chains of mode userspace, with the rules that jump there, go although a kube-proxy runs in
// another mode: it does not know them, and they lead to ports that nobody serves.
func TestARunningKubeProxyKeepsTheChainsThatItUses(t *testing.T) {
	jump := func(to string) iptables.RuleOutline { return iptables.RuleOutline{Target: to, Jump: true} }
	kernel := iptablestest.NewKernel(iptables.Outline{
		TableID: iptables.TableID{Variant: iptables.NFT, Family: iptables.IPv4, Name: "nat"},
		Chains: []iptables.ChainOutline{
			{Name: "OUTPUT", Builtin: true, Rules: []iptables.RuleOutline{jump("KUBE-SERVICES"), jump("KUBE-PORTALS-HOST")}},
			{Name: "KUBE-SERVICES"},
			{Name: "KUBE-PORTALS-HOST"},
			{Name: "KUBE-MARK-MASQ-NOT-POD"},
		},
	})
	for mode, want := range map[string]string{
		"iptables":  "[KUBE-PORTALS-HOST KUBE-MARK-MASQ-NOT-POD] [KUBE-PORTALS-HOST]",
		"ipvs":      "[KUBE-PORTALS-HOST KUBE-MARK-MASQ-NOT-POD] [KUBE-PORTALS-HOST]",
		"userspace": "[KUBE-MARK-MASQ-NOT-POD] []",
		"":          "[KUBE-MARK-MASQ-NOT-POD] []",
		"nftables":  "[KUBE-SERVICES KUBE-PORTALS-HOST KUBE-MARK-MASQ-NOT-POD] [KUBE-SERVICES KUBE-PORTALS-HOST]",
	} {
		r := (&node{chains: kernel}).rules()
		r.spare(mode)
		found, err := r.find(t.Context())
		if err != nil || len(found.chains) != 1 {
			t.Fatalf("mode %q: found %v, %v", mode, found, err)
		}
		targets := []string{}
		for _, rule := range found.chains[0].Rules {
			targets = append(targets, rule.Target)
		}
		if got := fmt.Sprint(found.chains[0].Chains, targets); got != want {
			t.Errorf("mode %q: %s goes, want %s", mode, got, want)
		}
	}
}
