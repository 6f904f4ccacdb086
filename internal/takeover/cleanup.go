package takeover

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/kubechain"
)

// Cleanup removes at once what kube-proxy left, of all modes, also what still
// has connections, and with it what Sluice left in its mode iptables, whose chains
// have the same names. What could not be removed is in the error, and the rest is
// removed all the same. While a kube-proxy runs, nothing that it may use is left
// over. So a node goes back to kube-proxy without a gap.
func Cleanup(ctx context.Context, o Options) (Account, error) {
	r := newRules(o)
	r.remedy = remedyCleanup
	return cleanup(ctx, r, newWatch(o), o)
}

func cleanup(ctx context.Context, r *rules, w *watch, o Options) (Account, error) {
	found, foundErr := r.find(ctx)
	rival, ignored := spared(ctx, w, o)
	unused, used := found.divide(rival)
	account, err := r.remove(ctx, unused.atOnce())
	for _, e := range account.Left {
		if e.Remedy != "" {
			err = errors.Join(err, fmt.Errorf("cannot remove %s: %s", e, e.Remedy))
		}
	}
	if rival != nil && errors.Is(err, iptables.ErrInUse) { // it has not written over what leads there yet
		account.Left, err = append(account.Left, unused.entries()...), nil
	}
	account.Left, account.Rival, account.Ignored = append(account.Left, used.entries()...), rival, ignored
	return account, errors.Join(foundErr, err)
}

// spared returns the kube-proxy whose rules stay, and one that is not waited for.
// One that cannot be seen cannot be spared. A process that has only the name is,
// for as long as a kube-proxy takes to start.
func spared(ctx context.Context, w *watch, o Options) (rival, ignored *Rival) {
	rival, _ = w.look(ctx)
	if rival == nil || !o.IgnoreKubeProxy && (rival.Certain || rival.Age < cmp.Or(o.Grace, defaultGrace)) {
		return rival, nil
	}
	return nil, rival
}

// divide tells what goes from what a kube-proxy that runs may use: in mode
// nftables no chain of iptables, in others those that Sluice alone makes, too.
// One that does not say its mode may use anything kube-proxy makes.
func (f findings) divide(rival *Rival) (unused, used findings) {
	if rival == nil {
		return f, findings{}
	}
	used = f
	if rival.Mode == "nftables" {
		unused.chains, used.chains = f.chains, nil
		return unused, used
	}
	used.chains = nil
	for _, c := range f.chains {
		own, rest := divideChains(c)
		unused.chains, used.chains = appendIfAny(unused.chains, own), appendIfAny(used.chains, rest)
	}
	return unused, used
}

// divideChains tells the chains that Sluice alone makes from the rest.
func divideChains(c iptables.Removal) (own, rest iptables.Removal) {
	own.Table, rest.Table, rest.Rules = c.Table, c.Table, c.Rules
	for _, name := range c.Chains {
		to := &rest
		if kubechain.SluiceAlone(name) {
			to = &own
		}
		to.Chains = append(to.Chains, name)
	}
	return own, rest
}

func appendIfAny(list []iptables.Removal, r iptables.Removal) []iptables.Removal {
	if r.Size() == 0 {
		return list
	}
	return append(list, r)
}
