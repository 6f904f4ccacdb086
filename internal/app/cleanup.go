package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/host"
	"github.com/sluice-proxy/sluice/internal/linux/probe"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// Cleanup removes all rules of Sluice, and those that kube-proxy of any mode left. It
// returns a line for each thing that it removed. A daemon would write its rules again: if
// one does not end soon, the error is a *admin.TakenError and nothing is removed.
func Cleanup(ctx context.Context, o Options) (removed []string, err error) {
	return cleanup(ctx, o, stopTimeout)
}

func cleanup(ctx context.Context, o Options, wait time.Duration) (removed []string, err error) {
	held, err := newLock(admin.Options{NetNS: o.NetNS}, o.Log).acquireWithin(ctx, wait)
	if err != nil {
		return nil, err
	}
	defer release(held)
	return removeAll(ctx, o)
}

// removeAll removes the rules of every plane and of kube-proxy. It continues after a failure.
func removeAll(ctx context.Context, o Options) (removed []string, err error) {
	var errs []error
	for _, kind := range o.Kinds {
		if kind.Remove == nil {
			continue
		}
		if _, err := kind.Probe(ctx, o.NetNS); errors.Is(err, probe.ErrPrivilege) {
			return removed, err
		}
		gone, err := removeRules(ctx, kind, o)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove what the %s plane left: %w", kind.Mode, err))
		}
		for _, what := range gone {
			removed = append(removed, "removed sluice: "+what)
		}
	}
	lines, err := cleanHost(ctx, o)
	removed = append(removed, lines...)
	account, kubeProxyErr := takeover.Cleanup(ctx, o.takeover())
	return append(removed, account.Lines()...), errors.Join(append(errs, err, kubeProxyErr)...)
}

// cleanHost undoes what the planes did to the host. It returns lines and errors of planes that share a Cleanup once.
func cleanHost(ctx context.Context, o Options) (lines []string, err error) {
	var errs []error
	for _, kind := range o.Kinds {
		if kind.Cleanup == nil {
			continue
		}
		done, err := kind.Cleanup(ctx, o.setup())
		for _, line := range done {
			if !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
		if err != nil && !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
			errs = append(errs, err)
		}
	}
	return lines, errors.Join(errs...)
}

// Prepare changes the host in ways that need more privileges than serving does, for a later process.
func Prepare(ctx context.Context, o Options) error {
	if err := Check(ctx, o); err != nil {
		return err
	}
	var err error
	if prepare := o.kind().Prepare; prepare != nil {
		err = prepare(ctx, o.setup())
	}
	return errors.Join(host.New(host.Options{NetNS: o.NetNS}).Prepare(o.Config), err)
}
