package takeover

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
)

// Cleanup removes kube-proxy's rules of all modes at once, even if they still have connections, and the rules of
// Sluice's mode iptables, whose chains have the same names. If it cannot remove some, it removes the rest; the error
// lists the remaining rules, and on the last line the remedy, and the Account has only the removed ones. While a
// kube-proxy runs, Cleanup keeps the rules that it may use, so that a node returns to kube-proxy without a gap.
func Cleanup(ctx context.Context, o Options) (Account, error) {
	r := newRules(o)
	r.remedy = remedyCleanup
	return cleanup(ctx, r, newDetector(o), o)
}

func cleanup(ctx context.Context, r *rules, d *detector, o Options) (Account, error) {
	found, foundErr := r.find(ctx)
	kubeProxy, _ := d.detect(ctx) // after an error none is known
	var ignored *KubeProxy
	if o.IgnoreKubeProxy {
		kubeProxy, ignored = nil, kubeProxy
	}
	unused, used := found.divide(kubeProxy)
	unused.vips = unused.vips.immediately()
	account, err := r.remove(ctx, unused)
	account, beyondErr := account.withoutBeyond()
	err = errors.Join(err, beyondErr)
	if kubeProxy != nil && errors.Is(err, iptables.ErrInUse) { // it has not replaced the rules that jump there yet
		account.Left, err = append(account.Left, unused.entries()...), nil
	}
	account.Left, account.KubeProxy, account.Ignored = append(account.Left, used.entries()...), kubeProxy, ignored
	account.Kept = found.kept
	return account, errors.Join(foundErr, err)
}

// withoutBeyond returns the account without the entries that a person has to remove, and
// an error with one line for each of them and one with the remedy.
func (a Account) withoutBeyond() (Account, error) {
	var left []Entry
	var errs []error
	remedy := ""
	for _, e := range a.Left {
		if e.Remedy == "" {
			left = append(left, e)
			continue
		}
		remedy = e.Remedy // it is the same for all
		errs = append(errs, fmt.Errorf("cannot remove %s: %s", e.What, e.Why))
	}
	if remedy != "" {
		errs = append(errs, errors.New(remedy))
	}
	a.Left = left
	return a, errors.Join(errs...)
}

// divide returns the rules that a running kube-proxy does not use, and the rules that it may use. In mode nftables it
// uses no chain of iptables. In other modes it uses no chain that only Sluice makes, and chains of mode userspace
// only in that mode. A kube-proxy that reports no mode may use all other chains.
func (f findings) divide(kubeProxy *KubeProxy) (unused, used findings) {
	if kubeProxy == nil {
		return f, findings{}
	}
	used = f
	if kubeProxy.Mode == "nftables" {
		unused.chains, used.chains = f.chains, nil
		return unused, used
	}
	used.chains = nil
	for _, c := range f.chains {
		own, rest := divideChains(c, func(name string) bool {
			other := kubeProxy.Mode != "" && kubeProxy.Mode != "userspace"
			return kubechain.SluiceAlone(name) || other && kubechain.Userspace(name)
		})
		if own.Size() > 0 {
			unused.chains = append(unused.chains, own)
		}
		if rest.Size() > 0 {
			used.chains = append(used.chains, rest)
		}
	}
	return unused, used
}

// divideChains separates chains, with the rules that jump there, from all others.
func divideChains(c iptables.Removal, is func(chain string) bool) (these, rest iptables.Removal) {
	none := iptables.Removal{Table: c.Table, Handle: c.Handle}
	these, rest = none, none
	to := func(chain string) *iptables.Removal {
		if is(chain) {
			return &these
		}
		return &rest
	}
	for _, name := range c.Chains {
		r := to(name)
		r.Chains = append(r.Chains, name)
	}
	for _, rule := range c.Rules {
		r := to(rule.Target)
		r.Rules = append(r.Rules, rule)
	}
	return these, rest
}
