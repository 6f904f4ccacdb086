package app

import (
	"context"
	"log/slog"

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
	setup := o.setup()
	setup.Families = f.families
	p := o.kind().Preview(setup)
	if err := p.Refresh(ctx); err != nil {
		return nil, err
	}
	return p.Plan(change), nil
}

// Check verifies that this process can do its work here, and changes nothing.
func Check(ctx context.Context, o Options) error {
	_, err := o.kind().Probe(ctx, o.NetNS)
	return err
}
