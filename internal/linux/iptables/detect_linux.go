package iptables

import (
	"context"
	"fmt"
	"slices"
)

// detect returns the variant in use and the reason, as iptables-wrapper of Kubernetes does: kubelet creates a chain in
// table mangle of the variant that its host uses (KEP-3178; since Kubernetes 1.17 a chain for other purposes). Without
// a kubelet it is the variant with more rules, as in iptables-wrapper 2, so that the rules of the host and of the proxy
// are in the same tables; or nft if both have equally many.
func (k *Kernel) detect(ctx context.Context) (Variant, string, error) {
	legacy, err := k.legacyTables(ctx)
	if err != nil {
		return "", "", fmt.Errorf("read legacy tables: %w%s", err, remedy(err))
	}
	for _, variant := range []Variant{NFT, Legacy} {
		for _, f := range []Family{IPv4, IPv6} {
			for _, hint := range []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"} {
				mangle := TableID{Variant: variant, Family: f, Name: "mangle"}
				found := slices.ContainsFunc(legacy, func(t legacyTable) bool {
					return t.TableID == mangle && slices.Contains(t.chains, hint)
				})
				if variant == NFT {
					found, err = k.hasNFT(ctx, mangle, hint)
				}
				if found || err != nil {
					return variant, fmt.Sprintf("%s is in %s of %s", hint, mangle.Name, variant), err
				}
			}
		}
	}
	return k.count(ctx, legacy)
}

// count compares the numbers of rules of both variants. Those of nft are counted only if legacy has some.
func (k *Kernel) count(ctx context.Context, tables []legacyTable) (Variant, string, error) {
	legacy, nft := 0, 0
	for _, t := range tables {
		legacy += t.rules
	}
	if legacy == 0 {
		return NFT, "there are no rules of legacy", nil
	}
	inNFT, err := k.outlinesNFT(ctx, AllRules)
	if err != nil {
		return "", "", fmt.Errorf("count rules of nft: %w%s", err, remedy(err))
	}
	for _, t := range inNFT {
		for _, c := range t.Chains {
			nft += len(c.Rules)
		}
	}
	variant := NFT
	if legacy > nft {
		variant = Legacy
	}
	return variant, fmt.Sprintf("nft has %d rules and legacy %d", nft, legacy), nil
}

// choose returns the variant in use if it is installed, else the other one, with the reason.
func choose(use Variant, reason string, installed map[Variant]map[Family]programs) (Variant, string) {
	if _, ok := installed[use]; ok {
		return use, reason
	}
	other := NFT
	if use == NFT {
		other = Legacy
	}
	return other, fmt.Sprintf("%s, but the programs of %s are not installed", reason, use)
}
