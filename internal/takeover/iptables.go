package takeover

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/xtables"
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
func leftovers(all []xtables.Table) []xtables.Removal {
	var found []xtables.Removal
	for _, t := range all {
		r := xtables.Removal{Table: t.TableID}
		lent := lentOut(t)
		kubeChain := func(name string) bool { return kubeChain(name) && !slices.Contains(lent, name) }
		for _, chain := range t.Chains {
			if !chain.Builtin && kubeChain(chain.Name) {
				r.Chains = append(r.Chains, chain.Name)
				continue
			}
			for _, rule := range chain.Rules {
				if rule.Jump && kubeChain(rule.Target) {
					r.Rules = append(r.Rules, xtables.ChainRule{Chain: chain.Name, Rule: rule})
				}
			}
		}
		if r.Size() > 0 {
			found = append(found, r)
		}
	}
	return found
}

// lentOut are the chains of a table that others need to have packets masqueraded.
func lentOut(t xtables.Table) []string {
	for _, chain := range t.Chains {
		if chain.Builtin || kubeChain(chain.Name) {
			continue
		}
		for _, rule := range chain.Rules {
			if rule.Jump && rule.Target == "KUBE-MARK-MASQ" {
				return []string{"KUBE-MARK-MASQ", "KUBE-POSTROUTING"}
			}
		}
	}
	return nil
}

// neighbours says which chains of others lose rules that lead to kube-proxy's: a
// line each. It has no use for those rules any more, but who made them may.
func neighbours(found []xtables.Removal) []string {
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

// kubeChain reports whether kube-proxy made a chain of this name, in any of its
// versions. Behind the prefixes is a hash; kube-proxy, too, deletes what begins
// with them.
func kubeChain(name string) bool {
	rest, ok := strings.CutPrefix(name, "KUBE-")
	if !ok {
		return false
	}
	for _, prefix := range []string{"SVC-", "SVL-", "EXT-", "FW-", "SEP-", "XLB-", "PORTALS-"} {
		if strings.HasPrefix(rest, prefix) {
			return true
		}
	}
	switch rest {
	case "SERVICES", "EXTERNAL-SERVICES", "NODEPORTS", "POSTROUTING", "MARK-MASQ", "FORWARD",
		"PROXY-FIREWALL", "PROXY-CANARY": // all modes
		return true
	case "NODE-PORT", "LOAD-BALANCER", "SOURCE-RANGES-FIREWALL", "IPVS-FILTER", "IPVS-OUT-FILTER",
		"FIRE-WALL": // ipvs; the last until Kubernetes 1.9
		return true
	case "NODEPORT-CONTAINER", "NODEPORT-HOST", "NODEPORT-NON-LOCAL": // userspace
		return true
	}
	return false
}
