package iptables

import (
	"context"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/kernel/xtables"
)

// detect says which variant is in use, as iptables-wrapper of Kubernetes does:
// kubelet leaves a chain for this in the table mangle of the variant that its
// host uses (KEP-3178; since Kubernetes 1.17 one for other purposes). Where
// there is no kubelet, it is the variant that has more rules, as
// iptables-wrapper 2 had it, so that rules of the host and ours do not get into
// each other's way; and nft if both have as many.
func detect(ctx context.Context, kernel *xtables.Kernel) (xtables.Variant, string, error) {
	for _, variant := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		for _, f := range []Family{IPv4, IPv6} {
			for _, hint := range []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"} {
				table := xtables.TableID{Variant: variant, Family: f, Name: "mangle"}
				found, err := kernel.HasChain(ctx, table, hint)
				if err != nil {
					return "", "", err
				}
				if found {
					return variant, fmt.Sprintf("%s is in %s of %s", hint, table.Name, variant), nil
				}
			}
		}
	}
	return count(ctx, kernel)
}

// count compares how much there is of each variant. That of nft is counted only
// if there is anything to compare with.
func count(ctx context.Context, kernel *xtables.Kernel) (xtables.Variant, string, error) {
	legacy, err := kernel.LegacyRules(ctx)
	if err != nil {
		return "", "", err
	}
	if legacy == 0 {
		return xtables.NFT, "there are no rules of legacy", nil
	}
	tables, err := kernel.Tables(ctx)
	if err != nil {
		return "", "", err
	}
	rules := map[xtables.Variant]int{}
	for _, t := range tables {
		for _, c := range t.Chains {
			rules[t.Variant] += len(c.Rules)
		}
	}
	variant := xtables.NFT
	if rules[xtables.Legacy] > rules[xtables.NFT] {
		variant = xtables.Legacy
	}
	return variant, fmt.Sprintf("nft has %d rules and legacy %d", rules[xtables.NFT], rules[xtables.Legacy]), nil
}

// choose takes the variant that is in use if it is installed, and says so if not.
func choose(use xtables.Variant, reason string, installed map[xtables.Variant]map[Family]programs) (xtables.Variant, string) {
	if _, ok := installed[use]; ok {
		return use, reason
	}
	other := xtables.NFT
	if use == xtables.NFT {
		other = xtables.Legacy
	}
	return other, fmt.Sprintf("the programs of %s are not installed, which would be used because %s", use, reason)
}
