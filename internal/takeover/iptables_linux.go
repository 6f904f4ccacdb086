package takeover

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
)

// leftovers returns kube-proxy's chains, and the rules of other chains that jump to them,
// for each table that has any.
//
// Chains of kubelet stay, with the rules that jump there: KUBE-FIREWALL, KUBE-MARK-DROP,
// KUBE-KUBELET-CANARY and KUBE-IPTABLES-HINT. Chains of other programs stay without their
// rules that jump to kube-proxy's, with one exception: network plugins masquerade packets
// by a jump to KUBE-MARK-MASQ (portmap's externalSetMarkChain), as kube-proxy's documents
// advise. Where they do, the chains for it stay.
func leftovers(all []iptables.Outline) []iptables.Removal {
	var found []iptables.Removal
	for _, t := range all {
		r := iptables.Removal{Table: t.TableID, Handle: t.Handle}
		kept := usedByOthers(t)
		removable := func(name string) bool { return kubechain.Proxy(name) && !slices.Contains(kept, name) }
		for _, chain := range t.Chains {
			if !chain.Builtin && removable(chain.Name) {
				r.Chains = append(r.Chains, chain.Name)
				continue
			}
			for _, rule := range chain.Rules {
				if rule.Jump && removable(rule.Target) {
					r.Rules = append(r.Rules, iptables.ChainRule{Chain: chain.Name, RuleOutline: rule})
				}
			}
		}
		if r.Size() > 0 {
			found = append(found, r)
		}
	}
	return found
}

// withRules selects the chains whose rules leftovers needs: the chains that may stay.
func withRules(chain string) bool {
	return !kubechain.Proxy(chain) || slices.Contains(markChains(), chain)
}

// markChains returns the chains by which other programs masquerade packets.
func markChains() []string { return []string{"KUBE-MARK-MASQ", "KUBE-POSTROUTING"} }

// usedByOthers returns the chains of a table by which other programs masquerade packets.
func usedByOthers(t iptables.Outline) []string {
	for _, chain := range t.Chains {
		if chain.Builtin || kubechain.Proxy(chain.Name) {
			continue
		}
		for _, rule := range chain.Rules {
			if rule.Jump && rule.Target == "KUBE-MARK-MASQ" {
				return markChains()
			}
		}
	}
	return nil
}

// lostRules returns a line for each rule of another program's chain that jumps to one of
// kube-proxy's chains.
func lostRules(found []iptables.Removal) []string {
	builtin := []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
	var lines []string
	for _, r := range found {
		for _, rule := range r.Rules {
			if !slices.Contains(builtin, rule.Chain) {
				lines = append(lines, fmt.Sprintf("%s: chain %s, not kube-proxy's, jumps to %s", r.Table, rule.Chain, rule.Target))
			}
		}
	}
	return lines
}

// keptFirewall returns a sentence about KUBE-FIREWALL and the rules that jump there; empty
// if no table has this chain.
func keptFirewall(all []iptables.Outline) string {
	const firewall = "KUBE-FIREWALL"
	var tables, from []string
	for _, t := range all {
		if !slices.ContainsFunc(t.Chains, func(c iptables.ChainOutline) bool { return c.Name == firewall }) {
			continue
		}
		tables = append(tables, t.String())
		for _, c := range t.Chains {
			jumps := slices.ContainsFunc(c.Rules, func(r iptables.RuleOutline) bool { return r.Jump && r.Target == firewall })
			if jumps && !slices.Contains(from, c.Name) {
				from = append(from, c.Name)
			}
		}
	}
	if len(tables) == 0 {
		return ""
	}
	what, them := "chain "+firewall, "it"
	if len(from) > 0 {
		what, them = what+" and the rules of "+strings.Join(from, ", ")+" that jump to it", "them"
	}
	return fmt.Sprintf("kept %s, in %s: kubelet uses %s as well", what, strings.Join(tables, ", "), them)
}
