package takeover

import (
	"context"
	"errors"
)

// Cleanup removes at once what kube-proxy left, of all modes, also what still
// has connections. What could not be removed is in the error, and the rest is
// removed all the same.
func Cleanup(ctx context.Context, o Options) (Account, error) {
	return cleanup(ctx, newRules(o), newWatch(o))
}

func cleanup(ctx context.Context, r *rules, w *watch) (Account, error) {
	found, foundErr := r.find(ctx)
	account, err := r.remove(ctx, found.atOnce())
	rival, _ := w.look(ctx) // one that cannot be seen cannot be named
	account.Rival = rival
	return account, errors.Join(foundErr, err)
}
