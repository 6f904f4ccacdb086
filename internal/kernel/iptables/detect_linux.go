package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// detector finds the variant in use.
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

// detect returns the variant in use and the reason, as iptables-wrapper of Kubernetes
// does: kubelet creates a chain in table mangle of the variant that its host uses
// (KEP-3178; since Kubernetes 1.17 a chain for other purposes). Without a kubelet it is
// the variant with more rules, as in iptables-wrapper 2, so that the rules of the host
// and of the proxy are in the same tables; or nft if both have equally many.
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

// hasChain reports whether a table has a chain. If the table cannot be read from the
// kernel, it runs PROGRAM-save.
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

// save returns the output of PROGRAM-save of a variant and family. It is empty if that is
// not installed, as the variant cannot be used then.
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

// count compares the numbers of rules of both variants. Those of nft are counted only if
// legacy has some.
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

// countSaved counts the rules in the output of the programs, after an error of reading
// them from the kernel.
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

// choose returns the variant in use if it is installed, else the other one, with the reason.
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
