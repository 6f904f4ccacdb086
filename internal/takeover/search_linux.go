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
	found := Found{KubeProxy: p, Same: p != nil && r.shared(p.Mode), Rules: f.entries()}
	for i := range found.Rules {
		if found.Rules[i].Mechanism == IPTablesLegacy {
			found.Rules[i].Remedy = remedyRunning
		}
	}
	return found, errors.Join(err, findErr)
}
