package takeover

import (
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kubechain"
)

// leftovers says what of iptables is kube-proxy's: its chains, and the rules of
// other chains that lead to them. Tables without any are left out.
//
// The chains of kubelet stay, with what leads there: KUBE-FIREWALL,
// KUBE-MARK-DROP, KUBE-KUBELET-CANARY and KUBE-IPTABLES-HINT. So do all others
// that lead to kube-proxy's, without the rules that do, but for one: network
// plugins have packets masqueraded by a jump to KUBE-MARK-MASQ (portmap's
// externalSetMarkChain), as kube-proxy's own documents advise. Where they do it
// goes on working.
func leftovers(all []iptables.Outline) []iptables.Removal {
	var found []iptables.Removal
	for _, t := range all {
		r := iptables.Removal{Table: t.TableID}
		lent := lentOut(t)
		goes := func(name string) bool { return kubechain.Proxy(name) && !slices.Contains(lent, name) }
		for _, chain := range t.Chains {
			if !chain.Builtin && goes(chain.Name) {
				r.Chains = append(r.Chains, chain.Name)
				continue
			}
			for _, rule := range chain.Rules {
				if rule.Jump && goes(rule.Target) {
					r.Rules = append(r.Rules, iptables.ChainRule{Chain: chain.Name, Target: rule.Target})
				}
			}
		}
		if r.Size() > 0 {
			found = append(found, r)
		}
	}
	return found
}

// withRules selects the chains whose rules leftovers needs: those that may stay.
func withRules(chain string) bool {
	return !kubechain.Proxy(chain) || slices.Contains(forMarking(), chain)
}

// forMarking are the chains that have packets masqueraded for others.
func forMarking() []string { return []string{"KUBE-MARK-MASQ", "KUBE-POSTROUTING"} }

// lentOut are the chains of a table that others need to have packets masqueraded.
func lentOut(t iptables.Outline) []string {
	for _, chain := range t.Chains {
		if chain.Builtin || kubechain.Proxy(chain.Name) {
			continue
		}
		for _, rule := range chain.Rules {
			if rule.Jump && rule.Target == "KUBE-MARK-MASQ" {
				return forMarking()
			}
		}
	}
	return nil
}

// neighbours says which chains of others lose rules that lead to kube-proxy's: a
// line each. It has no use for those rules any more, but who made them may.
func neighbours(found []iptables.Removal) []string {
	builtin := []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
	var lines []string
	for _, r := range found {
		for _, rule := range r.Rules {
			if !slices.Contains(builtin, rule.Chain) {
				lines = append(lines, fmt.Sprintf("%s: chain %s, not kube-proxy's, leads to %s", r.Table, rule.Chain, rule.Target))
			}
		}
	}
	return lines
}
