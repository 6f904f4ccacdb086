package app

import (
	"context"
	"log/slog"

	"github.com/sluice-proxy/sluice/internal/kernel/probe"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// Preview plans what manifests would put into a kernel that holds nothing yet.
// It needs no privileges.
func Preview(ctx context.Context, o Options) (plane.Plan, error) {
	f, err := fromFiles(ctx, o)
	if err != nil {
		return nil, err
	}
	change, problems := f.compiler.Compile(f.store.Take())
	o.reportAll(problems)
	ignored{o.Log, slog.LevelInfo}.Applied(change)
	p := kindOf(o.Config.Mode).preview(parts{o.Config, o.NetNS, o.Log, f.families})
	if err := p.Refresh(ctx); err != nil {
		return nil, err
	}
	return p.Plan(change), nil
}

// Check makes sure that this process can do its work here, and does nothing.
func Check(ctx context.Context, o Options) error {
	_, err := kindOf(o.Config.Mode).probe(ctx, probe.Options{NetNS: o.NetNS})
	return err
}
