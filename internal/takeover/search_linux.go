package takeover

import (
	"context"
	"errors"
)

// Search looks for a kube-proxy that runs, and for its rules, as a take-over does, and changes nothing. With an error
// there may be more than it returns.
func Search(ctx context.Context, o Options) (Found, error) {
	return search(ctx, newRules(o), newDetector(o))
}

func search(ctx context.Context, r *rules, d *detector) (Found, error) {
	p, err := d.detect(ctx)
	f, findErr := r.find(ctx)
	return Found{KubeProxy: p, Same: p != nil && r.shared(p.Mode), Rules: f.entries()}, errors.Join(err, findErr)
}
