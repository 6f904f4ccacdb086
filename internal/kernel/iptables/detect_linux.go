package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// detector finds out which variant is in use.
type detector struct {
	opts      *Options
	kernel    ruleReader
	installed map[Variant]map[Family]programs
}

// ruleReader is what the detector needs of Kernel.
type ruleReader interface {
	HasChain(ctx context.Context, id TableID, chain string) (bool, error)
	LegacyRules(ctx context.Context) (int, error)
	Outlines(ctx context.Context, rules func(chain string) bool) ([]Outline, error)
}

// detect says which variant is in use, as iptables-wrapper of Kubernetes does:
// kubelet leaves a chain for this in the table mangle of the variant that its
// host uses (KEP-3178; since Kubernetes 1.17 one for other purposes). Where
// there is no kubelet, it is the variant that has more rules, as
// iptables-wrapper 2 had it, so that rules of the host and ours do not get into
// each other's way; and nft if both have as many.
func (d detector) detect(ctx context.Context) (Variant, string, error) {
	for _, variant := range []Variant{NFT, Legacy} {
		for _, f := range []Family{IPv4, IPv6} {
			for _, hint := range []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"} {
				table := TableID{Variant: variant, Family: f, Name: "mangle"}
				found, err := d.hasChain(ctx, table, hint)
				if err != nil {
					return "", "", err
				}
				if found {
					return variant, fmt.Sprintf("%s is in %s of %s", hint, table.Name, variant), nil
				}
			}
		}
	}
	return d.count(ctx)
}

// hasChain asks the kernel whether a table has a chain, and the program that
// saves the table if the answer cannot be understood.
func (d detector) hasChain(ctx context.Context, table TableID, chain string) (bool, error) {
	found, err := d.kernel.HasChain(ctx, table, chain)
	if err == nil || ctx.Err() != nil || errors.Is(err, fs.ErrPermission) {
		return found, err
	}
	saved, saveErr := d.save(ctx, table.Variant, table.Family, "-t", table.Name)
	if saveErr != nil {
		return false, errors.Join(err, saveErr)
	}
	return strings.Contains(saved, "\n:"+chain+" "), nil
}

// save returns what the program of a variant and family prints; nothing if it is
// not installed: what the variant holds is of no use then.
func (d detector) save(ctx context.Context, v Variant, f Family, args ...string) (string, error) {
	path := d.installed[v][f].save
	if path == "" {
		return "", nil
	}
	var saved []byte
	t := &Tools{opts: *d.opts}
	err := t.run(ctx, call{path: path, args: args, output: func(r io.Reader) (err error) {
		saved, err = io.ReadAll(r)
		return err
	}})
	return "\n" + string(saved), err
}

// count compares how much there is of each variant. That of nft is counted only
// if there is anything to compare with.
func (d detector) count(ctx context.Context) (Variant, string, error) {
	legacy, err := d.kernel.LegacyRules(ctx)
	if err != nil {
		return "", "", err
	}
	if legacy == 0 {
		return NFT, "there are no rules of legacy", nil
	}
	rules := map[Variant]int{}
	tables, err := d.kernel.Outlines(ctx, AllRules)
	for _, t := range tables {
		for _, c := range t.Chains {
			rules[t.Variant] += len(c.Rules)
		}
	}
	if err != nil {
		if rules, err = d.countSaved(ctx, err); err != nil {
			return "", "", err
		}
	}
	variant := NFT
	if rules[Legacy] > rules[NFT] {
		variant = Legacy
	}
	return variant, fmt.Sprintf("nft has %d rules and legacy %d", rules[NFT], rules[Legacy]), nil
}

// countSaved counts the rules that the programs print, where reading them from
// the kernel ended with an error.
func (d detector) countSaved(ctx context.Context, because error) (map[Variant]int, error) {
	if ctx.Err() != nil || errors.Is(because, fs.ErrPermission) {
		return nil, because
	}
	rules := map[Variant]int{}
	for variant, families := range d.installed {
		for f := range families {
			saved, err := d.save(ctx, variant, f)
			if err != nil {
				return nil, errors.Join(because, err)
			}
			rules[variant] += strings.Count(saved, "\n-A ")
		}
	}
	return rules, nil
}

// choose takes the variant that is in use if it is installed, and says so if not.
func choose(use Variant, reason string, installed map[Variant]map[Family]programs) (Variant, string) {
	if _, ok := installed[use]; ok {
		return use, reason
	}
	other := NFT
	if use == NFT {
		other = Legacy
	}
	return other, fmt.Sprintf("the programs of %s are not installed, which would be used because %s", use, reason)
}
