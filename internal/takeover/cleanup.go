package takeover

import (
	"context"
	"errors"
)

// Cleanup removes at once what kube-proxy left, of all modes, also what still
// has connections. What could not be removed is in the error, and the rest is
// removed all the same. While a kube-proxy runs, nothing is left over: all of it
// is in use, and stays. So a node goes back to kube-proxy without a gap.
func Cleanup(ctx context.Context, o Options) (Account, error) {
	return cleanup(ctx, newRules(o), newWatch(o))
}

func cleanup(ctx context.Context, r *rules, w *watch) (Account, error) {
	found, foundErr := r.find(ctx)
	if rival, _ := w.look(ctx); rival != nil { // one that cannot be seen cannot be spared
		return Account{Left: found.entries(), Rival: rival}, foundErr
	}
	account, err := r.remove(ctx, found.atOnce())
	return account, errors.Join(foundErr, err)
}
