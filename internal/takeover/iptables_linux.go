package takeover

import (
	"slices"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
)

// leftovers returns the chains of which is returns true, and the rules of other chains that jump to them, for each
// table that has any.
//
// Chains of other programs, such as KUBE-FIREWALL of kubelet, stay without their rules that jump to kube-proxy's, with
// one exception: network plugins masquerade packets by a jump to KUBE-MARK-MASQ (portmap's externalSetMarkChain), as
// kube-proxy's documents advise. Where they do, the chains for it stay.
func leftovers(all []iptables.Outline, is func(chain string) bool) []iptables.Removal {
	var found []iptables.Removal
	for _, t := range all {
		r := iptables.Removal{Table: t.TableID, Handle: t.Handle}
		kept := usedByOthers(t)
		removable := func(name string) bool { return is(name) && !slices.Contains(kept, name) }
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
