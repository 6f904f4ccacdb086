package takeover

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/testing/iptablestest"
)

// beyondReach is a node with leftovers in both variants, of which the legacy one
// cannot be changed.
func beyondReach(t *testing.T) *node {
	t.Helper()
	var all []iptables.Outline
	for _, v := range []iptables.Variant{iptables.Legacy, iptables.NFT} {
		tables, err := afterIPTables(v).chains.Outlines(t.Context(), iptables.AllRules)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tables...)
	}
	n := &node{chains: iptablestest.NewKernel(all...)}
	n.chains.Fail = func(verb string) error {
		if verb == "remove legacy" {
			return fmt.Errorf("%w: no programs", iptables.ErrBeyondReach)
		}
		return nil
	}
	return n
}

const (
	inLegacy = "iptables-legacy: 3 chains and 1 rule in iptables-legacy nat: no programs"
	inNFT    = "removed iptables-nft: 3 chains and 1 rule in iptables-nft nat"
)

// Rules that cannot be removed stay, and status, log and an Event name them and the remedy, each once. They are
// removed as soon as possible.
func TestLegacyRulesBeyondReach(t *testing.T) {
	n := beyondReach(t)
	var events []string
	playWith(t, n, Options{RecordLeft: func(note string) { events = append(events, note) }}, func(s *stage) {
		s.controller.platform.rules.remedy = "do this"
		close(s.ready)
		state := s.after(time.Hour)
		compare(t, "in words", inNFT+"\nleft "+inLegacy+"; do this", strings.Join(state.Lines(), "\n"))
		if state.Err != nil || state.Leftovers[IPTablesLegacy] != 4 || state.Leftovers[IPTablesNFT] != 0 {
			t.Errorf("state: %+v", state)
		}
		compare(t, "log", `msg="Removed leftovers of kube-proxy" mechanism=iptables-nft `+
			`removed="3 chains and 1 rule in iptables-nft nat"
msg="Cannot remove leftovers of kube-proxy" mechanism=iptables-legacy `+
			`left="3 chains and 1 rule in iptables-legacy nat" why="no programs" remedy="do this"
`, s.said())
		compare(t, "events", "Sluice cannot remove leftovers of kube-proxy: "+inLegacy+"; do this",
			strings.Join(events, "\n"))
		s.chains.Fail = nil
		state = s.after(time.Minute)
		if len(state.Leftovers) > 0 || state.Removed[IPTablesLegacy] != 4 || len(state.Last.Left) > 0 {
			t.Errorf("when it can: %+v", state)
		}
	})
}

// A node that is not clean is an error of Cleanup: one line for each failure, and one with
// the remedy. The account does not repeat them.
func TestCleanupFailsForRulesBeyondReach(t *testing.T) {
	r := beyondReach(t).rules()
	r.remedy = "do this"
	a, err := cleanup(t.Context(), r, silent(), Options{})
	if err == nil || err.Error() != "cannot remove 3 chains and 1 rule in iptables-legacy nat: no programs\ndo this" {
		t.Errorf("got %v", err)
	}
	compare(t, "account", inNFT, strings.Join(a.Lines(), "\n"))
}

// An Event has room for the longest remedy.
func TestTheRemediesFitIntoAnEvent(t *testing.T) {
	const room, others = 1024, 600
	for _, remedy := range []string{remedyRunning, remedyCleanup} {
		if len(remedy) > room-others {
			t.Errorf("%d bytes: %s", len(remedy), remedy)
		}
	}
}

// KUBE-FIREWALL stays, as kubelet uses it, and Cleanup says so.
func TestCleanupNamesTheChainThatStays(t *testing.T) {
	table := func(v iptables.Variant, f iptables.Family, from ...string) iptables.Outline {
		o := iptables.Outline{
			TableID: iptables.TableID{Variant: v, Family: f, Name: "filter"},
			Chains:  []iptables.ChainOutline{{Name: "KUBE-FIREWALL"}},
		}
		for _, chain := range from {
			o.Chains = append(o.Chains, iptables.ChainOutline{
				Name: chain, Builtin: true, Rules: []iptables.RuleOutline{{Target: "KUBE-FIREWALL", Jump: true}},
			})
		}
		return o
	}
	for _, tt := range []struct {
		all  []iptables.Outline
		want string
	}{
		{nil, ""},
		{
			[]iptables.Outline{
				table(iptables.NFT, iptables.IPv4, "INPUT", "OUTPUT"), table(iptables.NFT, iptables.IPv6, "INPUT", "OUTPUT"),
			},
			"kept chain KUBE-FIREWALL and the rules of INPUT, OUTPUT that jump to it, in iptables-nft filter, " +
				"ip6tables-nft filter: kubelet uses them as well",
		},
		{
			[]iptables.Outline{table(iptables.Legacy, iptables.IPv4)},
			"kept chain KUBE-FIREWALL, in iptables-legacy filter: kubelet uses it as well",
		},
	} {
		n := &node{chains: iptablestest.NewKernel(tt.all...)}
		before := n.chains.String()
		a, err := cleanup(t.Context(), n.rules(), silent(), Options{})
		if err != nil || n.chains.String() != before {
			t.Errorf("%v, left:\n%s", err, n.chains)
		}
		compare(t, "account", tt.want, strings.Join(a.Lines(), "\n"))
	}
}
