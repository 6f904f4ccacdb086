package takeover

import (
	"context"
	"errors"
	"slices"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
)

// Cleanup removes kube-proxy's rules of all modes at once, even if they still have connections, and the rules of
// Sluice's mode iptables, whose chains have the same names. If it cannot remove some, it removes the rest, and the
// error has the reason and the remedy. While a kube-proxy runs, Cleanup keeps the rules that it may use, so that a node
// returns to kube-proxy without a gap.
func Cleanup(ctx context.Context, o Options) (Account, error) {
	r := newRules(o)
	r.remedy = remedyCleanup
	return cleanup(ctx, r, newDetector(o), o)
}

func cleanup(ctx context.Context, r *rules, d *detector, o Options) (Account, error) {
	var kubeProxy *KubeProxy
	if !o.IgnoreKubeProxy {
		kubeProxy, _ = d.detect(ctx) // after an error none is known
	}
	if kubeProxy != nil {
		r.spare(kubeProxy.Mode)
	}
	found, foundErr := r.find(ctx)
	found.vips = found.vips.immediately()
	account, err := r.remove(ctx, found)
	if kubeProxy != nil && errors.Is(err, iptables.ErrInUse) {
		account.Left = append(account.Left, "chains to which rules lead that kube-proxy has not replaced yet")
		err = nil
	}
	account.KubeProxy = kubeProxy
	return account, errors.Join(foundErr, err)
}

// spare keeps the rules that a running kube-proxy in this mode may use. In mode nftables it uses no chain of iptables.
// In other modes it uses no chain that only Sluice makes, and chains of mode userspace only in that mode. A kube-proxy
// that reports no mode may use all other chains.
func (r *rules) spare(mode string) {
	r.ours = append(slices.Clone(r.ours), NFTables, IPVS)
	if mode == "nftables" {
		return
	}
	r.removable = func(chain string) bool {
		return kubechain.SluiceAlone(chain) || mode != "" && mode != "userspace" && kubechain.Userspace(chain)
	}
}

// Search looks for a running kube-proxy and its rules, and changes nothing. With an error there may be more.
func Search(ctx context.Context, o Options) (Found, error) {
	return search(ctx, newRules(o), newDetector(o))
}

func search(ctx context.Context, r *rules, d *detector) (Found, error) {
	p, err := d.detect(ctx)
	f, findErr := r.find(ctx)
	return Found{KubeProxy: p, Same: p != nil && r.shared(p.Mode), Rules: f.entries()}, errors.Join(err, findErr)
}
